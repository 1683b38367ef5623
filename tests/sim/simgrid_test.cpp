#include <gtest/gtest.h>

#include <chrono>

#include "fat_tree.h"
#include "foresail/sim/paths.h"
#include "oracle_files.h"
#include "test_clusters.h"

// SimGrid's CM02 model: a flow waits for the latency of its path, then shares every link in inverse
// proportion to that latency.
namespace foresail::sim {
namespace {

using test::FatTree;
using test::OracleFlow;

constexpr double kAllowedUs = 3;

// Of these paths, of links of one latency each.
std::vector<double> cm02(FlowSet set) {
  for (PointToPointFlow& flow : set.flows) {
    Duration latency{};
    for (const std::uint32_t link : flow.links) latency += set.links[link].latency;
    flow.start = SimTime{} + latency;
    flow.share = 1e-6 / to_seconds(latency);
  }
  FlowSetOptions options;
  options.completion = Completion::LastByteSent;
  const FlowSetSummary summary = complete(set, options);
  std::vector<double> micros;
  for (std::size_t f = 0; f < set.flows.size(); ++f) {
    const Duration latency = set.flows[f].start - SimTime{};
    micros.push_back(1e6 * to_seconds(summary.completion[f] + latency));
  }
  return micros;
}

TEST(SimGrid, APermutationUnderDmodkMatchesFlowByFlow) {
  const std::vector<OracleFlow> oracle =
      test::read_oracle("simgrid/perm128_s1_10MB_100G.dmodk.csv");
  const FatTree tree(8, Bandwidth::gbps(100), std::chrono::microseconds(1));
  FlowSet set{tree.links(), {}};
  for (const OracleFlow& flow : oracle) {
    set.flows.push_back({tree.dmodk_path(flow.from, flow.to), Bytes(10'000'000)});
  }
  const std::vector<double> ours = cm02(set);
  double worst = 0;
  for (std::size_t f = 0; f < oracle.size(); ++f) {
    worst = std::max(worst, std::abs(ours[f] - oracle[f].completion_us));
    EXPECT_NEAR(ours[f], oracle[f].completion_us, kAllowedUs)
        << oracle[f].from << " -> " << oracle[f].to;
  }
  std::printf("SimGrid D-mod-k permutation of 128: largest difference %.3f us\n", worst);
}

// A cluster of 128 hosts on the same fat tree.
topologies::Cluster fat_tree_cluster() {
  topologies::Cluster::Options options = test::small_clos(128);
  options.node.devices = options.node.nics = 1;
  options.node.nic_bandwidth = options.fabric.uplink_bandwidth = Bandwidth::gbps(100);
  options.fabric.tiers = 3;
  options.fabric.rails = 1;
  options.fabric.nodes_per_leaf = options.fabric.leaf_uplinks = 4;
  options.fabric.leaves_per_pod = options.fabric.aggregation_uplinks = 4;
  options.fabric.link_latency = std::chrono::microseconds(1);
  return topologies::Cluster(options);
}

TEST(SimGrid, OurDModKRoutingOnAClusterMatchesFlowByFlow) {
  const std::vector<OracleFlow> oracle =
      test::read_oracle("simgrid/perm128_s1_10MB_100G.dmodk.csv");
  const topologies::Cluster cluster = fat_tree_cluster();
  topologies::NetworkOptions network;
  network.routing = topologies::Routing::DModK;
  FluidNetwork pipes;
  LineEfficiency line;
  line.fabric = 1;
  Paths paths(cluster, network, line, 1, pipes);
  FlowSet set;
  for (const OracleFlow& flow : oracle) {
    Load load;
    paths.add(DeviceId{flow.from}, DeviceId{flow.to}, 0, 1, load);
    PointToPointFlow made{{}, Bytes(10'000'000)};
    for (const auto& [pipe, weight] : load.pipes) made.links.push_back(pipe);
    set.flows.push_back(std::move(made));
  }
  set.links.assign(pipes.pipe_count(), {Bandwidth::gbps(100), std::chrono::microseconds(1)});
  const std::vector<double> ours = cm02(set);
  for (std::size_t f = 0; f < oracle.size(); ++f) {
    EXPECT_NEAR(ours[f], oracle[f].completion_us, kAllowedUs)
        << oracle[f].from << " -> " << oracle[f].to;
  }
}

// The file's times are equal, so the eight paths are equally long: hosts of one switch.
TEST(SimGrid, AnIncastOnOneSwitchMatchesFlowByFlow) {
  const std::vector<OracleFlow> oracle = test::read_oracle("simgrid/incast8_10MB_100G.csv");
  FlowSet set;
  set.links.assign(18, {Bandwidth::gbps(100), std::chrono::microseconds(1)});
  for (const OracleFlow& flow : oracle) {
    set.flows.push_back({{flow.from, 9 + flow.to}, Bytes(10'000'000)});
  }
  const std::vector<double> ours = cm02(set);
  for (std::size_t f = 0; f < oracle.size(); ++f) {
    EXPECT_NEAR(ours[f], oracle[f].completion_us, kAllowedUs) << oracle[f].from;
  }
}

}  // namespace
}  // namespace foresail::sim
