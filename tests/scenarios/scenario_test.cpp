#include "foresail/scenarios/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "foresail/base/error.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A folder of this test alone: tests run beside each other.
std::filesystem::path folder() {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto path = std::filesystem::path(::testing::TempDir()) / "foresail_scenario_test" / name;
  std::filesystem::create_directories(path);
  return path;
}

// A legal scenario, with one line replaced.
class ScenarioText {
 public:
  ScenarioText() {
    lines_ = {"foresail: 1",
              "model: gpt_tiny",
              "cluster: {name: selene, gpus: 16}",
              "layout: {tp: 2, dp: 4, pp: 2, microbatch_size: 1}",
              "training: {global_batch_size: 16, sequence_length: 128, precision: bf16}",
              "network: {routing: ecmp}",
              "seed: 1"};
  }
  ScenarioText& replace(std::size_t line, const std::string& text) {
    lines_[line - 1] = text;
    return *this;
  }
  std::filesystem::path write() const {
    const auto path = folder() / "scenario_under_test.yaml";
    std::ofstream out(path);
    for (const std::string& line : lines_) out << line << "\n";
    return path;
  }

 private:
  std::vector<std::string> lines_;
};

std::string refusal(const ScenarioText& text) {
  try {
    load_scenario(text.write());
  } catch (const Error& problem) {
    return problem.what();
  }
  return "accepted";
}

TEST(Scenario, ALegalOneIsRead) {
  const Scenario scenario = load_scenario(ScenarioText().write());
  EXPECT_EQ(scenario.plan.layout.tp, 2);
  EXPECT_EQ(scenario.plan.cluster.nodes, 2);
  EXPECT_TRUE(planner::check(scenario.plan).is_feasible());
}

TEST(Scenario, UnknownKeyNamesFileLineAndNearestKey) {
  EXPECT_THAT(refusal(ScenarioText().replace(4, "layuot: {tp: 2}")),
              AllOf(HasSubstr("scenario_under_test.yaml:4"), HasSubstr("layuot: unknown key"),
                    HasSubstr("did you mean \"layout\"")));
  EXPECT_THAT(refusal(ScenarioText().replace(4, "layout: {tp: 2, dp: 4, pp: 2, zero: 1}")),
              HasSubstr(":4: layout.zero: unknown key"));
}

TEST(Scenario, MissingUnitIsRefused) {
  EXPECT_THAT(refusal(ScenarioText().replace(7, "stack: {host_per_kernel: 36}")),
              AllOf(HasSubstr(":7: stack.host_per_kernel"), HasSubstr("has no unit")));
}

TEST(Scenario, WrongTypeIsRefused) {
  EXPECT_THAT(refusal(ScenarioText().replace(4, "layout: {tp: two, dp: 4, pp: 2}")),
              HasSubstr(":4: layout.tp: expected an integer, got \"two\""));
  EXPECT_THAT(refusal(ScenarioText().replace(3, "cluster: [1, 2]")), HasSubstr(":3: cluster"));
  EXPECT_THAT(refusal(ScenarioText().replace(6, "network: {routing: magic}")),
              HasSubstr("\"magic\" is not one of ecmp, spray"));
}

TEST(Scenario, ImpossibleValueIsRefused) {
  EXPECT_THAT(refusal(ScenarioText().replace(4, "layout: {tp: 0, dp: 4, pp: 2}")),
              HasSubstr(":4: layout.tp"));
  EXPECT_THAT(refusal(ScenarioText().replace(3, "cluster: {name: selene, gpus: -8}")),
              HasSubstr(":3: cluster.gpus"));
  EXPECT_THAT(refusal(ScenarioText().replace(7, "seed: -1")), HasSubstr(":7: seed"));
}

TEST(Scenario, MissingFilesAndNamesAreRefused) {
  EXPECT_THAT(
      refusal(ScenarioText().replace(2, "model: ./no_such_model.yaml")),
      AllOf(HasSubstr("_test.yaml:2: model: "), HasSubstr("no_such_model.yaml: no such file")));
  EXPECT_THAT(
      refusal(ScenarioText().replace(3, "cluster: ./no_such_cluster.yaml")),
      AllOf(HasSubstr("_test.yaml:3: cluster: "), HasSubstr("no_such_cluster.yaml: no such file")));
  EXPECT_THAT(refusal(ScenarioText().replace(
                  4, "layout: {tp: 2, dp: 4, pp: 2, schedule: {file: no_such_order.yaml}}")),
              AllOf(HasSubstr("_test.yaml:4: layout.schedule.file: "),
                    HasSubstr("no_such_order.yaml: no such file")));
  EXPECT_THAT(refusal(ScenarioText().replace(2, "model: gpt9")), HasSubstr("gpt9"));
  EXPECT_THROW(load_scenario("/no/such/scenario.yaml"), Error);
}

TEST(Scenario, BrokenLawsAreAnAnswerWithEveryTerm) {
  const Scenario scenario =
      load_scenario(ScenarioText().replace(4, "layout: {tp: 2, dp: 4, pp: 4}").write());
  const Answer answer = simulate(scenario.plan, {});
  EXPECT_FALSE(answer.result.has_value());
  EXPECT_THAT(reasons(answer.feasibility),
              HasSubstr("tp 2 * cp 1 * pp 4 * dp 4 = 32, but the cluster has 16 devices"));
}

TEST(Scenario, OutOfMemoryIsAnAnswerWithItsParts) {
  const Scenario scenario =
      load_scenario(ScenarioText()
                        .replace(2, "model: gpt3_175b")
                        .replace(4, "layout: {tp: 8, dp: 1, pp: 2, microbatch_size: 1}")
                        .replace(5, "training: {global_batch_size: 16, sequence_length: 2048}")
                        .write());
  const Answer answer = simulate(scenario.plan, {});
  ASSERT_TRUE(answer.result.has_value());
  EXPECT_THAT(reasons(answer.feasibility),
              AllOf(HasSubstr("out of memory: stage 0 needs"), HasSubstr("of 80.0 GiB")));
}

TEST(Scenario, APlanFileGivesTheScenariosAnswer) {
  const Scenario scenario = load_scenario(ScenarioText().write());
  const auto path = folder() / "plan_under_test.yaml";
  planner::save_plan(scenario.plan, path);
  const Scenario again = load_scenario(path);
  EXPECT_TRUE(again.is_plan_file);
  const Answer a = simulate(scenario.plan, {});
  const Answer b = simulate(again.plan, {});
  EXPECT_EQ(a.result->iteration_time, b.result->iteration_time);
  EXPECT_EQ(a.result->plan_digest, b.result->plan_digest);
  EXPECT_EQ(a.trace.program_digest, b.trace.program_digest);
}

TEST(Scenario, ForesailDataComesFirst) {
  const auto data = folder() / "own_data";
  std::filesystem::create_directories(data / "models");
  std::ofstream(data / "models" / "gpt_tiny.yaml")
      << "name: mine\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 256\n";
  ::setenv("FORESAIL_DATA", data.c_str(), 1);
  const Scenario scenario = load_scenario(ScenarioText().write());
  ::unsetenv("FORESAIL_DATA");
  EXPECT_EQ(scenario.plan.model.layers, 2);
}

}  // namespace
}  // namespace foresail::scenarios
