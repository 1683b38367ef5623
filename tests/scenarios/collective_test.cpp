// nccl-tests without GPUs: bus bandwidth, logs, and what explains them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/collective_compare.h"
#include "foresail/scenarios/collective_log.h"
#include "foresail/scenarios/collective_sweep.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using topologies::Algorithm;
using topologies::Cluster;

Cluster::Options cluster_options(const std::string& text) {
  return topologies::resolve_cluster(Yaml::parse(text, "test"), data_folders().topologies);
}

SweepOptions large(Operation operation, Algorithm algorithm) {
  SweepOptions options;
  options.operation = operation;
  options.network.nccl.algorithm = algorithm;
  options.network.nccl.protocol = topologies::Protocol::Simple;
  options.sizes = {Bytes(std::int64_t{1} << 40)};
  return options;
}

TEST(BusBandwidth, OfAnEndlessRingIsItsNarrowestLink) {
  // busbw is made so that a ring shows its link, whatever the operation and the number of ranks:
  // 240 GB/s of an A100's NVLink, or 8 NICs of 24 GB/s.
  for (const int gpus : {2, 4, 8, 16, 64, 160}) {
    const Cluster cluster(cluster_options("{name: selene, gpus: " + std::to_string(gpus) + "}"));
    for (const Operation operation :
         {Operation::AllReduce, Operation::AllGather, Operation::ReduceScatter}) {
      const Sweep result = sweep(cluster, large(operation, Algorithm::Ring));
      const double link = gpus <= 8 ? 240 : 192;
      EXPECT_NEAR(result.points[0].bus_bandwidth / link, 1, 2e-3) << gpus;
    }
  }
}

TEST(BusBandwidth, OfSendrecvIsOneNic) {
  const Cluster cluster(cluster_options("{name: selene, gpus: 16}"));
  const Sweep result = sweep(cluster, large(Operation::SendRecv, Algorithm::Auto));
  EXPECT_NEAR(result.points[0].bus_bandwidth, 24, 0.05);
  EXPECT_EQ(result.points[0].bound, "NIC");
}

TEST(BusBandwidth, OfAllToAllIsLimitedByWhatLeavesTheNode) {
  // 24 of 32 parts leave by the GPU's NIC: algbw 24 GB/s * 32/24, busbw that times 31/32.
  const Cluster cluster(cluster_options("{name: selene, gpus: 32}"));
  const Sweep result = sweep(cluster, large(Operation::AllToAll, Algorithm::Auto));
  EXPECT_NEAR(result.points[0].bus_bandwidth, 24.0 * 31 / 24, 0.05);
}

TEST(Sweep, SaysWhatBoundsASize) {
  const Cluster cluster(cluster_options("{name: h200_roce_bf3, gpus: 16}"));
  SweepOptions options;
  options.sizes = {8_B, 8_GiB};
  const Sweep result = sweep(cluster, options);
  EXPECT_EQ(result.points[0].bound, "latency");
  EXPECT_EQ(result.points[1].bound, "NVLink");
  options.network.nccl.algorithm = Algorithm::Ring;
  EXPECT_EQ(sweep(cluster, options).points[1].bound, "NIC");
}

TEST(Sweep, SameInputSameTimesAndSeedsDiffer) {
  const Cluster cluster(cluster_options("{name: gb200_nvl72, gpus: 1152}"));
  SweepOptions options = large(Operation::AllReduce, Algorithm::Ring);
  const Duration first = sweep(cluster, options).points[0].time;
  EXPECT_EQ(sweep(cluster, options).points[0].time, first);
  options.seeds = 8;
  const SweepPoint many = sweep(cluster, options).points[0];
  EXPECT_LT(many.time_min, many.time_max);
  EXPECT_LE(many.time_min, many.time);
  EXPECT_GE(many.time_max, many.time);
}

TEST(Sizes, AreReadAsNcclTestsDoes) {
  EXPECT_EQ(parse_size("8"), 8_B);
  EXPECT_EQ(parse_size("512K"), 512_KiB);
  EXPECT_EQ(parse_size("16GiB"), 16_GiB);
  for (const char* wrong : {"", "K", "-1", "8X", "1e30"}) {
    EXPECT_THROW(parse_size(wrong), Error) << wrong;
  }
  EXPECT_EQ(sizes_between(8_B, 64_B, 2).size(), 4u);
  EXPECT_THROW(sizes_between(8_B, 64_B, 1), Error);
  EXPECT_THROW(sizes_between(64_B, 8_B, 2), Error);
}

