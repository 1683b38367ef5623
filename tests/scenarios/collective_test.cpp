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
  EXPECT_EQ(parse_size("1.5K"), Bytes(1536));
  EXPECT_EQ(parse_size("2T"), 2048_GiB);
  EXPECT_EQ(parse_size("2 TiB"), 2048_GiB);
  EXPECT_EQ(parse_size("1P").count(), std::int64_t{1} << 50);
  for (const char* wrong :
       {"", "K", "-1", "8X", "1e30", "1e3", "0", "1.5", "2P", "inf", "nan", "8 8", "1iB", "0x8"}) {
    EXPECT_THROW(parse_size(wrong), Error) << wrong;
  }
  for (const double factor : {1.0, 0.5, -2.0, 1e308, HUGE_VAL, std::nan("")}) {
    EXPECT_THROW(sizes_between(8_B, 64_B, factor), Error) << factor;
  }
  EXPECT_EQ(element_count(Operation::AllGather, 1_KiB, 16), 16);
  EXPECT_EQ(element_count(Operation::AllGather, 8_B, 16), 0);
  EXPECT_EQ(element_count(Operation::AllReduce, 8_B, 16), 2);
  EXPECT_EQ(sizes_between(8_B, 64_B, 2).size(), 4u);
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
      EXPECT_THAT(problem.what(), HasSubstr("x.log: no line is a row of nccl-tests"));
    }
  }
}

TEST(NcclTestsLog, DamagedRowsAreSkippedWithTheirLineAndReason) {
  const std::string good = "1048576 262144 float sum -1 123.2 8.51 15.95 0 121.3 8.64 16.21 0\n";
  for (const auto& [damaged, reason] : {
           std::pair<std::string, std::string>{
               "2097152 524288 float sum -1 nan 14.24 26.70 0 147.1 14.26 26.72 0", "time is nan"},
           {"2097152 524288 float sum -1 -147 14.24 26.70 0 147.1 14.26 26.72 0", "time is -147"},
           {"2097152 524288 float sum -1 0 14.24 26.70 0 147.1 14.26 26.72 0", "time is 0"},
           {"2097152 524288 float sum -1 1e300 14.24 26.70 0 147.1 14.26 26.72 0", "1e300"},
           {"2097152 524288 float sum -1 147.2 inf 26.70 0 147.1 14.26 26.72 0", "algbw is inf"},
           {"2097152 524288 float sum -1 147.2 14.24 -1 0 147.1 14.26 26.72 0", "busbw is -1"},
           {"2097152 524288 float sum -1 147.2 14.24 1e300 0 147.1 14.26 26.72 0",
            "busbw is 1e300"},
           {"2097152 524288 float sum -1 147.2 99.24 26.70 0 147.1 14.26 26.72 0", "size over its"},
           {"0 0 float sum -1 147.2 0 0 0 147.1 0 0 0", "size is 0"},
           {"-8 2 float sum -1 147.2 0 0 0 147.1 0 0 0", "size is -8"},
           {"2305843009213693952 524288 float sum -1 147.2 14.24 26.70 0", "size is 23058"},
           {"2097152 524288 float sum -1 147.2 14.24 26.70 0 147.1 14.26 26.72", "time is -1"},
           {"2097152 524288 float sum -1 147.2 14.24 26.70 0 147.1", "time is -1"},
           {"2097152 524288 float sum -1 147.2 14.24 26.70", "time is -1"},
           {"2097152 524288 float sum 0 147.2 14.24 26.70", "time is 0"},
           {"2097152 524288 float sum 2 147.2 14.24 26.70", "size over its"},
           {"2097152 524288 float sum -1 147.2 14.2", "time is -1"},
           {"2097152 524288 float sum -1 147.2", "cut short"},
           {"2097152 524288 float", "cut short"},
       }) {
    const CollectiveLog log = parse_log("# head\n" + good + damaged + "\n", "x.log");
    EXPECT_EQ(log.rows.size(), 1u) << damaged;
    ASSERT_EQ(log.skipped.size(), 1u) << damaged;
    EXPECT_EQ(log.skipped[0].line, 3) << damaged;
    EXPECT_THAT(log.skipped[0].text, HasSubstr(reason)) << damaged;
    try {
      parse_log(damaged, "x.log");
      FAIL() << damaged;
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::InvalidInput);
      EXPECT_THAT(problem.what(), HasSubstr("line 1: ")) << damaged;
    }
  }
}

