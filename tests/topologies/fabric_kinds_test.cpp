#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::HasSubstr;

std::map<int, int> switches_of(const Cluster& cluster) {
  std::map<int, int> count;
  for (const Vertex& vertex : cluster.vertices()) {
    if (vertex.kind == VertexKind::Switch) ++count[vertex.tier];
  }
  return count;
}

Cluster::Options one_gpu_nodes(int nodes) {
  Cluster::Options options;
  options.name = "small";
  options.node = {.devices = 1, .nics = 1, .nic_bandwidth = 100_Gbps, .cores = 0};
  options.device.nvlink = 100_Gbps;
  options.fabric.link_latency = std::chrono::microseconds(1);
  options.nodes = nodes;
  return options;
}

Cluster::Options fat_tree(int k) {
  Cluster::Options options = one_gpu_nodes(k * k * k / 4);
  FabricSpec& fabric = options.fabric;
  fabric.tiers = 3;
  fabric.nodes_per_leaf = k / 2;
  fabric.leaf_uplinks = k / 2;
  fabric.leaves_per_pod = k / 2;
  fabric.aggregation_uplinks = k / 2;
  fabric.switch_ports = k;
  fabric.uplink_bandwidth = 100_Gbps;
  return options;
}

Cluster::Options dragonfly(int p, int a, int h, int groups) {
  Cluster::Options options = one_gpu_nodes(p * a * groups);
  options.fabric.kind = FabricKind::Dragonfly;
  options.fabric.dragonfly = {p, a, h, groups, 100_Gbps, 200_Gbps};
  return options;
}

Cluster::Options torus(std::vector<int> dimensions) {
  int nodes = 1;
  for (const int size : dimensions) nodes *= size;
  Cluster::Options options = one_gpu_nodes(nodes);
  options.fabric.kind = FabricKind::Torus;
  options.fabric.torus = {std::move(dimensions), 100_Gbps};
  return options;
}

int routers_between(const Cluster& cluster, int from, int to) {
  return count_routes(cluster, device_id(from), device_id(to)).hops - 2;
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

// Al-Fares: k^3/4 hosts, k^2/2 leaves, k^2/2 aggregation switches, k^2/4 cores; (k/2)^2 paths
// between pods, k/2 within one.
TEST(FatTree, HasTheSwitchesAndPathsOfItsFormulas) {
  for (const int k : {2, 4, 8, 12}) {
    SCOPED_TRACE(k);
    const Cluster cluster(fat_tree(k));
    EXPECT_THAT(switches_of(cluster),
                ::testing::ElementsAre(std::pair{1, k * k / 2}, std::pair{2, k * k / 2},
                                       std::pair{3, k * k / 4}));
    const RouteCount far = count_routes(cluster, device_id(0), device_id(k * k * k / 4 - 1));
    EXPECT_EQ(far.hops, 6);
    EXPECT_EQ(far.paths, k * k / 4);
    if (k == 2) continue;  // one leaf per pod
    const RouteCount near = count_routes(cluster, device_id(0), device_id(k / 2));
    EXPECT_EQ(near.hops, 4);
    EXPECT_EQ(near.paths, k / 2);
  }
}

// Kim et al.: a balanced dragonfly has a p (a h + 1) hosts on routers of p + h + a - 1 ports, any
// two of them at most local - global - local apart.
TEST(Dragonfly, IsAtMostThreeRouterHopsWide) {
  for (const int p : {1, 2, 3}) {
    SCOPED_TRACE(p);
    const int a = 2 * p;
    const Cluster cluster(dragonfly(p, a, p, a * p + 1));
    EXPECT_EQ(cluster.device_count(), a * p * (a * p + 1));
    int farthest = 0;
    for (int d = 1; d < cluster.device_count(); ++d) {
      farthest = std::max(farthest, routers_between(cluster, 0, d));
    }
    EXPECT_EQ(farthest, 3);
    for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
      if (cluster.vertices()[VertexId{v}].kind != VertexKind::Switch) continue;
      ASSERT_EQ(cluster.out_links(VertexId{v}).size(), static_cast<std::size_t>(p + p + a - 1));
    }
  }
}

