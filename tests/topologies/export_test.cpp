#include "foresail/topologies/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSmall =
    "{name: small, device: h100, nodes: 4, node: {devices: 2, nics: 2, nic_bandwidth: 400 Gb/s}, "
    "fabric: {tiers: 2, rails: 2, nodes_per_leaf: 2, leaf_uplinks: 4, uplink_bandwidth: 400 Gb/s, "
    "switch_ports: 32, link_latency: 450 ns}, wiring: [{cable: \"leaf1->spine0\", bandwidth: 100 "
    "Gb/s}, {swap: [node3.nic0, node3.nic1]}]}";

/// Cables of the fabric by name of both ends, bandwidth and latency.
std::multiset<std::tuple<std::string, std::string, Bandwidth, Duration>> cables_of(
    const Cluster& cluster) {
  std::multiset<std::tuple<std::string, std::string, Bandwidth, Duration>> cables;
  for (const Link& link : cluster.links()) {
    cables.emplace(cluster.vertices()[link.from].name(), cluster.vertices()[link.to].name(),
                   link.bandwidth, link.latency);
  }
  return cables;
}

TEST(Export, YamlReadsBackToTheSameGraph) {
  for (const char* text :
       {kSmall, "{name: megascale, gpus: 512}", "{name: selene, gpus: 640}", "dgx_a100_roce4"}) {
    const Cluster cluster = cluster_of(text);
    const std::string yaml = to_yaml(to_document(as_graph(cluster)));
    const Cluster again(resolve_cluster(Yaml::parse(yaml, "export.yaml"), {}));
    EXPECT_EQ(cables_of(again), cables_of(cluster)) << text;
    EXPECT_EQ(again.vertices().size(), cluster.vertices().size());
    EXPECT_EQ(again.node(), cluster.node());
    EXPECT_EQ(again.device(), cluster.device());
    // Once a graph, always the same graph.
    EXPECT_EQ(to_yaml(to_document(as_graph(again))), yaml);
  }
}

TEST(Export, WiringIsPartOfTheGraph) {
  const Cluster::Options options = as_graph(cluster_of(kSmall));
  EXPECT_TRUE(options.wiring.empty());
  const std::string yaml = to_yaml(to_document(options));
  EXPECT_THAT(yaml, HasSubstr("100 Gb/s"));
}

TEST(Export, RoutesStayTheSame) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 2048}");
  const Cluster again(as_graph(cluster));
  for (const int to : {8, 512, 520, 2047}) {
    const RouteCount a = count_routes(cluster, device_id(0), device_id(to));
    const RouteCount b = count_routes(again, device_id(0), device_id(to));
    EXPECT_EQ(a.hops, b.hops);
    EXPECT_EQ(a.paths, b.paths);
  }
}

TEST(Export, ASingleHostHasNoFabric) {
  EXPECT_THROW(as_graph(cluster_of("host")), Error);
}

TEST(Export, MoreThanYamlHoldsIsRefused) {
  // 98,304 GPUs: 98,304 cables to NICs and as many above them.
  const Cluster cluster = cluster_of("{name: megascale, gpus: 98304}");
  try {
    as_graph(cluster);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("more than a YAML file may hold; export as json or dot"));
  }
}

TEST(Export, DotRanksTiersAndLabelsCables) {
  const std::string dot = to_dot(cluster_of(kSmall));
  EXPECT_THAT(dot, HasSubstr("graph \"small\" {"));
  EXPECT_THAT(dot, HasSubstr("{ rank=same; // tier 2\n    \"spine0\";\n"));
  EXPECT_THAT(dot, HasSubstr("\"spine0\" -- \"leaf0\" [label=\"4 x 400 Gb/s\"]"));
  EXPECT_THAT(dot, HasSubstr("\"spine0\" -- \"leaf1\" [label=\"4 x 100 Gb/s to 400 Gb/s\"]"));
  EXPECT_THAT(dot, HasSubstr("\"leaf0\" -- \"node1\" [label=\"400 Gb/s\"]"));
  EXPECT_THAT(dot, Not(HasSubstr("drawn as one")));
  EXPECT_EQ(std::count(dot.begin(), dot.end(), '{'), std::count(dot.begin(), dot.end(), '}'));
}

TEST(Export, DotDrawsManyNodesOfTheSameLeavesAsOne) {
  const std::string dot = to_dot(cluster_of("{name: megascale, gpus: 1024}"));
  EXPECT_THAT(dot, HasSubstr("// nodes with the same leaves are drawn as one (2 of 128)"));
  EXPECT_THAT(dot, HasSubstr("\"node64\" [label=\"node64 and 63 more\"]"));
  EXPECT_THAT(dot, HasSubstr("\"leaf8\" -- \"node64\" [label=\"64 x 200 Gb/s\"]"));
}

TEST(Export, DotQuotesNames) {
  Cluster::Options options = as_graph(cluster_of(kSmall));
  options.name = "a \"b\" \\c";
  EXPECT_THAT(to_dot(Cluster(options)), HasSubstr(R"(graph "a \"b\" \\c" {)"));
}

TEST(Export, DocumentHasEveryVertexAndLink) {
  const Cluster cluster = cluster_of(kSmall);
  const Document document = graph_document(cluster);
  EXPECT_EQ(document.at("vertices").size(), cluster.vertices().size());
  ASSERT_EQ(document.at("links").size(), cluster.links().size());
  const Document& last = document.at("links").back();
  const LinkId id{static_cast<std::uint32_t>(cluster.links().size() - 1)};
  EXPECT_EQ(last.at("name"), cluster.link_name(id));
  EXPECT_EQ(last.at("bits_per_s"), cluster.links()[id].bandwidth.bits_per_second());
  EXPECT_EQ(last.at("latency_s"), 450e-9);
  EXPECT_EQ(document.at("vertices").at(0).at("kind"), "device");
}

}  // namespace
}  // namespace foresail::topologies
