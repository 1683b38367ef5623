#include <gtest/gtest.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>

#include "catalogue.h"

namespace foresail::topologies {
namespace {

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using FlowGraph = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS, boost::no_property,
    boost::property<
        boost::edge_capacity_t, std::int64_t,
        boost::property<boost::edge_residual_capacity_t, std::int64_t,
                        boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

void add_link(FlowGraph& graph, std::size_t from, std::size_t to, std::int64_t capacity) {
  const auto there = boost::add_edge(from, to, graph).first;
  const auto back = boost::add_edge(to, from, graph).first;
  boost::put(boost::edge_capacity, graph, there, capacity);
  boost::put(boost::edge_reverse, graph, there, back);
  boost::put(boost::edge_reverse, graph, back, there);
}

/// Greatest flow in Gb/s that the devices of the first half of the nodes can send through their
/// NICs to those of the second half.
std::int64_t flow_between_halves(const Cluster& cluster) {
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 40;
  const std::size_t source = cluster.vertices().size();
  const std::size_t sink = source + 1;
  FlowGraph graph(sink + 1);
  for (const Link& link : cluster.links()) {
    const VertexKind from = cluster.vertices()[link.from].kind;
    const VertexKind to = cluster.vertices()[link.to].kind;
    if (from != VertexKind::Switch && to != VertexKind::Switch) continue;
    add_link(graph, link.from.value, link.to.value,
             link.bandwidth.bits_per_second() / 1'000'000'000);
  }
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const Vertex& vertex = cluster.vertices()[VertexId{v}];
    if (vertex.kind != VertexKind::Nic) continue;
    if (vertex.node < cluster.options().nodes / 2) add_link(graph, source, v, kUnlimited);
    if (vertex.node >= cluster.options().nodes / 2) add_link(graph, v, sink, kUnlimited);
  }
  return boost::push_relabel_max_flow(graph, source, sink);
}

void expect_bisection_is_the_greatest_flow(const Cluster& cluster) {
  EXPECT_EQ(bisection_bandwidth(cluster), Bandwidth::gbps(flow_between_halves(cluster)));
}

TEST(Bisection, EqualsTheGreatestFlowBetweenHalvesOfOneToOneFabrics) {
  expect_bisection_is_the_greatest_flow(cluster_of("{name: megascale, gpus: 4096}"));
  expect_bisection_is_the_greatest_flow(cluster_of("{name: selene, gpus: 640}"));
  expect_bisection_is_the_greatest_flow(cluster_of("{name: jeanzay_like, gpus: 384}"));
  expect_bisection_is_the_greatest_flow(cluster_of("{name: dgx_h100, gpus: 64}"));
}

TEST(Bisection, EqualsTheGreatestFlowWhereATierIsNarrow) {
  Cluster::Options options = resolve_text("{name: megascale, gpus: 4096}");
  options.fabric.switch_ports = 0;
  options.fabric.leaf_uplinks = 16;  // 2:1 at the leaves
  const Cluster narrow_leaves(options);
  expect_bisection_is_the_greatest_flow(narrow_leaves);
  EXPECT_EQ(bisection_bandwidth(narrow_leaves), Bandwidth::gbps(64 * 16 * 400 / 2));

  options.fabric.leaf_uplinks = 32;
  options.fabric.aggregation_uplinks = 4;  // 8:1 at the spines
  const Cluster narrow_spines(options);
  expect_bisection_is_the_greatest_flow(narrow_spines);
  EXPECT_EQ(bisection_bandwidth(narrow_spines), Bandwidth::gbps(2 * 32 * 4 * 400 / 2));
}

// Rail pods of 20 groups: 4 groups meet below the core, so its width does not matter.
TEST(Bisection, RailPodsMeetBelowTheCore) {
  Cluster::Options options = resolve_text("{name: selene, gpus: 640}");
  options.fabric.aggregation_uplinks = 1;
  options.fabric.switch_ports = 0;
  expect_bisection_is_the_greatest_flow(Cluster(options));
}

// Both planes of HPN carry half each.
TEST(Bisection, CountsBothPlanes) {
  expect_bisection_is_the_greatest_flow(cluster_of("{name: hpn, gpus: 2048}"));
}

Cluster::Options flat(FabricKind kind, int nodes) {
  Cluster::Options options;
  options.name = "flat";
  options.device.nvlink = 100_Gbps;
  options.node = {.devices = 1, .nics = 1, .nic_bandwidth = 1000_Gbps, .cores = 0};
  options.fabric.kind = kind;
  options.nodes = nodes;
  return options;
}

// A torus of N nodes is cut through 2 N / n cables along its longest dimension n, wherever that
// stands; each carries 100 Gb/s one way.
TEST(Bisection, OfATorusIsItsCutAlongTheLongestDimension) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{8, 2, 3}, {3, 8, 2}, {2, 3, 8}, {4, 4, 4}, {6}}) {
    int nodes = 1;
    for (const int size : sizes) nodes *= size;
    Cluster::Options options = flat(FabricKind::Torus, nodes);
    options.fabric.torus = {sizes, 100_Gbps};
    const int longest = *std::ranges::max_element(sizes);
    EXPECT_EQ(bisection_bandwidth(Cluster(options)), Bandwidth::gbps(2 * nodes / longest * 100));
  }
}

