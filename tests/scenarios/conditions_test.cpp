#include "foresail/scenarios/conditions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "foresail/base/error.h"
#include "foresail/report/result.h"
#include "foresail/scenarios/explain.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/seeds.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

// 16 GPUs of two nodes, with more lines.
std::filesystem::path write(const std::string& more, const std::string& name = "scenario.yaml",
                            const std::string& layout = "{tp: 2, dp: 4, pp: 2}") {
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto folder = std::filesystem::path(::testing::TempDir()) / "conditions_test" / test;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name) << "foresail: 1\nmodel: gpt_tiny\n"
                               << "cluster: {name: selene, gpus: 16}\nlayout: " << layout << "\n"
                               << "training: {global_batch_size: 16, sequence_length: 128}\n"
                               << more << "\n";
  return folder / name;
}

std::string refusal(const std::string& more) {
  try {
    load_scenario(write(more));
  } catch (const Error& problem) {
    return problem.what();
  }
  return "accepted";
}

Answer answer(const Scenario& scenario) {
  SimulateOptions options;
  options.conditions = &scenario.conditions;
  return simulate(scenario.plan, options);
}

TEST(Conditions, AreRead) {
  const Scenario scenario = load_scenario(
      write("jitter: {sigma: 0.01}\n"
            "faults: [{at: 1 s, for: 2 s, kind: link_degraded, target: node0.nic1, factor: 0.25}]\n"
            "traffic: [{pattern: incast, devices: \"0-2,9\", bytes: 1 MiB, at: 1 ms, gap: 2 ms}]"));
  const Conditions& conditions = scenario.conditions;
  EXPECT_EQ(conditions.jitter.sigma, 0.01);
  ASSERT_EQ(conditions.faults.size(), 1u);
  const sim::Fault expected{sim::FaultKind::LinkDegraded,
                            std::chrono::seconds(1),
                            std::chrono::seconds(2),
                            "node0.nic1",
                            0.25,
                            {}};
  EXPECT_EQ(conditions.faults[0], expected);
  ASSERT_EQ(conditions.traffic.size(), 1u);
  EXPECT_THAT(conditions.traffic[0].devices,
              ElementsAre(DeviceId{0}, DeviceId{1}, DeviceId{2}, DeviceId{9}));
}

TEST(Conditions, ComplaintsNameLineAndKey) {
  EXPECT_THAT(refusal("jitter: {sigma: 2}"), HasSubstr(":6: jitter.sigma: must be above 0"));
  EXPECT_THAT(refusal("jitter: some"), HasSubstr(":6: jitter: expected none or"));
  EXPECT_THAT(refusal("faults: [{kind: fire, target: x}]"), HasSubstr("\"fire\" is not one of"));
  EXPECT_THAT(refusal("faults: [{kind: gpu_slow, target: node7.gpu0}]"),
              AllOf(HasSubstr(":6: faults"), HasSubstr("has no such GPU")));
  EXPECT_THAT(refusal("faults: [{kind: link_down, target: leaf0->leaf1}]"),
              HasSubstr("has no such cable"));
  EXPECT_THAT(refusal("faults: [{kind: link_down, target: node0.nic0, factor: 0.5}]"),
              HasSubstr("says nothing about link_down"));
  EXPECT_THAT(refusal("faults: [{kind: link_flap, target: node0.nic0}]"),
              HasSubstr("needs a period"));
  EXPECT_THAT(refusal("faults: [{kind: gpu_slow, target: node0.gpu0, factor: 1.5}]"),
              HasSubstr("must be at least 0.0001 and less than 1"));
  EXPECT_THAT(refusal("faults: [{kind: link_down, target: node0.nic0, for: 0 s}]"),
              HasSubstr("must be positive"));
  EXPECT_THAT(refusal("faults: [{kind: nic_slow, target: leaf0->spine0}]"),
              HasSubstr("has no such NIC"));
  EXPECT_THAT(refusal("stack: {host_per_kernel: 2 s}"), HasSubstr("must not exceed 1 s"));
  EXPECT_THAT(refusal("traffic: [{pattern: ring, devices: \"0-16\", bytes: 1 MiB}]"),
              HasSubstr("within 0-15"));
  EXPECT_THAT(refusal("traffic: [{pattern: ring, devices: \"3,3\", bytes: 1 MiB}]"),
              HasSubstr("names 3 twice"));
  EXPECT_THAT(refusal("traffic: [{pattern: ring, devices: \"3\", bytes: 1 MiB}]"),
              HasSubstr("at least two"));
  EXPECT_THAT(refusal("placement: {first_device: 1}"), HasSubstr("first_device"));
  EXPECT_THAT(refusal("placement: {nodes: \"0\"}"), HasSubstr("8 devices for 16 ranks"));
  EXPECT_THAT(refusal("search: {tp: [1, 2]}"), HasSubstr(":6: search"));
  EXPECT_THAT(refusal("jobs: [{scenario: no_such.yaml}]"), HasSubstr("no_such.yaml"));
}