TEST(NcclTestsLog, WrongResultsAndRanksAreRead) {
  const CollectiveLog log = parse_log(
      "#  Rank  0 Group  0\n#  Rank  3 Group  0\n#  Rank  0 Group  0\n"
      "1048576 262144 float sum -1 123.2 8.51 15.95 0 121.3 8.64 16.21 12\n"
      "2097152 524288 float sum -1 147.2 14.24 26.70 N/A\n"
      "4194304 1048576 float sum 300.0 13.98 26.2 4e-07 300.0 13.98 26.2 4e-07\n",
      "x.log");
  EXPECT_EQ(log.ranks, 4);
  EXPECT_EQ(log.rows.size(), 3u);
  ASSERT_EQ(log.corruption.size(), 1u);
  EXPECT_EQ(log.corruption[0].line, 4);
  EXPECT_EQ(log.corruption[0].text, "12 wrong values at 1048576 bytes");
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
}

TEST(Compare, RemarksComeBeforeTheVerdict) {
  const Cluster cluster(cluster_options("{name: selene, gpus: 16}"));
  CollectiveLog log;
  log.file = "x.log";
  log.rows = {{1_MiB, 100, 10, 0}, {1_GiB, 1000, 0, 0}};  // 1.07 TB/s: NICs give 0.2
  log.operation = Operation::AllGather;
  log.skipped = {{12, "its time is nan"}};
  log.corruption = {{13, "5 wrong values at 8 bytes"}};
  const Comparison comparison = compare_log(log, cluster, {});
  EXPECT_THAT(comparison.remarks,
              ::testing::ElementsAre(
                  "skipped line 12: its time is nan",
                  "the log reports wrong results: data corruption (line 13: 5 wrong values at 8 "
                  "bytes)",
                  "the log is of all_gather, the prediction of all_reduce (--op)",
                  HasSubstr("above what any link of the cluster allows (400.0 GB/s)")));
  const Document document = to_document(comparison);
  EXPECT_EQ(document["skipped"][0]["line"], 12);
  EXPECT_EQ(document["has_wrong_results"], true);
  EXPECT_THAT(to_text(comparison), HasSubstr("x "));  // beyond 100 %: a factor
  EXPECT_THAT(to_text(comparison), ::testing::Not(HasSubstr("nan %")));
}

TEST(Compare, LinksAllowWhatIsPredictedOnEveryOperation) {
  for (const char* name :
       {"{name: selene, gpus: 8}", "{name: h200_roce_bf3, gpus: 8}", "{name: selene, gpus: 16}",
        "{name: h200_roce_bf3, gpus: 16}", "{name: selene, gpus: 64}"}) {
    const Cluster cluster(cluster_options(name));
    for (const Operation operation :
         {Operation::AllReduce, Operation::AllGather, Operation::ReduceScatter,
          Operation::Broadcast, Operation::AllToAll, Operation::SendRecv}) {
      SweepOptions options;
      options.operation = operation;
      options.sizes = {16_GiB};
      EXPECT_LE(sweep(cluster, options).points[0].bus_bandwidth,
                bus_bandwidth_max(cluster, operation))
          << name << to_string(operation);
    }
  }
}

TEST(Compare, FindsAConstantStartUp) {
  const Cluster cluster(cluster_options("{name: h200_roce_bf3, gpus: 16}"));
  CollectiveLog log = diagnosed(cluster, [](SweepOptions&) {}).log;
  for (LogRow& row : log.rows) row.time_us += 250;
  const Comparison comparison = compare_log(log, cluster, {});
  EXPECT_EQ(comparison.hypotheses.front().name, "slow_startup") << to_text(comparison);
  EXPECT_THAT(to_text(comparison), HasSubstr("fits best: slow start-up: +250."));
  EXPECT_LT(comparison.hypotheses.front().error, 0.002);
}

TEST(Sweep, PointToPointRefusesWhatItWouldIgnore) {
  const Cluster cluster(cluster_options("{name: selene, gpus: 16}"));
  const auto complaint = [&](Operation operation, auto&& set) {
    SweepOptions options;
    options.operation = operation;
    options.sizes = {1_MiB};
    set(options.network.nccl);
    try {
      sweep(cluster, options);
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return std::string();
  };
  using Nccl = topologies::NcclOptions;
  EXPECT_THAT(complaint(Operation::SendRecv, [](Nccl& n) { n.algorithm = Algorithm::Tree; }),
              HasSubstr("sendrecv by algorithm tree: it is pairwise"));
  EXPECT_THAT(
      complaint(Operation::SendRecv, [](Nccl& n) { n.protocol = topologies::Protocol::Ll; }),
      HasSubstr("sendrecv by protocol ll"));
  EXPECT_THAT(complaint(Operation::SendRecv, [](Nccl& n) { n.channels = 4; }),
              HasSubstr("number of channels"));
  EXPECT_THAT(
      complaint(Operation::AllToAll, [](Nccl& n) { n.protocol = topologies::Protocol::Ll128; }),
      HasSubstr("all_to_all by protocol ll128"));
  EXPECT_EQ(complaint(Operation::SendRecv, [](Nccl& n) { n.algorithm = Algorithm::Pairwise; }), "");
}

}  // namespace
}  // namespace foresail::scenarios