// 4 groups of 3 routers with one global cable each: 2 * 2 pairs of groups across.
TEST(Bisection, OfADragonflyIsItsGlobalCables) {
  Cluster::Options options = flat(FabricKind::Dragonfly, 12);
  options.fabric.dragonfly = {1, 3, 1, 4, 500_Gbps, 70_Gbps};
  const Bisection found = bisection(Cluster(options));
  EXPECT_EQ(found.bandwidth, Bandwidth::gbps(4 * 70));
  EXPECT_EQ(found.method, "greatest flow from the first half of the nodes to the second");
  EXPECT_TRUE(found.tiers.empty());
}

// One of 64 uplinks of the first half is missing, another is half as fast.
TEST(Bisection, OfARewiredClosIsWhatIsReallyThere) {
  const std::string planned = "{name: jeanzay_like, gpus: 96}";  // 2 leaves, 24 uplinks each
  const std::string wired =
      "{name: jeanzay_like, gpus: 96, wiring: [{remove: leaf0->spine0}, {cable: "
      "\"leaf1->spine0#2\", bandwidth: 50 Gb/s}]}";
  EXPECT_EQ(bisection_bandwidth(cluster_of(planned)), Bandwidth::gbps(24 * 100));
  EXPECT_EQ(bisection_bandwidth(cluster_of(wired)), Bandwidth::gbps(23 * 100));
  const Bisection found = bisection(cluster_of(planned));
  ASSERT_EQ(found.tiers.size(), 2U);
  EXPECT_EQ(found.tiers[1].tier, "leaf");
  EXPECT_EQ(found.tiers[1].bandwidth, Bandwidth::gbps(24 * 100));
}

// As many as uplinks where all are shortest; on a torus also the detours: one per neighbour.
TEST(DisjointPaths, AreLimitedByTheFewestLinksOnTheWay) {
  EXPECT_EQ(
      disjoint_paths(cluster_of("{name: megascale, gpus: 4096}"), device_id(0), device_id(4095)),
      32);
  const Cluster hpn = cluster_of("{name: hpn, gpus: 2048}");
  EXPECT_EQ(disjoint_paths(hpn, device_id(0), device_id(1024)), 2 * 60);
  EXPECT_EQ(disjoint_paths(hpn, device_id(0), device_id(8)), 0);  // the same ToRs
  const Cluster torus = cluster_of("{name: torus_3d, gpus: 512}");
  EXPECT_EQ(disjoint_paths(torus, device_id(0), device_id(1)), 6);
  EXPECT_EQ(count_routes(torus, device_id(0), device_id(1)).paths, 1);
}

}  // namespace
}  // namespace foresail::topologies
