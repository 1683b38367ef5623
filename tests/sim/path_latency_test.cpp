// Cables and switches in the latency of collectives between nodes.
#include <gtest/gtest.h>

#include <chrono>

#include "foresail/sim/network.h"
#include "test_clusters.h"

namespace foresail::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using topologies::Algorithm;
using topologies::Cluster;

Duration latency_of(const Cluster::Options& options, Collective kind, Algorithm algorithm) {
  const Cluster cluster(options);
  topologies::NetworkOptions network;
  network.nccl.algorithm = algorithm;
  network.nccl.protocol = topologies::Protocol::Simple;
  if (kind == Collective::AllToAll) network.nccl = {};
  Network bench(cluster, network, nccl_pace(cluster.device()), 1);
  return bench.collective(kind, 8_B, test::first_devices(cluster.device_count()), 1).latency;
}

// What cables of this latency add to a collective of 8 bytes.
Duration added(Cluster::Options options, Collective kind, Algorithm algorithm, Duration cable) {
  options.fabric.link_latency = {};
  const Duration none = latency_of(options, kind, algorithm);
  options.fabric.link_latency = cable;
  return latency_of(options, kind, algorithm) - none;
}

TEST(PathLatency, AddsToEachStepWhatTheTablesDoNotAssume) {
  // Four nodes on one leaf: two cables of 1 s, less the 1.8 us that NCCL's tables assume. Rings
  // take 3 steps between nodes (all_reduce: 6), trees 2 log2(4); 31 peers are 4 batches.
  const Cluster::Options four = test::small_clos(4);
  const Duration step = std::chrono::seconds(2) - nanoseconds(1800);
  const Duration second = std::chrono::seconds(1);
  EXPECT_EQ(added(four, Collective::AllGather, Algorithm::Ring, second), 3 * step);
  EXPECT_EQ(added(four, Collective::AllReduce, Algorithm::Ring, second), 6 * step);
  EXPECT_EQ(added(four, Collective::Broadcast, Algorithm::Ring, second), 3 * step);
  EXPECT_EQ(added(four, Collective::AllReduce, Algorithm::Tree, second), 4 * step);
  EXPECT_EQ(added(four, Collective::AllReduce, Algorithm::Hierarchical, second), 6 * step);
  EXPECT_EQ(added(four, Collective::AllToAll, Algorithm::Auto, second), 4 * step);
}

TEST(PathLatency, AddsNothingWithinWhatTheTablesAssumeNorOnOneNode) {
  // Three switches, four cables of 450 ns: the path of the tables. Less never makes it faster.
  const Cluster::Options sixteen = test::small_clos(16);
  EXPECT_EQ(added(sixteen, Collective::AllReduce, Algorithm::Tree, nanoseconds(450)), Duration{});
  EXPECT_EQ(added(sixteen, Collective::AllGather, Algorithm::Ring, nanoseconds(100)), Duration{});
  // A ring of 16 nodes crosses leaves (4 us, 2.2 more than assumed) 4 times in 16 edges; a cable
  // within a leaf's nodes (2 us) has 0.2 us more: mean 0.7 us.
  EXPECT_EQ(added(sixteen, Collective::AllGather, Algorithm::Ring, microseconds(1)),
            15 * nanoseconds(700));
  EXPECT_EQ(added(sixteen, Collective::AllReduce, Algorithm::Tree, microseconds(1)),
            8 * nanoseconds(2200));
  EXPECT_EQ(added(test::small_clos(1), Collective::AllReduce, Algorithm::Ring, microseconds(1)),
            Duration{});
}

TEST(PathLatency, CablesOfAGraphHaveTheirOwn) {
  // A star of four nodes whose last cable takes 100 us. Two of four edges of the ring use it:
  // (2 * 0.2 + 2 * 99.2) / 4 us per step; a tree waits for it at each step.
  Cluster::Options star = test::small_clos(4);
  star.node.devices = 1;
  star.node.nics = 1;
  star.fabric = {};
  star.fabric.kind = topologies::FabricKind::Graph;
  star.fabric.graph.switches = {{"s", 1}};
  for (int node = 0; node < 4; ++node) {
    const Duration cable = microseconds(node == 3 ? 100 : 1);
    star.fabric.graph.cables.push_back({{node, 0, ""}, {-1, 0, "s"}, 200_Gbps, cable, 1});
  }
  Cluster::Options none = star;
  for (topologies::Cable& cable : none.fabric.graph.cables) cable.latency = {};
  const auto more = [&](Collective kind, Algorithm algorithm) {
    return latency_of(star, kind, algorithm) - latency_of(none, kind, algorithm);
  };
  EXPECT_EQ(more(Collective::AllGather, Algorithm::Ring), 3 * nanoseconds(49700));
  EXPECT_EQ(more(Collective::AllReduce, Algorithm::Tree), 4 * nanoseconds(99200));
  const auto message = [](const Cluster::Options& options) {
    const Cluster cluster(options);
    Network bench(cluster, {}, nccl_pace(cluster.device()), 1);
    return bench.message(DeviceId{2}, DeviceId{3}, 8_B).latency;
  };
  EXPECT_EQ(message(star) - message(none), nanoseconds(99200));
}

TEST(PathLatency, OfUnequalWaysIsTheSlowest) {
  // Two leaves, two spines, one of which is far: packets and hashes may meet it.
  Cluster::Options options = test::small_clos(2);
  options.node.devices = 1;
  options.node.nics = 1;
  options.fabric = {};
  options.fabric.kind = topologies::FabricKind::Graph;
  options.fabric.graph.switches = {{"a", 1}, {"b", 1}, {"near", 2}, {"far", 2}};
  auto& cables = options.fabric.graph.cables;
  const auto end = [](const char* name) { return topologies::CableEnd{-1, 0, name}; };
  cables = {{{0, 0, ""}, end("a"), 200_Gbps, microseconds(1), 1},
            {{1, 0, ""}, end("b"), 200_Gbps, microseconds(1), 1},
            {end("a"), end("near"), 200_Gbps, microseconds(1), 1},
            {end("b"), end("near"), 200_Gbps, microseconds(1), 1},
            {end("a"), end("far"), 200_Gbps, microseconds(20), 1},
            {end("b"), end("far"), 200_Gbps, microseconds(20), 1}};
  const Duration far = latency_of(options, Collective::AllGather, Algorithm::Ring);
  cables.resize(4);
  options.fabric.graph.switches.pop_back();
  const Duration near = latency_of(options, Collective::AllGather, Algorithm::Ring);
  EXPECT_EQ(far - near, microseconds(38));
}

}  // namespace
}  // namespace foresail::sim