// 3 groups of 4 routers with 2 global ports: 8 ports for 2 other groups, so 4 cables to each.
TEST(Dragonfly, SpreadsGlobalPortsEvenlyOverTheOtherGroups) {
  const Cluster cluster(dragonfly(1, 4, 2, 3));
  std::map<std::pair<int, int>, int> between;
  for (const Link& link : cluster.links()) {
    const Vertex& from = cluster.vertices()[link.from];
    const Vertex& to = cluster.vertices()[link.to];
    if (from.kind != VertexKind::Switch || to.kind != VertexKind::Switch) continue;
    if (from.index / 4 == to.index / 4) continue;
    EXPECT_EQ(link.bandwidth, 200_Gbps);
    ++between[{from.index / 4, to.index / 4}];
  }
  EXPECT_EQ(between.size(), 6U);
  for (const auto& [groups, cables] : between) EXPECT_EQ(cables, 4);
}

// A ring of n has diameter floor(n / 2); dimensions add.
TEST(Torus, DiameterIsTheSumOfHalfTheDimensions) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{7}, {4, 4}, {2, 3, 5}, {4, 1, 6}, {2, 2, 2}}) {
    const Cluster cluster(torus(sizes));
    int diameter = 0;
    for (const int size : sizes) diameter += size / 2;
    int farthest = 0;
    for (int d = 1; d < cluster.device_count(); ++d) {
      farthest = std::max(farthest, routers_between(cluster, 0, d));
    }
    EXPECT_EQ(farthest, diameter);
  }
}

// 4 x 4 x 4: one cable per node and dimension. From corner to the middle there are 2 steps in each
// of 3 dimensions: 6! / (2! 2! 2!) = 90 orders, 2 directions in each: 720 paths.
TEST(Torus, CountsCablesAndPaths) {
  const Cluster cluster(torus({4, 4, 4}));
  std::size_t between = 0;
  for (const Link& link : cluster.links()) {
    const bool is_between = cluster.vertices()[link.from].kind == VertexKind::Switch &&
                            cluster.vertices()[link.to].kind == VertexKind::Switch;
    between += is_between ? 1 : 0;
  }
  EXPECT_EQ(between, 2U * 64 * 3);
  const RouteCount count = count_routes(cluster, device_id(0), device_id(2 + 4 * 2 + 16 * 2));
  EXPECT_EQ(count.hops, 2 + 6);
  EXPECT_EQ(count.paths, 90 * 8);
}

TEST(Torus, ADimensionOfTwoHasOneCable) {
  const Cluster cluster(torus({2}));
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(1)).paths, 1);
}

// A segment: 1,024 GPUs on 16 ToRs with 128 links of 200 Gb/s down and 60 of 400 Gb/s up; 15
// segments are one pod of 2 x 60 aggregation switches with 120 links down.
TEST(Hpn, HasThePublishedSegment) {
  const Cluster cluster = cluster_of("hpn");
  EXPECT_EQ(cluster.device_count(), 15'360);
  EXPECT_THAT(switches_of(cluster), ::testing::ElementsAre(std::pair{1, 240}, std::pair{2, 120}));
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const Vertex& vertex = cluster.vertices()[VertexId{v}];
    if (vertex.kind != VertexKind::Switch) continue;
    std::map<std::int64_t, int> ports;
    for (const LinkId link : cluster.out_links(VertexId{v})) {
      ++ports[cluster.links()[link].bandwidth.bits_per_second() / 1'000'000'000];
    }
    if (vertex.tier == 1) {
      ASSERT_THAT(ports, ::testing::ElementsAre(std::pair{200, 128}, std::pair{400, 60}));
    } else {
      ASSERT_THAT(ports, ::testing::ElementsAre(std::pair{400, 120}));
    }
  }
  const Cluster pods = cluster_of("{name: hpn, gpus: 30720}");
  EXPECT_THAT(switches_of(pods),
              ::testing::ElementsAre(std::pair{1, 480}, std::pair{2, 240}, std::pair{3, 120}));
}

TEST(Hpn, ANicReachesItsTwoTorsAndEachTorOnlyItsPlane) {
  const Cluster cluster = cluster_of("{name: hpn, gpus: 3072}");
  const VertexId nic = cluster.nic_vertex(device_id(3));
  const auto ports = cluster.nic_ports(nic);
  ASSERT_EQ(ports.size(), 2U);
  EXPECT_EQ(cluster.link_name(ports[0]), "node0.nic3->leaf6");
  EXPECT_EQ(cluster.link_name(ports[1]), "node0.nic3->leaf7");
  EXPECT_EQ(cluster.links()[ports[0]].bandwidth, 200_Gbps);
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const Vertex& vertex = cluster.vertices()[VertexId{v}];
    if (vertex.kind != VertexKind::Switch || vertex.tier != 1) continue;
    for (const LinkId link : cluster.out_links(VertexId{v})) {
      const Vertex& to = cluster.vertices()[cluster.links()[link].to];
      const bool is_up = to.tier == 2;
      ASSERT_TRUE(!is_up || to.index / 60 == vertex.index % 2) << vertex.name();
    }
  }
}

