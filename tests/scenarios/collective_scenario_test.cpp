#include "foresail/scenarios/collective_scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CollectiveScenario load(const std::string& text) {
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / "collective_scenario_test" / test;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "scenario.yaml") << text;
  return load_collective(folder / "scenario.yaml");
}

std::string refusal(const std::string& text) {
  try {
    load(text);
  } catch (const Error& problem) {
    return problem.what();
  }
  return "accepted";
}

const std::string kHead = "foresail: 1\ncluster: {name: selene, gpus: 64}\n";

SweepOptions ring(int groups) {
  SweepOptions options;
  options.network.nccl.algorithm = topologies::Algorithm::Ring;
  options.network.nccl.protocol = topologies::Protocol::Simple;
  options.sizes = {Bytes(std::int64_t{1} << 40)};
  options.groups = groups;
  return options;
}

TEST(CollectiveScenario, IsRead) {
  const CollectiveScenario scenario =
      load(kHead +
           "collective: {operation: all_gather, min: 1 MiB, max: 4 MiB, groups: 8, devices: 32,\n"
           "             spread: random, seeds: 3}\n"
           "network: {routing: ecmp, lag: queue_affinity}\nseed: 7\n");
  EXPECT_EQ(scenario.sweep.operation, Operation::AllGather);
  EXPECT_EQ(scenario.sweep.sizes.size(), 3u);
  EXPECT_EQ(scenario.sweep.groups, 8);
  EXPECT_EQ(scenario.sweep.devices, 32);
  EXPECT_EQ(scenario.sweep.spread, Spread::Random);
  EXPECT_EQ(scenario.sweep.seeds, 3);
  EXPECT_EQ(scenario.sweep.seed, 7u);
  EXPECT_EQ(scenario.sweep.network.lag, topologies::Lag::QueueAffinity);
}

TEST(CollectiveScenario, ComplaintsNameLineAndKey) {
  const std::string wrong = kHead + "collective: {operation: all_reduce, min: 1 MiB, ";
  EXPECT_THAT(refusal(wrong + "max: soon}"),
              AllOf(HasSubstr(":3: collective.max"), HasSubstr("soon")));
  EXPECT_THAT(refusal(wrong + "max: 8}"), HasSubstr(":3: collective"));
  EXPECT_THAT(refusal(wrong + "max: 1 MiB, groups: 0}"), HasSubstr("collective.groups"));
  EXPECT_THAT(refusal(wrong + "max: 1 MiB, spread: thin}"), HasSubstr("not one of packed, random"));
  EXPECT_THAT(refusal(kHead), HasSubstr("collective"));
  EXPECT_THAT(refusal("foresail: 2\n"), HasSubstr(":1: foresail"));
}

TEST(Groups, OneForEachRailShareNothing) {
  // Group g is GPU g of every node: its ring has one NIC, of 24 GB/s.
  const topologies::Cluster cluster(
      load(kHead + "collective: {operation: all_reduce, min: 1, max: 1}").cluster);
  const Sweep one = sweep(cluster, ring(8));
  EXPECT_EQ(one.ranks, 8);
  EXPECT_NEAR(one.points[0].bus_bandwidth, 24, 0.1);
}

TEST(Groups, ThatDoNotDivideTheDevicesAreRefused) {
  const topologies::Cluster cluster(
      load(kHead + "collective: {operation: all_reduce, min: 1, max: 1}").cluster);
  EXPECT_THROW(sweep(cluster, ring(3)), Error);
  EXPECT_THROW(sweep(cluster, ring(64)), Error);
  SweepOptions large = ring(1);
  large.devices = 65;
  EXPECT_THROW(sweep(cluster, large), Error);
}

TEST(Spread, RandomDrawsOtherNodesForEverySeed) {
  const topologies::Cluster cluster(load("foresail: 1\ncluster: {name: dcn_plus, gpus: 512}\n"
                                         "collective: {operation: all_reduce, min: 1, max: 1}")
                                        .cluster);
  SweepOptions options = ring(8);  // rings through one NIC of every node: NVLink bounds none
  options.network.lag = topologies::Lag::QueueAffinity;
  options.devices = 448;
  options.spread = Spread::Random;
  options.seeds = 6;
  const SweepPoint drawn = sweep(cluster, options).points[0];
  EXPECT_LT(drawn.time_min, drawn.time_max);
}

}  // namespace
}  // namespace foresail::scenarios
