// The command as a user meets it: exit statuses, one clear message, one JSON document.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "foresail/base/document.h"
#include "run_command.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using test::Outcome;

fs::path scratch(const std::string& name) {
  return fs::path(::testing::TempDir()) / name;
}

// A file of this test alone: tests run beside each other.
Outcome foresail(const std::string& arguments) {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  return test::run_command(arguments, scratch("command_stderr_" + name + ".txt"));
}

fs::path scenario(const std::string& layout) {
  const fs::path path = scratch("command_scenario.yaml");
  std::ofstream(path) << "foresail: 1\nmodel: gpt_tiny\ncluster: {name: selene, gpus: 16}\nlayout: "
                      << layout << "\ntraining: {global_batch_size: 16, sequence_length: 128}\n";
  return path;
}

constexpr const char* kLegal = "{tp: 2, dp: 4, pp: 2}";

TEST(Command, SimulateAnswersWithTheContractsKeys) {
  const Outcome outcome = foresail("simulate --json " + scenario(kLegal).string());
  ASSERT_EQ(outcome.status, 0) << outcome.error;
  const Document result = Document::parse(outcome.out);
  for (const char* key :
       {"iteration_time_s", "interval_50", "interval_90", "tokens_per_s", "tokens_per_s_per_gpu",
        "mfu", "hfu", "model_tflops_per_gpu", "memory_bytes", "breakdown_s", "network", "fidelity",
        "seed", "version", "plan_digest", "program_digest", "simulator"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  double sum = 0;
  for (const char* key : {"compute", "tp_exposed", "cp_exposed", "ep_exposed", "pp_exposed",
                          "dp_exposed", "bubble", "optimizer", "data", "other"}) {
    sum += result.at("breakdown_s").at(key).get<double>();
  }
  EXPECT_NEAR(sum, result.at("iteration_time_s").get<double>(), 1e-9);
  for (const char* key : {"events", "cpu_s", "wall_s", "peak_rss_bytes"}) {
    EXPECT_TRUE(result.at("simulator").contains(key)) << key;
  }
}

TEST(Command, InfeasibleIsStatusThreeWithReasonsAndWritesNothing) {
  const fs::path plan = scratch("command_none.yaml");
  const Outcome outcome =
      foresail("plan " + scenario("{tp: 3, dp: 4, pp: 2}").string() + " -o " + plan.string());
  EXPECT_EQ(outcome.status, 3);
  EXPECT_THAT(outcome.out, HasSubstr("heads 4 % tp 3 = 1, must be 0"));
  EXPECT_FALSE(fs::exists(plan));
}

TEST(Command, ACommandThatFailsLeavesNoneOfItsFiles) {
  const fs::path in = scratch("command_outputs");
  fs::remove_all(in);
  fs::create_directories(in);
  const std::string file = scenario(kLegal).string();
  const std::string absent = (in / "absent" / "x").string();
  for (const std::string& arguments :
       {"simulate " + file + " --trace " + (in / "t.json").string() + " --links " + absent,
        "simulate " + file + " --trace " + (in / "t.json").string() + " --report " + absent,
        "plan " + file + " --program " + (in / "p.txt").string() + " -o " + absent,
        "plan " + file + " -o " + (in / "p.yaml").string() + " --report " + absent}) {
    const Outcome outcome = foresail(arguments);
    EXPECT_NE(outcome.status, 0) << arguments;
    EXPECT_THAT(outcome.error, HasSubstr(absent + ": cannot write")) << arguments;
    EXPECT_TRUE(outcome.out.empty()) << arguments;
    EXPECT_TRUE(fs::is_empty(in)) << arguments;
  }
}

TEST(Command, WrongInputIsStatusTwoWithFileLineAndKey) {
  const Outcome outcome = foresail("simulate " + scenario("{tp: 2, dpp: 4}").string());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.error,
              HasSubstr("command_scenario.yaml:4: layout.dpp: unknown key; did you mean \"dp\"?"));
  EXPECT_TRUE(outcome.out.empty());
  EXPECT_EQ(foresail("simulate /no/such/file.yaml").status, 2);
  EXPECT_EQ(foresail("frobnicate").status, 2);
  EXPECT_EQ(foresail("simulate --fidelity packet " + scenario(kLegal).string()).status, 2);
  EXPECT_EQ(foresail("validate --rows " + scenario(kLegal).string()).status, 2);
}

TEST(Command, AWrongCommandLineIsOneLineThatSaysWhatIsWrong) {
  const std::string legal = scenario(kLegal).string();
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"forecast", "foresail: \"forecast\" is no command"},
           {"simulate", "foresail: scenario is required"},
           {"simulate --seeds 0 " + legal, "foresail: --seeds: \"0\" is no whole number from 1 to"},
           {"simulate --seeds 1e3 " + legal, "--seeds: \"1e3\" is no whole number"},
           {"plan --budget 5s -o p " + legal, "\"5s\" is no number of seconds above 0"},
           {"plan --budget 0 -o p " + legal, "\"0\" is no number of seconds above 0"},
           {"plan --budget nan -o p " + legal, "\"nan\" is no number of seconds above 0"},
           {"compare --seed 1 a b", "not expected"},
           {"simulate --report '' " + legal, "--report: is empty"},
           {"topology show ''", "is empty"},
           {"doctor --threads 2", "not expected"}}) {
    const Outcome outcome = foresail(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_THAT(outcome.error, HasSubstr(message));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
  }
}