// Same rail and segment: over either ToR. Other segment: 60 aggregation switches of each plane.
TEST(Hpn, RoutesStayInThePlaneOfTheFirstPort) {
  const Cluster cluster = cluster_of("{name: hpn, gpus: 3072}");
  RouteCount count = count_routes(cluster, device_id(0), device_id(127 * 8));
  EXPECT_EQ(count.hops, 2);
  EXPECT_EQ(count.paths, 2);
  count = count_routes(cluster, device_id(0), device_id(128 * 8));
  EXPECT_EQ(count.hops, 4);
  EXPECT_EQ(count.paths, 2 * 60);
}

// Without planes both ToRs of the far rail are reached over every aggregation switch.
TEST(Hpn, OnePlaneHasTheCrossedPathsToo) {
  const Cluster cluster = cluster_of("{name: hpn_one_plane, gpus: 2048}");
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(128 * 8)).paths, 2 * 60 * 2);
}

TEST(Clos, UplinksOfEachTierHaveTheirOwnBandwidth) {
  Cluster::Options options = fat_tree(4);
  options.fabric.aggregation_uplink_bandwidth = 50_Gbps;  // two share a port
  const Cluster cluster(options);
  for (const Link& link : cluster.links()) {
    const bool is_core = cluster.vertices()[link.from].tier == 3;
    EXPECT_TRUE(!is_core || link.bandwidth == 50_Gbps);
  }
  options.fabric.aggregation_uplink_bandwidth = 200_Gbps;  // each takes two ports
  EXPECT_THAT(complaint(options), HasSubstr("aggregation_uplinks 2: 6 ports, but a switch has 4"));
}

TEST(FabricLaws, NameEveryTerm) {
  Cluster::Options options = dragonfly(1, 2, 1, 4);
  EXPECT_EQ(complaint(options),
            "cluster small: fabric.groups 4 are more than routers_per_group 2 * global_links 1 + 1 "
            "= 3: not every two groups could be joined");
  options = dragonfly(1, 2, 1, 3);
  options.nodes = 7;
  EXPECT_EQ(complaint(options),
            "cluster small: nodes 7 * nics 1 = 7 NICs, but nics_per_router 1 * routers_per_group 2 "
            "* groups 3 = 6 places");
  options.nodes = 6;
  options.fabric.dragonfly.global_bandwidth = Bandwidth();
  EXPECT_EQ(complaint(options), "cluster small: fabric.global_bandwidth is missing");

  options = torus({2, 3});
  options.nodes = 7;
  EXPECT_EQ(complaint(options),
            "cluster small: 7 nodes, but fabric.dimensions make 2 * 3 = 6 routers");
  options.fabric.torus.dimensions = {2, 0};
  EXPECT_THAT(complaint(options), HasSubstr("fabric.dimensions 0 is not in 1..65536"));
  options = torus({4});
  options.fabric.tiers = 2;
  EXPECT_EQ(complaint(options), "cluster small: fabric.tiers 2 is for a clos, not a torus");
  options = torus({4});
  options.node.nics = 0;
  EXPECT_EQ(complaint(options), "cluster small: a torus of switches, but node.nics 0");

  options = fat_tree(4);
  options.fabric.planes = 2;
  EXPECT_EQ(complaint(options), "cluster small: fabric.planes 2 is neither 1 nor nic_ports 1");
  options = fat_tree(4);
  options.fabric.nic_ports = 3;
  EXPECT_EQ(complaint(options),
            "cluster small: fabric.leaves_per_pod 2 is not a multiple of nic_ports 3");
}