TEST(Placement, RandomKeepsNodesWholeAndDependsOnTheSeed) {
  const auto nodes_of = [](const planner::Plan& plan) {
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t r = 0; r < 16; ++r) {
      EXPECT_EQ(plan.placement.device_of[RankId{r}].value % 8, r % 8);
      nodes.push_back(plan.placement.device_of[RankId{r}].value / 8);
    }
    return nodes;
  };
  std::set<std::vector<std::uint32_t>> seen;
  for (int seed = 1; seed <= 16; ++seed) {
    const Scenario scenario =
        load_scenario(write("placement: random\nseed: " + std::to_string(seed)));
    seen.insert(nodes_of(scenario.plan));
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST(Placement, AJobMayBeSmallerThanItsCluster) {
  const Scenario scenario =
      load_scenario(write("placement: {first_device: 8}", "part.yaml", "{tp: 2, dp: 4}"));
  EXPECT_EQ(scenario.plan.placement.device_of[RankId{0}].value, 8u);
  ASSERT_TRUE(answer(scenario).result.has_value());
  // As a Plan it reads back, digest and all.
  const auto path = scenario.path.parent_path() / "plan.yaml";
  planner::save_plan(scenario.plan, path);
  EXPECT_EQ(load_scenario(path).plan.digest(), scenario.plan.digest());
}

TEST(Jobs, RunBesideEachOtherOnDevicesOfTheirOwn) {
  write("placement: {first_device: 8}", "other.yaml", "{tp: 2, dp: 4}");
  const auto mine = write("placement: packed\njobs: [{scenario: other.yaml, repeats: true}]",
                          "scenario.yaml", "{tp: 2, dp: 4}");
  const Scenario scenario = load_scenario(mine);
  ASSERT_EQ(scenario.conditions.jobs.size(), 1u);
  const Answer made = answer(scenario);
  ASSERT_TRUE(made.result.has_value());
  const Document& jobs = made.result->network.at("other_jobs");
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].at("job"), "other.yaml");
  EXPECT_GE(jobs[0].at("rounds").get<int>(), 1);  // the same job started at the same time
  EXPECT_THAT(report::to_text(*made.result), HasSubstr("rounds"));
  write("placement: {first_device: 7}", "other.yaml", "{tp: 2, dp: 4}");
  EXPECT_THROW(load_scenario(mine), Error);  // device 7 has a job already
}

TEST(Conditions, WhatTheStepIsOverTooSoonToMeetIsSaid) {
  write("placement: {first_device: 8}", "other.yaml", "{tp: 2, dp: 4}");
  const Scenario scenario = load_scenario(
      write("placement: packed\nfaults:\n  - {kind: link_down, target: node0.nic1, at: 1 h}\n"
            "  - {kind: gpu_slow, target: node0.gpu1, factor: 0.5}\n"
            "traffic: [{pattern: ring, devices: \"0-3\", bytes: 1 MiB, at: 2 h}]\n"
            "jobs: [{scenario: other.yaml, at: 3 h}]",
            "scenario.yaml", "{tp: 2, dp: 4}"));
  const Answer made = answer(scenario);
  ASSERT_TRUE(made.result.has_value());
  EXPECT_THAT(
      made.result->notes,
      IsSupersetOf({StartsWith("the fault link_down of node0.nic1 at 3600 s never happened: "),
                    StartsWith("the traffic ring at 7200 s never happened: "),
                    StartsWith("the start of job other.yaml at 10800 s never happened: ")}));
  EXPECT_THAT(made.result->notes, Not(Contains(HasSubstr("gpu_slow"))));
  EXPECT_EQ(made.result->network.at("other_jobs")[0].at("rounds"), 0);
  SimulateOptions options;
  options.conditions = &scenario.conditions;
  EXPECT_THAT(explain_step(scenario.plan, options).evidence,
              Contains(StartsWith("the fault link_down of node0.nic1 at 3600 s never happened: ")));
}