TEST(Command, ALogOfValidationsIsAppendedToSuchATableAlone) {
  const fs::path rows = scratch("command_rows.csv");
  std::ofstream(rows) << "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,"
                         "sequence length,tensor parallelism,data parallelism,"
                         "pipeline parallelism,iteration time (ms)\n"
                         "2,16,8,1024,16,24,1024,1,1,2,372.2\n";
  const fs::path log = scratch("command_log.md");
  std::ofstream(log).close();  // an empty file is a new log
  const std::string arguments = "validate --rows " + rows.string() + " --fidelity analytic --log ";
  ASSERT_EQ(foresail(arguments + log.string()).status, 0);
  ASSERT_EQ(foresail(arguments + log.string()).status, 0);
  std::ifstream file(log);
  const std::string table{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4) << table;
  const Outcome other = foresail(arguments + scenario(kLegal).string());
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.error, HasSubstr("holds no such table"));
  const Outcome anchors_alone = foresail(arguments + log.string() + " --anchor 1");
  EXPECT_EQ(anchors_alone.status, 2);
  EXPECT_THAT(anchors_alone.error, HasSubstr("has no row to score"));
  EXPECT_EQ(table, read_file(log));
}

// What the scenario made of a job refuses is a fault of the job's file.
TEST(Command, AnImportThatIsRefusedNamesTheJobsFile) {
  const fs::path job = scratch("command_job.sh");
  std::ofstream(job) << "pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 7 "
                        "--seq-length 512 --micro-batch-size 1 --global-batch-size 8 --bf16\n";
  const fs::path made = scratch("command_job.yaml");
  fs::remove(made);
  const Outcome outcome = foresail("import --cluster dgx_h100 --gpus 8 --vocab 51200 --output " +
                                   made.string() + " " + job.string());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.error, HasSubstr("command_job.sh: the scenario made of it, not written, is"));
  EXPECT_THAT(outcome.error, HasSubstr("hidden 512 % heads 7"));
  EXPECT_FALSE(fs::exists(made));
}

std::string with_single_spaces(const std::string& line) {
  std::istringstream words(line);
  std::string text;
  for (std::string word; words >> word;) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Each line of the first example's output up to its "..."; the simulator's own times are left out.
TEST(Command, TheReadmesFirstExampleIsWhatIsPrinted) {
  const Outcome outcome = foresail("simulate --quiet " FORESAIL_SOURCE_DIR
                                   "/scenarios/megascale_175b_12288/scenario.yaml");
  ASSERT_EQ(outcome.status, 0) << outcome.error;
  std::string printed;
  std::istringstream output(outcome.out);
  for (std::string line; std::getline(output, line);) printed += with_single_spaces(line) + '\n';
  std::ifstream readme(FORESAIL_SOURCE_DIR "/README.md");
  std::string line;
  while (std::getline(readme, line) && !line.starts_with("step time")) {
  }
  int lines = 0;
  for (; readme && line != "```"; std::getline(readme, line)) {
    std::string wanted = with_single_spaces(line.substr(0, line.find("...")));
    if (wanted.starts_with("simulator")) wanted.resize(wanted.find(" events"));
    EXPECT_THAT(printed, HasSubstr(wanted));
    ++lines;
  }
  EXPECT_GT(lines, 15);
}

TEST(Command, PlanThenSimulateGivesTheScenariosStep) {
  const fs::path plan = scratch("command_plan.yaml");
  const fs::path file = scenario(kLegal);
  ASSERT_EQ(foresail("plan " + file.string() + " -o " + plan.string()).status, 0);
  const Document a = Document::parse(foresail("simulate --json " + file.string()).out);
  const Document b = Document::parse(foresail("simulate --json " + plan.string()).out);
  for (const char* key : {"iteration_time_s", "plan_digest", "program_digest"}) {
    EXPECT_EQ(a.at(key), b.at(key)) << key;
  }
  std::string edited = read_file(plan);
  edited.replace(edited.find("seed: 1"), 7, "seed: 2");
  write_file(plan, edited);
  const Outcome refused = foresail("simulate " + plan.string());
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.error, HasSubstr("the plan was edited"));
}

TEST(Command, SameInputSameBytes) {
  const fs::path first = scratch("first_trace.json");
  const fs::path second = scratch("second_trace.json");
  const std::string file = scenario(kLegal).string();
  ASSERT_EQ(foresail("simulate " + file + " --trace-ranks all --trace " + first.string()).status,
            0);
  ASSERT_EQ(
      foresail("simulate " + file + " --threads 3 --trace-ranks all --trace " + second.string())
          .status,
      0);
  EXPECT_EQ(read_file(first), read_file(second));
}

double children_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kStartSeconds = 0.5;  // instrumented
#else
constexpr double kStartSeconds = 0.020;  // the shell that starts it included
#endif

TEST(Command, StartsInUnderTwentyMillisecondsOfCpu) {
  double fastest = 1;
  for (int i = 0; i < 10; ++i) {
    const double before = children_cpu_seconds();
    ASSERT_EQ(foresail("--version").status, 0);
    fastest = std::min(fastest, children_cpu_seconds() - before);
  }
  EXPECT_LT(fastest, kStartSeconds);
}

}  // namespace
}  // namespace foresail