GraphSpec two_switches() {
  GraphSpec graph;
  graph.switches = {{"left", 1}, {"right", 1}};
  graph.cables = {{{0, 0, ""}, {-1, 0, "left"}, 100_Gbps, {}, 1},
                  {{-1, 0, "right"}, {1, 0, ""}, 100_Gbps, {}, 1},
                  {{-1, 0, "left"}, {-1, 0, "right"}, 40_Gbps, std::chrono::microseconds(2), 3}};
  return graph;
}

TEST(Graph, IsWiredAsGiven) {
  Cluster::Options options = one_gpu_nodes(2);
  options.fabric.kind = FabricKind::Graph;
  options.fabric.graph = two_switches();
  const Cluster cluster(options);
  const RouteCount count = count_routes(cluster, device_id(0), device_id(1));
  EXPECT_EQ(count.hops, 3);
  EXPECT_EQ(count.paths, 3);
  const auto link = cluster.find_link("left->right#2");
  ASSERT_TRUE(link.has_value());
  EXPECT_EQ(cluster.link_name(*link), "left->right#2");
  EXPECT_EQ(cluster.links()[*link].latency, std::chrono::microseconds(2));
  EXPECT_EQ(cluster.links()[*link].bandwidth, 40_Gbps);
}

TEST(Graph, WiringMayJoinTwoNicsWithoutASwitch) {
  Cluster::Options options = one_gpu_nodes(2);
  options.fabric.kind = FabricKind::Graph;
  options.fabric.graph = two_switches();
  const WiringChange cable{WiringAction::Add, "node0.nic0->node1.nic0", "", 200_Gbps, {}};
  options.wiring = {cable, cable};
  const Cluster cluster(options);
  const RouteCount count = count_routes(cluster, device_id(1), device_id(0));
  EXPECT_EQ(count.hops, 1);
  EXPECT_EQ(count.paths, 2);
}

TEST(Graph, LawsNameTheCable) {
  Cluster::Options options = one_gpu_nodes(1);
  options.fabric.kind = FabricKind::Graph;
  EXPECT_EQ(complaint(options), "cluster small: fabric.graph has no cables");
  options.fabric.graph = two_switches();
  EXPECT_EQ(complaint(options),
            "cluster small: a cable ends at node1.nic0, but there are 1 nodes with 1 NICs");
  options.nodes = 2;
  options.fabric.graph.switches[1].name = "middle";
  EXPECT_EQ(complaint(options),
            "cluster small: a cable ends at right, which is no switch of the graph");
  options.fabric.graph.switches[1].name = "left";
  EXPECT_EQ(complaint(options), "cluster small: fabric.graph has two switches left");
  options.fabric.graph = two_switches();
  options.fabric.graph.cables[2].b = {1, 0, ""};
  options.fabric.graph.cables[2].a = {0, 0, ""};
  EXPECT_EQ(complaint(options),
            "cluster small: a cable joins node0.nic0 and node1.nic0 without a switch between them");
  options.fabric.graph = two_switches();
  options.fabric.graph.cables[2].count = 0;
  EXPECT_EQ(complaint(options),
            "cluster small: the cable left - right (0 x 40.0 Gb/s) needs two ends, a bandwidth and "
            "a count");
}

TEST(Names, FindEveryVertexAndLink) {
  Cluster::Options options = resolve_text("{name: dgx_a100_pcie, gpus: 16}");
  for (const Cluster& cluster : {Cluster(options), Cluster(torus({3, 3}))}) {
    for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
      ASSERT_EQ(cluster.find_vertex(cluster.vertices()[VertexId{v}].name()), VertexId{v});
    }
    for (std::uint32_t l = 0; l < cluster.links().size(); ++l) {
      ASSERT_EQ(cluster.find_link(cluster.link_name(LinkId{l})), LinkId{l});
    }
  }
  const Cluster cluster(options);
  for (const char* name : {"node2.gpu0", "node0.gpu8", "leaf99", "", "node.gpu0", "nodex.gpu0"}) {
    EXPECT_FALSE(cluster.find_vertex(name).has_value()) << name;
  }
  for (const char* name :
       {"leaf0", "leaf0->", "leaf0->leaf1", "leaf0->spine0#1", "leaf0->spine0#x"}) {
    EXPECT_FALSE(cluster.find_link(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace foresail::topologies
