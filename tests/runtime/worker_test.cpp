// foresail-worker as users meet it: processes, exit statuses, messages, files.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "command_outcome.h"
#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/program/profile.h"
#include "foresail/program/trace.h"
#include "profile_checks.h"
#include "thread_job.h"
#include "worker_environment.h"
#include "worker_job.h"
#include "worker_measure.h"

namespace foresail::testing {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Processes that have `plan` on their command line and a rank in their environment, by rank.
std::map<std::string, pid_t> running_ranks(const std::string& plan) {
  const std::string argument = std::string(1, '\0') + plan + '\0';
  const std::string variable = std::string(1, '\0') + "RANK=";
  std::map<std::string, pid_t> ranks;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (contents(entry.path() / "cmdline").find(argument) == std::string::npos) continue;
    const std::string environment = '\0' + contents(entry.path() / "environ");
    const std::size_t at = environment.find(variable);
    if (at == std::string::npos) continue;
    ranks[environment.substr(at + variable.size(), 1)] = std::stoi(name);
  }
  return ranks;
}

class Worker : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("foresail_worker_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string save(const std::string& name, const planner::Plan& plan) {
    planner::save_plan(plan, folder_ / name);
    return (folder_ / name).string();
  }
  static planner::Plan two_ranks(std::uint64_t seed = 1) {
    planner::Layout layout;
    layout.dp = 2;
    return make_plan({.layout = layout, .change = [seed](planner::Plan& plan) {
                        plan.seed = seed;
                        plan.model.layers = 2;
                        plan.training.steps = 3;
                      }});
  }
  std::string output() const { return (folder_ / "out").string(); }
  static std::string worker() { return FORESAIL_WORKER; }

  fs::path folder_;
};

TEST_F(Worker, AnEmptyValueIsNoValue) {
  const std::string plan = save("plan.yaml", two_ranks());
  const Outcome outcome = run_command(worker() + " launch " + plan + " --launch 2 -o ''");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("--output: is empty"), std::string::npos) << outcome.text;
}

TEST_F(Worker, LaunchTrainsAndWritesWhatItMeasured) {
  const std::string plan = save("plan.yaml", two_ranks());
  const Outcome outcome = run_command(worker() + " launch " + plan + " --launch 2 -o " + output());
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("step    2  loss "), std::string::npos) << outcome.text;
  const Document run = parse_json(read_file(folder_ / "out/run.json"), "run.json");
  EXPECT_EQ(run.at("losses").size(), 3u);
  EXPECT_EQ(run.at("plan_digest"), two_ranks().digest());
  EXPECT_EQ(run.at("rank_plan_digests"), Document({two_ranks().digest(), two_ranks().digest()}));
  const program::Trace trace = program::trace_from_document(
      parse_json(read_file(folder_ / "out/trace.json"), "trace.json"), "trace.json");
  EXPECT_EQ(trace.steps.size(), 3u);
  EXPECT_EQ(trace.program_digest, run.at("program_digest"));
  for (const program::Span& span : trace.spans) {
    EXPECT_GE(span.start, SimTime{});
    EXPECT_LE(span.end - SimTime{}, trace.steps[static_cast<std::size_t>(span.step)]);
  }
  std::ifstream metrics(folder_ / "out/metrics.jsonl");
  std::size_t lines = 0;
  for (std::string line; std::getline(metrics, line); ++lines) {
    EXPECT_EQ(parse_json(line, "metrics").at("loss"), run.at("losses").at(lines));
  }
  EXPECT_EQ(lines, 3u);
}

TEST_F(Worker, AnotherNumberOfRanksThanPlannedIsRefused) {
  const std::string plan = save("plan.yaml", two_ranks());
  const Outcome outcome = run_command(worker() + " launch " + plan + " --launch 3 -o " + output());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("tp 1 * cp 1 * dp 2 * pp 1 = 2 ranks, but 3 processes run"),
            std::string::npos)
      << outcome.text;
  EXPECT_FALSE(fs::exists(output()));
}

TEST_F(Worker, AnEditedPlanIsRefused) {
  const std::string plan = save("plan.yaml", two_ranks());
  std::string text = read_file(plan);
  const std::size_t at = text.find("global_batch_size: 8");
  ASSERT_NE(at, std::string::npos);
  write_file(plan, text.replace(at, 20, "global_batch_size: 4"));
  const Outcome outcome = run_command(worker() + " launch " + plan + " --launch 2 -o " + output());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("the plan was edited"), std::string::npos) << outcome.text;
}

TEST_F(Worker, RanksWithDifferentPlansEndAlikeAndNameBothDigests) {
  const planner::Plan plans[] = {two_ranks(1), two_ranks(2)};
  const int port = cli::free_port();
  Outcome outcomes[2];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string plan = save("plan" + std::to_string(rank) + ".yaml", plans[rank]);
    ranks.emplace_back([&outcomes, rank, port, plan, this] {
      outcomes[rank] =
          run_command("RANK=" + std::to_string(rank) +
                      " WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) +
                      " " + worker() + " run " + plan + " -o " + output());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, 2) << outcome.text;
    EXPECT_NE(outcome.text.find("rank 1 runs another plan"), std::string::npos) << outcome.text;
    for (const planner::Plan& plan : plans) {
      EXPECT_NE(outcome.text.find(plan.digest()), std::string::npos) << outcome.text;
    }
  }
}

