#include "foresail/topologies/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::HasSubstr;

/// Two-level tree: 4 nodes of 2 GPUs and 2 NICs, 2 nodes a leaf, 2 uplinks to 2 spines.
Cluster::Options two_level() {
  Cluster::Options options;
  options.name = "two_level";
  options.device.name = "gpu";
  options.device.nvlink = Bandwidth::gigabytes_per_second(300);
  options.node.devices = 2;
  options.node.nics = 2;
  options.node.nic_bandwidth = 200_Gbps;
  options.fabric.tiers = 2;
  options.fabric.nodes_per_leaf = 2;
  options.fabric.leaf_uplinks = 2;
  options.fabric.uplink_bandwidth = 400_Gbps;
  options.fabric.link_latency = std::chrono::microseconds(1);
  options.nodes = 4;
  return options;
}

std::string complaint(const Cluster::Options& options) {
  try {
    const Cluster cluster(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

TEST(Cluster, NumbersNodesFirstAndSwitchesByTier) {
  const Cluster cluster(two_level());
  ASSERT_EQ(cluster.vertices().size(), 4U * (2 + 1 + 2) + 2 + 2);
  std::vector<std::string> names;
  for (const Vertex& vertex : cluster.vertices()) names.push_back(vertex.name());
  names.erase(names.begin() + 10, names.begin() + 20);
  EXPECT_THAT(names, ::testing::ElementsAre("node0.gpu0", "node0.gpu1", "node0.nvswitch",
                                            "node0.nic0", "node0.nic1", "node1.gpu0", "node1.gpu1",
                                            "node1.nvswitch", "node1.nic0", "node1.nic1", "leaf0",
                                            "leaf1", "spine0", "spine1"));
}

TEST(Cluster, DevicesAreNumberedNodeByNode) {
  const Cluster cluster(two_level());
  ASSERT_EQ(cluster.device_count(), 8);
  for (int d = 0; d < 8; ++d) {
    const Vertex& vertex = cluster.vertices()[cluster.device_vertex(device_id(d))];
    EXPECT_EQ(vertex.kind, VertexKind::Device);
    EXPECT_EQ(vertex.node, d / 2);
    EXPECT_EQ(vertex.index, d % 2);
    EXPECT_EQ(cluster.node_of(device_id(d)), d / 2);
  }
}

TEST(Cluster, EveryCableHasTwoEqualDirections) {
  for (const char* name : {"{name: megascale, gpus: 4096}", "{name: selene, gpus: 640}", "host"}) {
    const Cluster cluster = cluster_of(name);
    for (std::uint32_t l = 0; l < cluster.links().size(); l += 2) {
      const Link& there = cluster.links()[LinkId{l}];
      const Link& back = cluster.links()[LinkId{l + 1}];
      ASSERT_EQ(there.from, back.to);
      ASSERT_EQ(there.to, back.from);
      ASSERT_EQ(there.bandwidth, back.bandwidth);
      ASSERT_EQ(there.latency, back.latency);
    }
  }
}

TEST(Cluster, OutLinksHoldEachLinkOnceInOrder) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 4096}");
  std::size_t seen = 0;
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const auto links = cluster.out_links(VertexId{v});
    EXPECT_TRUE(std::is_sorted(links.begin(), links.end()));
    for (const LinkId link : links) ASSERT_EQ(cluster.links()[link].from, VertexId{v});
    seen += links.size();
  }
  EXPECT_EQ(seen, cluster.links().size());
}

TEST(Cluster, LinkNamesAreUniqueWithParallelLinks) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 4096}");
  std::set<std::string> names;
  for (std::uint32_t l = 0; l < cluster.links().size(); ++l) {
    names.insert(cluster.link_name(LinkId{l}));
  }
  EXPECT_EQ(names.size(), cluster.links().size());
  EXPECT_TRUE(names.contains("node511.nic7->leaf63"));
  EXPECT_TRUE(names.contains("spine0->core0"));
  EXPECT_TRUE(names.contains("spine0->core0#1"));
}

TEST(Cluster, NicGoesToTheLeafOfItsRail) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 1024}");
  for (int d = 0; d < cluster.device_count(); ++d) {
    const LinkId uplink = cluster.out_links(cluster.nic_vertex(device_id(d))).back();
    const Vertex& leaf = cluster.vertices()[cluster.links()[uplink].to];
    EXPECT_EQ(leaf.index, d / 8 / 64 * 8 + d % 8);
  }
}

TEST(Cluster, TwoDevicesShareANicWhereThereAreHalfAsMany) {
  const Cluster cluster = cluster_of("{name: dgx_a100_roce4, gpus: 16}");
  const auto nic_name = [&](int device) {
    return cluster.vertices()[cluster.nic_vertex(device_id(device))].name();
  };
  EXPECT_EQ(nic_name(0), "node0.nic0");
  EXPECT_EQ(nic_name(1), "node0.nic0");
  EXPECT_EQ(nic_name(2), "node0.nic1");
  EXPECT_EQ(nic_name(15), "node1.nic3");
}

TEST(Cluster, NicLinksJoinADeviceAndItsNic) {
  const Cluster cluster(two_level());
  for (int d = 0; d < cluster.device_count(); ++d) {
    const Link& to = cluster.links()[cluster.to_nic(device_id(d))];
    const Link& from = cluster.links()[cluster.from_nic(device_id(d))];
    EXPECT_EQ(to.from, cluster.device_vertex(device_id(d)));
    EXPECT_EQ(to.to, cluster.nic_vertex(device_id(d)));
    EXPECT_EQ(from.from, to.to);
    EXPECT_EQ(from.to, to.from);
    EXPECT_EQ(to.bandwidth, 200_Gbps);
  }
}

