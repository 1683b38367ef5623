#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "catalogue.h"
#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::topologies {
namespace {

int between(RandomStream& random, int low, int high) {
  return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
}

Cluster::Options random_fabric(RandomStream& random) {
  Cluster::Options options;
  options.name = "random";
  options.device.nvlink = 100_Gbps;
  options.node.devices = between(random, 1, 8);
  options.node.nics = between(random, 1, options.node.devices);
  options.node.nic_bandwidth = 200_Gbps;
  FabricSpec& fabric = options.fabric;
  fabric.tiers = between(random, 2, 3);
  fabric.rails = between(random, 1, options.node.nics);
  fabric.nodes_per_leaf = between(random, 1, 4);
  fabric.leaf_uplinks = between(random, 1, 6);
  fabric.uplink_bandwidth = 400_Gbps;
  fabric.switch_ports = random.below(2) == 0 ? 0 : 64;
  if (fabric.tiers == 3) {
    fabric.leaves_per_pod = between(random, 1, 6);
    fabric.aggregation_uplinks = between(random, 1, 6);
    fabric.pod_order = random.below(2) == 0 ? PodOrder::Group : PodOrder::Rail;
  }
  options.nodes = between(random, 1, 16);
  return options;
}

/// Hops from every vertex to `nic` over the fabric, found here without the tables.
std::vector<int> hops_to(const Cluster& cluster, VertexId nic) {
  std::vector<int> hops(cluster.vertices().size(), -1);
  hops[nic.value] = 0;
  std::deque<VertexId> queue = {nic};
  while (!queue.empty()) {
    const VertexId at = queue.front();
    queue.pop_front();
    if (at != nic && cluster.vertices()[at].kind == VertexKind::Nic) continue;  // NICs don't relay
    for (const LinkId id : cluster.out_links(at)) {
      const VertexId to = cluster.links()[id].to;
      const VertexKind kind = cluster.vertices()[to].kind;
      if (kind != VertexKind::Nic && kind != VertexKind::Switch) continue;
      if (hops[to.value] >= 0) continue;
      hops[to.value] = hops[at.value] + 1;
      queue.push_back(to);
    }
  }
  return hops;
}

// Independent search: next_hops are exactly the links that lead one hop closer, in link order.
TEST(Routes, NextHopsAreAllLinksThatLeadCloser) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random = Rng(seed).stream("fabric");
    const Cluster cluster(random_fabric(random));
    const VertexId target =
        cluster.nic_vertex(device_id(between(random, 0, cluster.device_count() - 1)));
    const std::vector<int> hops = hops_to(cluster, target);
    for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
      const VertexKind kind = cluster.vertices()[VertexId{v}].kind;
      if (kind != VertexKind::Nic && kind != VertexKind::Switch) continue;
      if (VertexId{v} == target) continue;
      ASSERT_GT(hops[v], 0) << "unreachable";
      std::vector<LinkId> closer;
      for (const LinkId id : cluster.out_links(VertexId{v})) {
        if (hops[cluster.links()[id].to.value] == hops[v] - 1) closer.push_back(id);
      }
      const auto found = cluster.next_hops(VertexId{v}, target);
      ASSERT_EQ(std::vector<LinkId>(found.begin(), found.end()), closer);
    }
  }
}

// MegaScale: same leaf 2 hops; same pod 4, over any of 32 spines; other pod 6, over 32 spines, then
// 32 uplinks (4 cores x 8 links), then any of the 8 links of that core down to the other pod.
TEST(Routes, MegaScaleHopsAndPathsByDistance) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 12288}");
  const auto expect = [&](int device, int hops, std::int64_t paths) {
    const RouteCount count = count_routes(cluster, device_id(0), device_id(device));
    EXPECT_EQ(count.hops, hops) << device;
    EXPECT_EQ(count.paths, paths) << device;
  };
  expect(63 * 8, 2, 1);             // last node of the leaf, same rail
  expect(1, 4, 32);                 // same node, other rail: over the spines
  expect(64 * 8, 4, 32);            // next group
  expect(255 * 8 + 7, 4, 32);       // last of the pod
  expect(256 * 8, 6, 32 * 32 * 8);  // next pod
  expect(1535 * 8 + 7, 6, 32 * 32 * 8);
}

// 98,304 GPUs: 32 cores a plane with one link to each of 48 pods.
TEST(Routes, FullMegaScaleHasOneLinkFromCoreToPod) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 98304}");
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(98'303)).paths, 32 * 32);
}

// Selene: rail pods of 20 groups. Same rail stays below the core for 400 nodes; rails meet above.
TEST(Routes, RailPodsKeepARailBelowTheCore) {
  const Cluster cluster = cluster_of("selene");
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(399 * 8)).hops, 4);
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(400 * 8)).hops, 6);
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(8 + 1)).hops, 6);
}

TEST(Routes, LatencyAndBandwidthStandOnThePath) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 4096}");
  VertexId at = cluster.nic_vertex(device_id(0));
  const VertexId target = cluster.nic_vertex(device_id(4095));
  std::vector<std::string> names = {cluster.vertices()[at].name()};
  Duration latency{};
  while (at != target) {
    const Link& link = cluster.links()[cluster.next_hops(at, target).front()];
    latency += link.latency;
    at = link.to;
    names.push_back(cluster.vertices()[at].name());
  }
  EXPECT_THAT(names, ::testing::ElementsAre("node0.nic0", "leaf0", "spine0", "core0", "spine32",
                                            "leaf63", "node511.nic7"));
  EXPECT_EQ(latency, std::chrono::microseconds(6));
}

TEST(Routes, CopiesShareTablesAndOutliveTheOriginal) {
  auto original = std::make_unique<Cluster>(resolve_text("{name: megascale, gpus: 4096}"));
  const RouteCount expected = count_routes(*original, device_id(0), device_id(4095));
  const Cluster copy = *original;
  original.reset();
  const RouteCount count = count_routes(copy, device_id(0), device_id(4095));
  EXPECT_EQ(count.paths, expected.paths);
  EXPECT_EQ(count_routes(copy, device_id(8), device_id(4088)).hops, 6);
}

TEST(Routes, ThreadsMayAskAtOnce) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 4096}");
  const auto sum_of_paths = [&cluster] {
    std::int64_t sum = 0;
    for (int d = 1; d < cluster.device_count(); d += 61) {
      sum += count_routes(cluster, device_id(0), device_id(d)).paths;
    }
    return sum;
  };
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::thread one([&] { first = sum_of_paths(); });
  std::thread other([&] { second = sum_of_paths(); });
  one.join();
  other.join();
  EXPECT_EQ(first, second);
  EXPECT_EQ(first, sum_of_paths());
}

TEST(Routes, OnlyNicsAndSwitchesHaveNextHops) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 512}");
  const VertexId nic = cluster.nic_vertex(device_id(0));
  EXPECT_THROW(cluster.next_hops(cluster.device_vertex(device_id(9)), nic), ContractViolation);
  EXPECT_THROW(cluster.next_hops(nic, nic), ContractViolation);
  EXPECT_THROW(cluster.next_hops(nic, cluster.device_vertex(device_id(9))), ContractViolation);
}

}  // namespace
}  // namespace foresail::topologies
