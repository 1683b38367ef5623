#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

/// Switches of each tier.
std::map<int, int> switches_of(const Cluster& cluster) {
  std::map<int, int> count;
  for (const Vertex& vertex : cluster.vertices()) {
    if (vertex.kind == VertexKind::Switch) ++count[vertex.tier];
  }
  return count;
}

/// Ports that the fullest switch needs, a NIC slower than a port taking its part of one.
double ports_max(const Cluster& cluster, Bandwidth port) {
  double most = 0;
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    if (cluster.vertices()[VertexId{v}].kind != VertexKind::Switch) continue;
    double ports = 0;
    for (const LinkId link : cluster.out_links(VertexId{v})) {
      ports += cluster.links()[link].bandwidth.bytes_per_second() / port.bytes_per_second();
    }
    most = std::max(most, ports);
  }
  return most;
}

/// Bandwidth down and up of each switch below the top.
void expect_one_to_one(const Cluster& cluster, int top) {
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const Vertex& vertex = cluster.vertices()[VertexId{v}];
    if (vertex.kind != VertexKind::Switch || vertex.tier == top) continue;
    std::int64_t down = 0;
    std::int64_t up = 0;
    for (const LinkId id : cluster.out_links(VertexId{v})) {
      const Link& link = cluster.links()[id];
      const bool is_up = cluster.vertices()[link.to].tier > vertex.tier;
      (is_up ? up : down) += link.bandwidth.bits_per_second();
    }
    ASSERT_EQ(down, up) << vertex.name();
  }
}

TEST(Catalogue, HasTheDevicesOfTheDesign) {
  EXPECT_THAT(catalogue_names("devices"),
              ::testing::IsSupersetOf(
                  {"a100_40", "a100_80", "h100", "h200", "h800", "b200", "gb200", "cpu"}));
}

TEST(Catalogue, EveryDeviceIsNamedAsItsFileAndSaysWhereItsConstantsComeFrom) {
  for (const std::string& name : catalogue_names("devices")) {
    const DeviceSpec device =
        read_device(Yaml::load(catalogue_folder() / "devices" / (name + ".yaml")));
    EXPECT_EQ(device.name, name);
    EXPECT_FALSE(device.provenance.empty()) << name;
  }
}

TEST(Catalogue, EveryClusterIsNamedAsItsFileAndReadsBackEqual) {
  for (const std::string& name : catalogue_names("clusters")) {
    const Cluster::Options options = resolve_text(name);
    EXPECT_EQ(options.name, name);
    const Cluster cluster(options);
    EXPECT_GT(cluster.device_count(), 0);
    const std::string yaml = to_yaml(to_document(options));
    EXPECT_EQ(resolve_cluster(Yaml::parse(yaml, "plan.yaml"), {}), options) << yaml;
  }
}

// 1,536 nodes in 24 groups of 64, 8 leaves each; 6 pods of 32 leaves and 32 spines; 32 planes of 4
// cores, each core with 8 links to each of the 6 pods.
TEST(MegaScale, HasTheSwitchesFor12288Gpus) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 12288}");
  EXPECT_EQ(cluster.options().nodes, 1536);
  EXPECT_THAT(switches_of(cluster),
              ::testing::ElementsAre(std::pair{1, 192}, std::pair{2, 192}, std::pair{3, 128}));
  // Both directions of 2 x 12,288 cables in nodes, 12,288 to leaves, 2 x 6,144 between switches.
  EXPECT_EQ(cluster.links().size(), 2U * (2 * 12'288 + 12'288 + 2 * 6'144));
}

TEST(MegaScale, IsBuiltOf64PortSwitchesAndOneToOne) {
  for (const char* size : {"12288", "98304"}) {
    const Cluster cluster = cluster_of(std::string("{name: megascale, gpus: ") + size + "}");
    EXPECT_LE(ports_max(cluster, 400_Gbps), 64) << size;
    expect_one_to_one(cluster, 3);
  }
}

TEST(MegaScale, GrowsToTheRadixOfTheCore) {
  EXPECT_EQ(resolve_text("{name: megascale, gpus: 131072}").nodes, 16'384);
  try {
    resolve_text("{name: megascale, gpus: 131080}");
    FAIL() << "65 pods on 64 ports were accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "test.yaml:1: gpus: 16385 nodes need 65 pods below each core switch, but a switch has "
        "64 ports");
  }
}

TEST(MegaScale, OneGroupHasNoCore) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 512}");
  EXPECT_THAT(switches_of(cluster), ::testing::ElementsAre(std::pair{1, 8}, std::pair{2, 32}));
  expect_one_to_one(cluster, 2);
}

TEST(Catalogue, NoSwitchHasMorePortsThanItsKind) {
  EXPECT_LE(ports_max(cluster_of("selene"), 200_Gbps), 40);
  EXPECT_LE(ports_max(cluster_of("dgx_h100"), 400_Gbps), 64);
  EXPECT_LE(ports_max(cluster_of("dgx_a100_roce4"), 200_Gbps), 64);
  EXPECT_LE(ports_max(cluster_of("jeanzay_like"), 100_Gbps), 48);
}

TEST(Catalogue, FullTiersAreOneToOne) {
  expect_one_to_one(cluster_of("dgx_h100"), 3);
  expect_one_to_one(cluster_of("dgx_a100_roce4"), 2);
  expect_one_to_one(cluster_of("jeanzay_like"), 2);
  expect_one_to_one(cluster_of("gb200_nvl72"), 2);
  expect_one_to_one(cluster_of("{name: selene, gpus: 3200}"), 3);  // 20 groups: whole pods
}

}  // namespace
}  // namespace foresail::topologies
