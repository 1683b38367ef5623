// The demo Plan under the launchers that people have: a real Slurm, torchrun, and our own over
// Redis. Each skips where the launcher is not installed.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "foresail/base/document.h"
#include "foresail/planner/plan.h"
#include "foresail/scenarios/scenario.h"
#include "rank_process.h"
#include "scratch_folder.h"
#include "worker_environment.h"

namespace foresail::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kSteps = 2;

bool is_installed(const std::string& program) {
  return run_command("command -v " + program).status == 0;
}

class Launchers : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path scenario = fs::path(FORESAIL_SOURCE_DIR) / "scenarios/cpu_gpt/scenario.yaml";
    planner::save_plan(scenarios::load_scenario(scenario).plan, folder_ / "plan.yaml");
  }
  std::string run_arguments() const {
    return " run " + (folder_ / "plan.yaml").string() + " -o " + (folder_ / "out").string() +
           " --steps " + std::to_string(kSteps);
  }
  void expect_trained() const {
    const Document run = parse_json(read_file(folder_ / "out/run.json"), "run.json");
    EXPECT_EQ(run.at("losses").size(), static_cast<std::size_t>(kSteps));
    EXPECT_EQ(run.at("rank_plan_digests").size(), 4u);
    EXPECT_LT(run.at("losses").at(1).get<double>(), run.at("losses").at(0).get<double>());
  }

  const fs::path folder_ = test::scratch_folder();
};

TEST_F(Launchers, SlurmStartsFourRanksOnFourNodes) {
  if (!is_installed("slurmctld") || !is_installed("slurmd") || !is_installed("srun") ||
      !is_installed("munged")) {
    GTEST_SKIP() << "Slurm or munge is not installed";
  }
  if (geteuid() != 0) GTEST_SKIP() << "slurmd must be started by root";
  const std::string slurm = FORESAIL_SOURCE_DIR "/scripts/slurm_on_one_host.sh ";
  const std::string line =
      std::string("srun --export=ALL,OMP_NUM_THREADS=1 -N4 -n4 ") + FORESAIL_WORKER;
  const Outcome outcome = run_command(slurm + line + run_arguments());
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("step    1  loss "));
  expect_trained();
}

TEST_F(Launchers, TorchrunStartsFourRanks) {
  if (!is_installed("torchrun")) GTEST_SKIP() << "torchrun (python3-torch) is not installed";
  const Outcome outcome =
      run_command("torchrun -r 1 -t 1 --standalone --nproc_per_node=4 --no_python " +
                  std::string(FORESAIL_WORKER) + run_arguments());
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("step    1  loss "));
  expect_trained();
}

TEST_F(Launchers, OwnLauncherMeetsAtRedisAndLeavesNothingThere) {
  if (!RedisServer::is_installed()) GTEST_SKIP() << "redis-server is not installed";
  const RedisServer server(cli::free_port(), folder_);
  std::string arguments = run_arguments();
  arguments.replace(0, 4, " launch");
  const Outcome outcome =
      run_command(FORESAIL_WORKER + arguments + " --launch 4 --store " + server.url() +
                  " --metrics " + (folder_ / "metrics.jsonl").string());
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  expect_trained();
  EXPECT_EQ(server.ask("KEYS '*'"), "\n");
  std::ifstream metrics(folder_ / "metrics.jsonl");
  int step = 0;
  for (std::string line; std::getline(metrics, line); ++step) {
    const Document document = parse_json(line, "metrics");
    EXPECT_EQ(document.at("step"), step);
    EXPECT_GT(document.at("mfu").get<double>(), 0);
    EXPECT_GT(document.at("memory_bytes").get<double>(), 0);
    EXPECT_GT(document.at("tokens_per_s").get<double>(), 0);
    const double exposed = document.at("exposed_communication_s");
    EXPECT_GT(exposed, 0);
    EXPECT_LT(exposed, document.at("step_time_s").get<double>());
  }
  EXPECT_EQ(step, kSteps);
}

}  // namespace
}  // namespace foresail::testing