TEST(Seeds, TheDistributionDoesNotDependOnThreads) {
  const Scenario scenario = load_scenario(write("jitter: {sigma: 0.05}"));
  SimulateOptions options;
  options.conditions = &scenario.conditions;
  const SeedDistribution one = simulate_seeds(scenario.plan, options, 12, 1);
  const SeedDistribution four = simulate_seeds(scenario.plan, options, 12, 4);
  EXPECT_EQ(to_document(one), to_document(four));
  EXPECT_LT(one.quantile(0), one.quantile(1));
  EXPECT_LE(one.quantile(0.05), one.quantile(0.5));
  EXPECT_EQ(one.times.front().seed, 1u);
  EXPECT_EQ(one.times.front().iteration, answer(scenario).result->iteration_time);
}

Explanation explain(const std::string& name) {
  const Scenario scenario = load_scenario(std::filesystem::path(FORESAIL_SOURCE_DIR) / "scenarios" /
                                          "cluster_trouble" / (name + ".yaml"));
  SimulateOptions options;
  options.conditions = &scenario.conditions;
  return explain_step(scenario.plan, options);
}

std::string evidence_of(const Explanation& explanation) {
  std::string text;
  for (const std::string& line : explanation.evidence) text += line + "\n";
  return text;
}

// A dead link, a slow GPU, a swapped rail: each changes the answer, and explain names it first.
TEST(Explain, NamesTheCulprit) {
  const Explanation healthy = explain("healthy");
  EXPECT_TRUE(healthy.failure.empty());
  const Explanation dead = explain("dead_link");
  ASSERT_FALSE(dead.causes.empty());
  EXPECT_EQ(dead.causes.front().name, "link_down node3.nic0");
  EXPECT_EQ(dead.causes.front().cost, dead.iteration - healthy.iteration);
  EXPECT_GT(dead.causes.front().cost, std::chrono::seconds(1));
  EXPECT_THAT(evidence_of(dead), HasSubstr("waited for a retry"));

  const Explanation slow = explain("slow_gpu");
  EXPECT_EQ(slow.causes.front().name, "gpu_slow node3.gpu5");
  EXPECT_EQ(slow.causes.front().cost, slow.iteration - healthy.iteration);
  EXPECT_THAT(evidence_of(slow), HasSubstr("(node3) computes 11.1 % longer than the median"));

  const Explanation swapped = explain("swapped_rail");
  // The fabric has room: that its rails cross costs less than what collides anyway.
  const auto culprit = std::ranges::find_if(swapped.causes, [](const Cause& cause) {
    return cause.name == "wiring: swap node3.nic0 with node3.nic1";
  });
  ASSERT_NE(culprit, swapped.causes.end());
  EXPECT_GT(culprit->cost, Duration{});
  EXPECT_EQ(culprit->cost, swapped.iteration - healthy.iteration);
  EXPECT_THAT(evidence_of(swapped), HasSubstr("rail_swap: node3.nic0 and node3.nic1 are swapped"));
}

TEST(Explain, AJobThatFailsSaysWhatWouldKeepItAlive) {
  const Scenario scenario = load_scenario(write("faults: [{kind: link_down, target: node0.nic0}]"));
  SimulateOptions options;
  options.conditions = &scenario.conditions;
  EXPECT_THAT(simulate(scenario.plan, options).failure, HasSubstr("NCCL aborts"));
  const Explanation explanation = explain_step(scenario.plan, options);
  EXPECT_THAT(explanation.failure, HasSubstr("NCCL aborts"));
  EXPECT_EQ(explanation.causes.front().name, "link_down node0.nic0");
  EXPECT_THAT(explanation.causes.front().detail, HasSubstr("the step ends after"));
}

}  // namespace
}  // namespace foresail::scenarios