TEST_F(Worker, WhenOneRankDiesTheOthersAreEndedAndTheCauseIsNamed) {
  planner::Plan plan = two_ranks();
  plan.training.steps = 100000;
  const std::string path = save("plan.yaml", plan);
  Outcome outcome;
  std::thread launch(
      [&] { outcome = run_command(worker() + " launch " + path + " --launch 2 -o " + output()); });
  std::map<std::string, pid_t> ranks;
  while (ranks.size() < 2) ranks = running_ranks(path);
  kill(ranks.at("1"), SIGKILL);
  launch.join();
  EXPECT_EQ(outcome.status, 1) << outcome.text;
  EXPECT_NE(outcome.text.find("rank 1 was ended by signal 9"), std::string::npos) << outcome.text;
  EXPECT_TRUE(running_ranks(path).empty());
}

TEST_F(Worker, MissingDataIsAnErrorThatNamesTheFile) {
  const std::string plan = save("plan.yaml", two_ranks());
  const Outcome outcome = run_command(worker() + " launch " + plan + " --launch 2 -o " + output() +
                                      " --data /nonexistent/text");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("/nonexistent/text"), std::string::npos) << outcome.text;
}

TEST_F(Worker, CalibrationDoesNotStartMoreProcessesThanAHostCanHold) {
  const Outcome outcome =
      run_command(worker() + " calibrate --processes 1000000 -o " + (folder_ / "p.yaml").string());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.text.find("--processes 1000000: at most 8 for each of this host's"),
            std::string::npos)
      << outcome.text;
  EXPECT_FALSE(fs::exists(folder_ / "p.yaml"));
}

TEST_F(Worker, CalibrationCoversEveryKernelOfThePlan) {
  planner::Plan plan = two_ranks();
  const std::string path = save("plan.yaml", plan);
  const fs::path profile_path = folder_ / "profile.yaml";
  const Outcome outcome =
      run_command(worker() + " calibrate --plan " + path + " -o " + profile_path.string());
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  const program::Profile profile = program::load_profile(profile_path);
  EXPECT_EQ(profile.processes, 2);
  expect_every_kernel(cli::make_job(plan).program, profile);
  const bool has_all_reduce = std::ranges::any_of(profile.transfers, [](const auto& timing) {
    return timing.kind == "all_reduce" && timing.ranks == 2 && timing.time > Duration(0);
  });
  EXPECT_TRUE(has_all_reduce);
}

/// `foresail run`, which starts the worker and answers.
class RunCommand : public Worker {
 protected:
  Outcome run(const std::string& options) {
    return run_command(std::string(FORESAIL_COMMAND) + " run " + save("plan.yaml", two_ranks()) +
                       " --launch 2 -o " + output() + " " + options);
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
};

TEST_F(RunCommand, WritesTheTraceForPerfettoAndTheTable) {
  const Outcome outcome =
      run("--trace " + file("t.perfetto.json") + " --report " + file("table") + " --quiet");
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  // Nothing but the answer, which the report repeats.
  EXPECT_EQ(outcome.text, contents(file("table")));
  const Document chrome = parse_json(contents(file("t.perfetto.json")), "t");
  const Document own = parse_json(contents(output() + "/trace.json"), "trace.json");
  EXPECT_GE(chrome.at("traceEvents").size(), own.at("spans").size());
  EXPECT_GT(own.at("spans").size(), 0u);
}

TEST_F(RunCommand, RefusesWhatItCannotWriteOrHasNoUseForBeforeItStarts) {
  for (const auto& [options, message] : std::vector<std::pair<std::string, std::string>>{
           {"--trace " + output() + "/trace.json", "named for two results"},
           {"--report " + file("plan.yaml"), "would be overwritten by its own result"},
           {"--trace /nonexistent/t", "--trace /nonexistent/t: cannot be written"},
           {"--seed 3", "not expected"},
           {"--threads 2", "not expected"},
           {"--steps 0", "--steps: \"0\" is no whole number from 1"}}) {
    const Outcome outcome = run(options);
    EXPECT_EQ(outcome.status, 2) << options;
    EXPECT_NE(outcome.text.find(message), std::string::npos) << options << ": " << outcome.text;
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
    EXPECT_FALSE(fs::exists(output())) << options;
  }
}

TEST(TraceRanks, AreAllOneByClassOrAList) {
  EXPECT_EQ(cli::parse_trace_ranks("all").kind, cli::TraceRanks::Kind::All);
  EXPECT_EQ(cli::parse_trace_ranks("class").kind, cli::TraceRanks::Kind::StageClass);
  EXPECT_EQ(cli::parse_trace_ranks("0,12").list, (std::vector<int>{0, 12}));
  EXPECT_THROW(cli::parse_trace_ranks("0,x"), Error);
  EXPECT_THROW(cli::parse_trace_ranks(""), Error);
}

TEST(FirstHost, IsTakenFromSlurmsNodeList) {
  EXPECT_EQ(cli::first_host("n[0-3,7]"), "n0");
  EXPECT_EQ(cli::first_host("gpu[012,044]"), "gpu012");
  EXPECT_EQ(cli::first_host("alpha,beta"), "alpha");
  EXPECT_EQ(cli::first_host("alpha"), "alpha");
}

}  // namespace
}  // namespace foresail::testing
