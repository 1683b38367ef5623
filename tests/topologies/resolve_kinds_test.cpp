#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kGraph = R"(switches: [{name: left}, {name: right}]
cables:
  - {from: node0.nic0, to: left, bandwidth: 100 Gb/s, latency: 1 us}
  - {from: node1.nic0, to: right, bandwidth: 100 Gb/s, latency: 1 us}
  - {from: left, to: right, bandwidth: 40 Gb/s, latency: 1 us, count: 2}
)";

/// A cluster of small nodes on the fabric, which starts at line 4.
std::string on(std::string_view fabric, int nodes = 2) {
  return "name: mine\nnodes: " + std::to_string(nodes) +
         "\nnode: {devices: 1, nics: 1, nic_bandwidth: 100 Gb/s}\nfabric: " + std::string(fabric) +
         "\ndevice: h100\n";
}

/// With PCIe written as `pcie`.
std::string with_pcie(std::string_view pcie) {
  return "name: mine\nnodes: 1\nnode: {devices: 2, nics: 1, nic_bandwidth: 100 Gb/s, pcie: " +
         std::string(pcie) + "}\nfabric: {tiers: 1, nodes_per_leaf: 1, link_latency: 1 us}\n" +
         "device: h100\n";
}

std::string complaint(const std::string& text) {
  try {
    resolve_text(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

constexpr std::string_view kDragonfly =
    "{kind: dragonfly, nics_per_router: 1, routers_per_group: 2, global_links: 1, groups: 3, "
    "local_bandwidth: 100 Gb/s, global_bandwidth: 50 Gb/s, link_latency: 1 us}";
constexpr std::string_view kTorus =
    "{kind: torus, dimensions: [2, 3], bandwidth: 100 Gb/s, link_latency: 1 us}";
constexpr std::string_view kDualTor =
    "{kind: clos, tiers: 3, nic_ports: 2, planes: 2, nodes_per_leaf: 1, leaf_uplinks: 2, "
    "uplink_bandwidth: 100 Gb/s, leaves_per_pod: 2, aggregation_uplinks: 1, "
    "aggregation_uplink_bandwidth: 50 Gb/s, link_latency: 1 us}";

TEST(ResolveKinds, EveryKindReadsBackEqual) {
  const std::string graph =
      "{graph: {switches: [{name: s, tier: 1}], cables: [{from: node0.nic0, to: s, "
      "bandwidth: 1 Gb/s, latency: 1 us}]}, link_latency: 2 us}";
  for (const std::string& text :
       {on(kDragonfly), on(kTorus), on(kDualTor), on(graph),
        with_pcie("{generation: 4, switches: [{devices: [0, 1], nics: [0]}]}"),
        with_pcie("{bandwidth: 13 GB/s, switches: [{devices: [1]}, {devices: [0], nics: [0]}]}")}) {
    const Cluster::Options options = resolve_text(text);
    const std::string yaml = to_yaml(to_document(options));
    EXPECT_EQ(resolve_cluster(Yaml::parse(yaml, "plan.yaml"), {}), options) << yaml;
  }
}

TEST(ResolveKinds, KeysReachTheirFields) {
  const FabricSpec dragonfly = resolve_text(on(kDragonfly)).fabric;
  EXPECT_EQ(dragonfly.kind, FabricKind::Dragonfly);
  EXPECT_EQ(dragonfly.dragonfly, (DragonflySpec{1, 2, 1, 3, 100_Gbps, 50_Gbps}));
  const FabricSpec torus = resolve_text(on(kTorus)).fabric;
  EXPECT_EQ(torus.torus, (TorusSpec{{2, 3}, 100_Gbps}));
  const FabricSpec dual = resolve_text(on(kDualTor)).fabric;
  EXPECT_EQ(dual.nic_ports, 2);
  EXPECT_EQ(dual.planes, 2);
  EXPECT_EQ(dual.aggregation_uplink_bandwidth, 50_Gbps);
  const PcieSpec pcie =
      resolve_text(with_pcie("{generation: 5, switches: [{devices: [0, 1], nics: [0]}]}"))
          .node.pcie;
  EXPECT_EQ(pcie.bandwidth, Bandwidth::gigabytes_per_second(52));
}

TEST(ResolveKinds, AGraphMayStandInAFileOfItsOwn) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("topologies_kinds_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "cables.yaml") << kGraph;
  std::ofstream(folder / "cluster.yaml") << on("{graph_file: cables.yaml}");
  const Cluster::Options options =
      resolve_cluster(Yaml::load(folder / "cluster.yaml"), {catalogue_folder()});
  std::filesystem::remove_all(folder);
  EXPECT_EQ(options.fabric.kind, FabricKind::Graph);
  EXPECT_EQ(options.fabric.graph.cables.size(), 3U);
  EXPECT_EQ(count_routes(Cluster(options), device_id(0), device_id(1)).paths, 2);
  // The plan holds the cables themselves.
  const std::string yaml = to_yaml(to_document(options));
  EXPECT_EQ(resolve_cluster(Yaml::parse(yaml, "plan.yaml"), {}), options) << yaml;
}

TEST(ResolveKinds, ComplaintsNameFileLineAndKey) {
  EXPECT_THAT(complaint(on("{kind: hypercube}")),
              StartsWith("test.yaml:4: fabric.kind: \"hypercube\" is not one of clos, dragonfly"));
  EXPECT_THAT(complaint(on("{kind: torus, rails: 2}")),
              StartsWith("test.yaml:4: fabric.rails: unknown key"));
  EXPECT_THAT(complaint(on("{kind: torus, dimensions: [], bandwidth: 1 Gb/s, link_latency: 1 us}")),
              StartsWith("test.yaml:4: fabric.dimensions: needs one to three sizes"));
  EXPECT_THAT(complaint(on("{kind: torus, dimensions: [2], bandwidth: 1 Gb/s}")),
              StartsWith("test.yaml:4: fabric: the key \"link_latency\" is missing"));
  EXPECT_THAT(complaint(on("{kind: dragonfly, nics_per_router: 1}")),
              HasSubstr("the key \"routers_per_group\" is missing"));
  EXPECT_THAT(complaint(on("{graph: {}, graph_file: x.yaml}")),
              StartsWith("test.yaml:4: fabric.graph_file: stands beside graph; give one of them"));
  EXPECT_THAT(
      complaint(on(kTorus, 7)),
      StartsWith("test.yaml:2: nodes: 7 nodes, but fabric.dimensions make 2 * 3 = 6 routers"));
  EXPECT_THAT(complaint(with_pcie("{generation: 4, bandwidth: 1 GB/s, switches: []}")),
              HasSubstr("node.pcie.bandwidth: stands beside generation; give one of them"));
  EXPECT_THAT(complaint(with_pcie("{generation: 7, switches: []}")),
              HasSubstr("node.pcie.generation: 7 is outside [3, 5]"));
  EXPECT_THAT(complaint(with_pcie("{generation: 4, switches: []}")),
              HasSubstr("node.pcie.switches: is empty"));
  EXPECT_THAT(complaint(with_pcie("{generation: 4, switches: [{gpus: [0]}]}")),
              HasSubstr("unknown key"));
  EXPECT_THAT(complaint(with_pcie("{generation: 4, switches: [{devices: [0], nics: [0]}]}")),
              StartsWith("test.yaml:3: node.pcie: places no device 1 of 2"));
}

}  // namespace
}  // namespace foresail::topologies