TEST(Cluster, PathWithinANodeGoesOverItsNvswitch) {
  const Cluster cluster(two_level());
  const std::vector<LinkId> path = cluster.intra_node_path(device_id(3), device_id(2));
  ASSERT_EQ(path.size(), 2U);
  EXPECT_EQ(cluster.link_name(path[0]), "node1.gpu1->node1.nvswitch");
  EXPECT_EQ(cluster.link_name(path[1]), "node1.nvswitch->node1.gpu0");
  EXPECT_EQ(cluster.links()[path[0]].bandwidth, Bandwidth::gigabytes_per_second(300));
  EXPECT_THROW(cluster.intra_node_path(device_id(0), device_id(2)), ContractViolation);
  EXPECT_THROW(cluster.intra_node_path(device_id(0), device_id(0)), ContractViolation);
}

TEST(Cluster, ACpuHostIsAStarWithoutNics) {
  const Cluster cluster = cluster_of("{name: host, gpus: 3}");
  ASSERT_EQ(cluster.vertices().size(), 4U);
  EXPECT_EQ(cluster.vertices()[VertexId{3}].name(), "node0.host");
  EXPECT_EQ(cluster.links().size(), 6U);
  EXPECT_EQ(cluster.links()[cluster.intra_node_path(device_id(0), device_id(2))[0]].bandwidth,
            cluster.device().memory_bandwidth);
  EXPECT_THROW(cluster.nic_vertex(device_id(0)), ContractViolation);
}

TEST(Cluster, IdsBeyondTheClusterAreContractViolations) {
  const Cluster cluster(two_level());
  EXPECT_THROW(cluster.node_of(device_id(8)), ContractViolation);
  EXPECT_THROW(cluster.link_name(LinkId{100'000}), ContractViolation);
  EXPECT_THROW(cluster.out_links(VertexId{100'000}), ContractViolation);
}

TEST(Cluster, OneLeafNeedsNoSpine) {
  Cluster::Options options = two_level();
  options.nodes = 2;
  const Cluster cluster(options);
  EXPECT_EQ((*(cluster.vertices().end() - 1)).name(), "leaf0");
}

TEST(ClusterLaws, PartsMustFitTogether) {
  EXPECT_EQ(complaint(two_level()), "accepted");
  Cluster::Options options = two_level();
  options.fabric.rails = 3;
  EXPECT_EQ(complaint(options), "cluster two_level: fabric.rails 3 is not in 1..nics 2");

  options = two_level();
  options.node.nics = 3;
  EXPECT_THAT(complaint(options), HasSubstr("node.nics 3 is not in 0..devices 2"));

  options = two_level();
  options.fabric.tiers = 0;
  EXPECT_THAT(complaint(options), HasSubstr("node.nics 2 without a fabric"));

  options = two_level();
  options.fabric.tiers = 3;
  EXPECT_THAT(complaint(options), HasSubstr("three tiers need leaves_per_pod"));

  options = two_level();
  options.fabric.leaves_per_pod = 4;
  EXPECT_THAT(complaint(options), HasSubstr("need three tiers, not 2"));

  options = two_level();
  options.fabric.leaf_uplinks = 0;
  EXPECT_THAT(complaint(options), HasSubstr("2 tiers need leaf_uplinks"));

  options = two_level();
  options.device.nvlink = Bandwidth();
  EXPECT_THAT(complaint(options),
              HasSubstr("2 GPUs share a node, but device gpu states no nvlink"));

  options = two_level();
  options.node.cores = 4;
  EXPECT_THAT(complaint(options), HasSubstr("node.cores 4 is for CPU hosts only"));
}

TEST(ClusterLaws, OneTierIsOneLeaf) {
  Cluster::Options options = two_level();
  options.fabric.tiers = 1;
  options.fabric.leaf_uplinks = 0;
  EXPECT_THAT(complaint(options), HasSubstr("4 nodes, but the only leaf has nodes_per_leaf 2"));
  options.nodes = 2;
  EXPECT_EQ(complaint(options), "accepted");
  options.fabric.rails = 2;
  EXPECT_THAT(complaint(options), HasSubstr("NICs of different rails could never meet"));
}

// 2 nodes with 2 NICs of 200 Gb/s are 2 ports of 400 Gb/s; with the 2 uplinks a leaf needs 4.
TEST(ClusterLaws, SwitchesHaveTheirPortsAndNoMore) {
  Cluster::Options options = two_level();
  options.fabric.switch_ports = 4;
  EXPECT_EQ(complaint(options), "accepted");
  options.fabric.switch_ports = 3;
  EXPECT_EQ(complaint(options),
            "cluster two_level: a leaf has nodes_per_leaf 2 * 2 NICs of 200 Gb/s and 2 uplinks: 4 "
            "ports of 400 Gb/s, but a switch has 3");
  options.fabric.switch_ports = 4;
  options.nodes = 10;
  EXPECT_THAT(complaint(options), HasSubstr("10 nodes need 5 leaves below each spine"));

  options = two_level();
  options.fabric.switch_ports = 4;
  options.fabric.tiers = 3;
  options.fabric.leaves_per_pod = 3;
  options.fabric.aggregation_uplinks = 2;
  EXPECT_THAT(complaint(options),
              HasSubstr("leaves_per_pod 3 * 1 links and aggregation_uplinks 2: 5 ports"));
}

TEST(ClusterLaws, HugeClustersAreRefusedBeforeTheyAreBuilt) {
  Cluster::Options options = two_level();
  options.fabric.leaf_uplinks = 65'536;
  options.nodes = 100'000;
  EXPECT_THAT(complaint(options), HasSubstr("links; more than 8388608 are not supported"));
}

}  // namespace
}  // namespace foresail::topologies
