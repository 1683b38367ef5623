#include <gtest/gtest.h>

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

}  // namespace
}  // namespace foresail::topologies