TEST(NcclTestsLog, NewColumnsWithMpiPrefixesAndCommentsAreRead) {
  const CollectiveLog log = parse_log(
      "[1,0]<stdout>:# Collective test starting: all_gather_perf\n"
      "[1,0]<stdout>:#  Rank  0 Group  0 Pid 12 on node1 device  0 [0x00] NVIDIA H100\n"
      "[1,0]<stdout>:#  Rank  1 Group  0 Pid 13 on node1 device  1 [0x01] NVIDIA H100\n"
      "[1,0]<stdout>:#       size         count      type   redop    root     time\n"
      "[1,0]<stdout>:     1048576        262144     float     sum      -1    123.2    8.51   15.95"
      "      0    121.3    8.64   16.21      0\n"
      "node1: some warning about 12 things\n"
      "[1,0]<stdout>:     2097152        524288     float     sum      -1    147.2   14.24   26.70"
      "    N/A    147.1   14.26   26.72    N/A\n"
      "# Avg bus bandwidth    : 21.3\n",
      "log");
  EXPECT_EQ(log.operation, Operation::AllGather);
  EXPECT_EQ(log.ranks, 2);
  ASSERT_EQ(log.rows.size(), 2u);
  EXPECT_EQ(log.rows[0].size, 1_MiB);
  EXPECT_DOUBLE_EQ(log.rows[0].time_us, 123.2);
  EXPECT_DOUBLE_EQ(log.rows[1].bus_bandwidth, 26.7);
  EXPECT_DOUBLE_EQ(log.rows[1].in_place_time_us, 147.1);
}

TEST(NcclTestsLog, OldColumnsOneSetAndSrunPrefixesAreRead) {
  // No root, an error column; then one set alone; then out of place N/A.
  const CollectiveLog log = parse_log(
      "0:  1024  256  float  sum   45.06   0.02   0.04  0e+00   44.9   0.02  0.04  0e+00\n"
      "0:  2048  512  float  sum   46.00   0.04   0.08  0e+00\n"
      "4096  1024  int8  none  0  50.0  0.08  0.15  N/A\n"
      "8192  2048  bfloat16  sum  -1  N/A  N/A  N/A  N/A  60.5  0.13  0.25  0\n",
      "old.log");
  ASSERT_EQ(log.rows.size(), 4u);
  EXPECT_DOUBLE_EQ(log.rows[0].time_us, 45.06);
  EXPECT_DOUBLE_EQ(log.rows[1].bus_bandwidth, 0.08);
  EXPECT_DOUBLE_EQ(log.rows[2].time_us, 50.0);
  EXPECT_DOUBLE_EQ(log.rows[3].time_us, 60.5);
  EXPECT_DOUBLE_EQ(log.rows[3].bus_bandwidth, 0.25);
}

TEST(NcclTestsLog, GarbageGivesOneClearError) {
  for (const char* garbage :
       {"", "hello", "1 2 3 4 5 6 7 8 9", "8 2 float", "\x01\x02[[[:", "8 2 float sum -1 a b c"}) {
    try {
      parse_log(garbage, "x.log");
      FAIL() << garbage;
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::InvalidInput);
      EXPECT_THAT(problem.what(), AnyOf(HasSubstr("x.log: no line is a row of nccl-tests"),
                                        HasSubstr("x.log:1: a damaged row of nccl-tests")));
    }
  }
}

TEST(NcclTestsLog, DamagedRowsAreRefusedWithTheirLine) {
  const std::string good = "8 2 float sum -1 45.06 0.00 0.00 0 45.1 0.00 0.00 0\n";
  for (const char* row :
       {"16 4 float sum -1 nan 0.1 0.1 0", "16 4 float sum -1 -3 0.1 0.1 0",
        "16 4 float sum -1 1e300 0.1 0.1 0", "0 0 float sum -1 45 0.1 0.1 0",
        "16 4 float sum -1 45", "99999999999999999999999 4 float sum -1 45 0.1 0.1 0"}) {
    try {
      parse_log(good + row, "x.log");
      FAIL() << row;
    } catch (const Error& problem) {
      EXPECT_THAT(problem.what(), HasSubstr("x.log:2: a damaged row")) << row;
    }
  }
}

TEST(NcclTestsLog, WhatIsPrintedIsReadBack) {
  const Cluster cluster(cluster_options("{name: selene, gpus: 16}"));
  SweepOptions options;
  options.sizes = sizes_between(8_B, 1_GiB, 2);
  const Sweep printed = sweep(cluster, options);
  const CollectiveLog log = parse_log(to_text(printed), "log");
  EXPECT_EQ(log.operation, Operation::AllReduce);
  ASSERT_EQ(log.rows.size(), printed.points.size());
  for (std::size_t i = 0; i < log.rows.size(); ++i) {
    EXPECT_NEAR(log.rows[i].time_us / (to_seconds(printed.points[i].time) * 1e6), 1, 1e-3);
  }
}

// A log of `cluster` under `change`, compared with the cluster as it should be.
Comparison diagnosed(const Cluster& cluster, const std::function<void(SweepOptions&)>& change,
                     const SweepOptions& expected = {}) {
  SweepOptions real = expected;
  real.sizes = sizes_between(1_KiB, 4_GiB, 4);
  change(real);
  return compare_log(parse_log(to_text(sweep(cluster, real)), "log"), cluster, expected);
}

