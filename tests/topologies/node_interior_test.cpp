#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(const Cluster& cluster, const std::vector<LinkId>& path) {
  std::vector<std::string> text;
  for (const LinkId link : path) text.push_back(cluster.link_name(link));
  return text;
}

/// Two nodes of 4 GPUs below 2 switches; the second switch has no NIC.
Cluster::Options lopsided() {
  Cluster::Options options = resolve_text("{name: leaf_spine, gpus: 16}");
  options.node.devices = 4;
  options.node.nics = 2;
  options.node.pcie.bandwidth = Bandwidth::gigabytes_per_second(25);
  options.node.pcie.switches = {{{0, 1}, {1, 0}}, {{2, 3}, {}}};
  return options;
}

std::string complaint(const Cluster::Options& options) {
  try {
    const Cluster cluster(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(NodeInterior, DgxA100HasTwoGpusAndTwoNicsPerSwitch) {
  const Cluster cluster = cluster_of("{name: dgx_a100_pcie, gpus: 16}");
  EXPECT_THAT(names(cluster, cluster.path_to_nic(device_id(11))),
              ElementsAre("node1.gpu3->node1.pcie1", "node1.pcie1->node1.nic3"));
  EXPECT_THAT(names(cluster, cluster.path_from_nic(device_id(11))),
              ElementsAre("node1.nic3->node1.pcie1", "node1.pcie1->node1.gpu3"));
  EXPECT_EQ(cluster.nic_vertex(device_id(11)), cluster.find_vertex("node1.nic3"));
  EXPECT_EQ(cluster.link_name(cluster.to_nic(device_id(11))), "node1.pcie1->node1.nic3");
  EXPECT_EQ(cluster.link_name(cluster.from_nic(device_id(11))), "node1.nic3->node1.pcie1");
  for (const LinkId link : cluster.path_to_nic(device_id(11))) {
    EXPECT_EQ(cluster.links()[link].bandwidth, Bandwidth::gigabytes_per_second(25));
  }
}

TEST(NodeInterior, HgxH100HasASwitchPerGpu) {
  const Cluster cluster = cluster_of("{name: hgx_h100_pcie, gpus: 8}");
  EXPECT_THAT(names(cluster, cluster.path_to_nic(device_id(7))),
              ElementsAre("node0.gpu7->node0.pcie7", "node0.pcie7->node0.nic7"));
}

// Latency from device to NIC is the same with and without PCIe in sight.
TEST(NodeInterior, LatencyToTheNicDoesNotDependOnTheDetail) {
  const auto latency = [](const Cluster& cluster) {
    Duration sum{};
    for (const LinkId link : cluster.path_to_nic(device_id(0))) {
      sum += cluster.links()[link].latency;
    }
    return sum;
  };
  EXPECT_EQ(latency(cluster_of("{name: hgx_h100_pcie, gpus: 8}")),
            latency(cluster_of("{name: dgx_h100, gpus: 8}")));
}

TEST(NodeInterior, WithoutGpuDirectDataBouncesThroughTheHost) {
  const Cluster cluster = cluster_of("{name: dgx_a100_pcie, gpus: 8}");
  EXPECT_THAT(names(cluster, cluster.path_to_nic(device_id(2), GpuDirect::Off)),
              ElementsAre("node0.gpu2->node0.pcie1", "node0.pcie1->node0.host",
                          "node0.host->node0.pcie1", "node0.pcie1->node0.nic2"));
  EXPECT_THAT(names(cluster, cluster.path_from_nic(device_id(2), GpuDirect::Off)),
              ElementsAre("node0.nic2->node0.pcie1", "node0.pcie1->node0.host",
                          "node0.host->node0.pcie1", "node0.pcie1->node0.gpu2"));
  const Cluster plain = cluster_of("{name: selene, gpus: 8}");
  EXPECT_THAT(names(plain, plain.path_to_nic(device_id(2))), ElementsAre("node0.gpu2->node0.nic2"));
  EXPECT_THAT(names(plain, plain.path_to_nic(device_id(2), GpuDirect::Off)),
              ElementsAre("node0.gpu2->node0.nic2", "node0.gpu2->node0.nic2"));
}

// Below a switch without NICs all are equally far: device d of 4 uses NIC floor(d * 2 / 4).
TEST(NodeInterior, AffinityIsTheNearestNic) {
  const Cluster cluster(lopsided());
  const auto nic = [&](int device) {
    return cluster.vertices()[cluster.nic_vertex(device_id(device))].index;
  };
  EXPECT_EQ(nic(0), 1);  // first of the switch's NICs as listed
  EXPECT_EQ(nic(1), 0);
  EXPECT_EQ(nic(2), 1);
  EXPECT_EQ(nic(3), 1);
  EXPECT_THAT(names(cluster, cluster.path_to_nic(device_id(3))),
              ElementsAre("node0.gpu3->node0.pcie1", "node0.pcie1->node0.host",
                          "node0.host->node0.pcie0", "node0.pcie0->node0.nic1"));
}

TEST(NodeInterior, DevicesMeetOnNvlinkElseOnPcieElseInTheHost) {
  Cluster::Options options = lopsided();
  const Cluster nvlink(options);
  EXPECT_THAT(names(nvlink, nvlink.intra_node_path(device_id(0), device_id(3))),
              ElementsAre("node0.gpu0->node0.nvswitch", "node0.nvswitch->node0.gpu3"));
  options.device.nvlink = Bandwidth();
  const Cluster pcie(options);
  EXPECT_THAT(names(pcie, pcie.intra_node_path(device_id(4), device_id(5))),
              ElementsAre("node1.gpu0->node1.pcie0", "node1.pcie0->node1.gpu1"));
  EXPECT_THAT(names(pcie, pcie.intra_node_path(device_id(0), device_id(3))),
              ElementsAre("node0.gpu0->node0.pcie0", "node0.pcie0->node0.host",
                          "node0.host->node0.pcie1", "node0.pcie1->node0.gpu3"));
  EXPECT_FALSE(pcie.find_vertex("node0.nvswitch").has_value());
}

TEST(NodeInterior, RoutesDoNotLeadThroughNodes) {
  const Cluster cluster(lopsided());
  const RouteCount count = count_routes(cluster, device_id(0), device_id(4));
  EXPECT_EQ(count.hops, 2);
  EXPECT_EQ(count.paths, 1);
}

TEST(NodeInterior, PartOfANodeKeepsTheSwitchesItUses) {
  const Cluster::Options options = resolve_text("{name: dgx_a100_pcie, gpus: 3}");
  EXPECT_EQ(options.node.nics, 3);
  EXPECT_EQ(options.fabric.rails, 3);
  ASSERT_EQ(options.node.pcie.switches.size(), 2U);
  EXPECT_THAT(options.node.pcie.switches[1].devices, ElementsAre(2));
  EXPECT_THAT(options.node.pcie.switches[1].nics, ElementsAre(2));
}

TEST(NodeInterior, EveryPartHasOnePlace) {
  Cluster::Options options = lopsided();
  EXPECT_EQ(complaint(options), "accepted");
  options.node.pcie.switches[1].devices = {2};
  EXPECT_EQ(complaint(options), "cluster leaf_spine: node.pcie places no device 3 of 4");
  options.node.pcie.switches[1].devices = {2, 3, 4};
  EXPECT_EQ(complaint(options),
            "cluster leaf_spine: node.pcie places device 4, but the node has 4");
  options.node.pcie.switches[1].devices = {2, 3, 1};
  EXPECT_EQ(complaint(options), "cluster leaf_spine: node.pcie places device 1 twice");
  options = lopsided();
  options.node.pcie.switches[0].nics = {1};
  EXPECT_EQ(complaint(options), "cluster leaf_spine: node.pcie places no nic 0 of 2");
  options = lopsided();
  options.node.pcie.bandwidth = Bandwidth();
  EXPECT_EQ(complaint(options), "cluster leaf_spine: node.pcie.bandwidth is missing");
}

}  // namespace
}  // namespace foresail::topologies