TEST(Compare, RecognisesEachChangeInItsOwnLog) {
  const Cluster cluster(cluster_options("{name: h200_roce_bf3, gpus: 64}"));
  const std::vector<std::pair<std::string, std::function<void(SweepOptions&)>>> changes = {
      {"slow_rail", [](SweepOptions& o) { o.impairment.nic_of_rail_0 = 0.5; }},
      {"slow_node", [](SweepOptions& o) { o.impairment.links_of_a_node = 2.0 / 3; }},
      {"missing_nic", [](SweepOptions& o) { o.impairment.nics_missing = 1; }},
      {"missing_half_nics", [](SweepOptions& o) { o.impairment.nics_missing = 4; }},
      {"no_gpudirect", [](SweepOptions& o) { o.network.nccl.gpudirect = false; }},
      {"tree", [](SweepOptions& o) { o.network.nccl.algorithm = Algorithm::Tree; }},
      {"ring", [](SweepOptions& o) { o.network.nccl.algorithm = Algorithm::Ring; }},
      {"ll_only", [](SweepOptions& o) { o.network.nccl.protocol = topologies::Protocol::Ll; }},
      {"simple_only",
       [](SweepOptions& o) { o.network.nccl.protocol = topologies::Protocol::Simple; }},
      {"no_nvls", [](SweepOptions& o) { o.network.nccl.nvls = false; }},
      {"half_channels", [](SweepOptions& o) { o.network.nccl.channels = 8; }},
  };
  for (const auto& [name, change] : changes) {
    const Comparison comparison = diagnosed(cluster, change);
    ASSERT_FALSE(comparison.hypotheses.empty());
    EXPECT_EQ(comparison.hypotheses.front().name, name) << to_text(comparison);
    EXPECT_LT(comparison.hypotheses.front().error, 0.002) << name;
  }
}

TEST(Compare, RecognisesCollisionsAndTheirAbsence) {
  // Racks on leaves of their own: every crossing is hashed.
  const Cluster cluster(cluster_options("{name: gb200_nvl72, gpus: 576}"));
  SweepOptions hashed;
  hashed.network.nccl.algorithm = Algorithm::Ring;
  SweepOptions sprayed = hashed;
  sprayed.network.routing = topologies::Routing::Spray;
  const Comparison without = diagnosed(
      cluster, [](SweepOptions& o) { o.network.routing = topologies::Routing::Spray; }, hashed);
  // Eight queue pairs spread this fabric's few rings as well: both fit, and the report says so.
  const auto spread =
      std::ranges::find(without.hypotheses, std::string("no_collisions"), &Hypothesis::name);
  ASSERT_NE(spread, without.hypotheses.end());
  EXPECT_LT(spread->error, 0.002) << to_text(without);
  EXPECT_TRUE(without.has_explanation());
  EXPECT_THAT(to_text(without), HasSubstr("spread over all paths"));
  const auto collide = [](SweepOptions& o) {
    o.network.routing = topologies::Routing::Ecmp;
    o.network.hash_seeds = topologies::HashSeeds::One;
    o.seed = 3;
  };
  const Comparison with = diagnosed(cluster, collide, sprayed);
  EXPECT_EQ(with.hypotheses.front().name, "collisions") << to_text(with);
}

TEST(Compare, SaysWhenNothingFitsAndWhenAllIsWell) {
  const Cluster cluster(cluster_options("{name: h200_roce_bf3, gpus: 16}"));
  const Comparison well = diagnosed(cluster, [](SweepOptions&) {});
  EXPECT_TRUE(well.is_as_expected());
  EXPECT_FALSE(well.has_explanation());
  EXPECT_THAT(to_text(well), HasSubstr("as expected"));
  CollectiveLog odd = well.log;
  for (LogRow& row : odd.rows) row.time_us *= 20;
  const Comparison nothing = compare_log(odd, cluster, {});
  EXPECT_FALSE(nothing.has_explanation());
  EXPECT_THAT(to_text(nothing), HasSubstr("nothing fits"));
}

TEST(Compare, FindsACliffAndThePartThatDiffers) {
  const Cluster cluster(cluster_options("{name: h200_roce_bf3, gpus: 16}"));
  CollectiveLog log = diagnosed(cluster, [](SweepOptions&) {}).log;
  for (LogRow& row : log.rows) {
    if (row.size >= 64_MiB) row.time_us *= 2;
  }
  const Comparison comparison = compare_log(log, cluster, {});
  EXPECT_EQ(comparison.cliff, 64_MiB);
  EXPECT_NEAR(comparison.cliff_ratio, 2, 0.01);
  ASSERT_EQ(comparison.differences.size(), 3u);
  EXPECT_NEAR(comparison.differences[0].ratio, 1, 0.01);
  EXPECT_NEAR(comparison.differences[2].ratio, 2, 0.01);
}

TEST(Compare, RefusesALogOfAnotherMachineOrOperation) {
  const Cluster cluster(cluster_options("{name: selene, gpus: 16}"));
  CollectiveLog log;
  log.file = "x.log";
  log.rows = {{1_MiB, 100, 10, 0}};
  log.ranks = 8;
  EXPECT_THROW(compare_log(log, cluster, {}), Error);
  log.ranks = 16;
  log.operation = Operation::AllGather;
  EXPECT_THROW(compare_log(log, cluster, {}), Error);
}

}  // namespace
}  // namespace foresail::scenarios
