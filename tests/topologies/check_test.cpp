// One fault at a time in a clean cluster: exactly that fault is told.
#include "foresail/topologies/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/base/rng.h"
#include "foresail/topologies/export.h"

namespace foresail::topologies {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// 12 nodes in groups of 4, 4 rails: 12 leaves, 8 uplinks each to 4 spines, two cables per pair.
constexpr const char* kRails =
    "{name: rails, device: h100, nodes: 12, node: {devices: 4, nics: 4, nic_bandwidth: 400 Gb/s}, "
    "fabric: {tiers: 2, rails: 4, nodes_per_leaf: 4, leaf_uplinks: 8, uplink_bandwidth: 400 Gb/s, "
    "switch_ports: 32, link_latency: 1 us}";

std::vector<Finding> check(const std::string& cluster, const std::string& wiring) {
  return check_wiring(cluster_of(cluster + ", wiring: [" + wiring + "]}"));
}

/// The same without a plan: the graph alone speaks.
std::vector<Finding> check_graph(const std::string& cluster, const std::string& wiring) {
  return check_wiring(Cluster(as_graph(cluster_of(cluster + ", wiring: [" + wiring + "]}"))));
}

std::vector<FindingKind> kinds(const std::vector<Finding>& findings) {
  std::vector<FindingKind> kinds;
  for (const Finding& finding : findings) kinds.push_back(finding.kind);
  return kinds;
}

TEST(CheckWiring, EveryClusterOfTheCatalogueIsClean) {
  for (const std::string& name : catalogue_names("clusters")) {
    const Cluster cluster(resolve_cluster(Yaml::parse(name, "test"), {catalogue_folder()}));
    const auto findings = check_wiring(cluster);
    EXPECT_THAT(findings, IsEmpty()) << findings_text(cluster, findings);
  }
}

TEST(CheckWiring, PartlyFilledClustersAreClean) {
  for (const char* text :
       {"{name: megascale, gpus: 8}", "{name: megascale, gpus: 1000}", "{name: selene, gpus: 1288}",
        "{name: dgx_h100, gpus: 264}", "{name: dgx_a100_roce4, gpus: 72}"}) {
    const Cluster cluster = cluster_of(text);
    const auto findings = check_wiring(cluster);
    EXPECT_THAT(findings, IsEmpty()) << findings_text(cluster, findings);
  }
}

TEST(CheckWiring, DragonfliesAndToriAreClean) {
  // NICs fill routers in order: a node may hang on two routers without being wired wrongly.
  for (const char* fabric :
       {"{kind: dragonfly, nics_per_router: 7, routers_per_group: 4, global_links: 2, groups: 5, "
        "local_bandwidth: 200 Gb/s, global_bandwidth: 200 Gb/s, link_latency: 1 us}",
        "{kind: torus, dimensions: [4, 4, 2], bandwidth: 400 Gb/s, link_latency: 1 us}"}) {
    const Cluster cluster =
        cluster_of(std::string("{name: x, device: h100, nodes: 32, node: {devices: 4, nics: 4, "
                               "nic_bandwidth: 100 Gb/s}, fabric: ") +
                   fabric + "}");
    const auto findings = check_wiring(cluster);
    EXPECT_THAT(findings, IsEmpty()) << findings_text(cluster, findings);
  }
}

TEST(CheckWiring, SwappedRailsOfANodeAreOneFinding) {
  for (const auto& findings : {check(kRails, "{swap: [node5.nic0, node5.nic1]}"),
                               check_graph(kRails, "{swap: [node5.nic0, node5.nic1]}")}) {
    ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::RailSwap));
    EXPECT_THAT(findings[0].vertices, ElementsAre("node5.nic0", "node5.nic1"));
    EXPECT_EQ(findings[0].severity, Severity::Error);
    EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 0.5);  // two NICs of four
    EXPECT_THAT(findings[0].message, HasSubstr("node5.nic0 is on leaf5, node5.nic1 on leaf4"));
  }
}

TEST(CheckWiring, ANicInAnotherGroupIsAstray) {
  const auto findings = check_graph(kRails, "{swap: [node0.nic2, node9.nic2]}");
  ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::RailSwap));
  EXPECT_THAT(findings[0].vertices, ElementsAre("node0.nic2", "node9.nic2"));
  EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 0.25);
}

// Two nodes that disagree: the graph alone cannot tell which is wrong, the plan can.
TEST(CheckWiring, EvenVotesAreAWarningThatThePlanDecides) {
  const std::string two =
      "{name: two, device: h100, nodes: 2, node: {devices: 2, nics: 2, nic_bandwidth: 400 Gb/s}, "
      "fabric: {tiers: 2, rails: 2, nodes_per_leaf: 2, leaf_uplinks: 2, uplink_bandwidth: 400 "
      "Gb/s, link_latency: 1 us}";
  const auto alone = check_graph(two, "{swap: [node0.nic0, node0.nic1]}");
  ASSERT_FALSE(alone.empty());
  for (const Finding& finding : alone) {
    EXPECT_EQ(finding.kind, FindingKind::RailSwap);
    EXPECT_EQ(finding.severity, Severity::Warning);
    EXPECT_THAT(finding.message, HasSubstr("votes are even"));
  }
  const auto planned = check(two, "{swap: [node0.nic0, node0.nic1]}");
  EXPECT_THAT(kinds(planned), ElementsAre(FindingKind::NotAsPlanned, FindingKind::NotAsPlanned,
                                          FindingKind::NotAsPlanned, FindingKind::NotAsPlanned));
  EXPECT_THAT(planned[0].message, HasSubstr("node0.nic0->leaf0 should be 1 x 400 Gb/s, but is no"));
}

TEST(CheckWiring, MissingCablesAreToldOncePerPair) {
  for (const auto& findings : {check(kRails, "{remove: \"leaf3->spine1\"}"),
                               check_graph(kRails, "{remove: \"leaf3->spine1\"}")}) {
    ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::MissingLink));
    EXPECT_EQ(findings[0].cable, "leaf3->spine1");
    EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 1.0 / 8);
    EXPECT_THAT(findings[0].message, HasSubstr("leaf3 has 1 of 2 cables to spine1"));
  }
  const auto both =
      check_graph(kRails, "{remove: \"leaf3->spine1\"}, {remove: \"leaf3->spine1#1\"}");
  ASSERT_THAT(kinds(both), ElementsAre(FindingKind::MissingLink));
  EXPECT_DOUBLE_EQ(both[0].bandwidth_lost, 0.25);
}

TEST(CheckWiring, MisplacedUplinksAreMissingHereAndExtraThere) {
  // leaf0 - spine0 and leaf1 - spine1 change their far ends.
  const auto findings = check_graph(kRails, "{swap: [\"leaf0->spine0\", \"leaf1->spine1\"]}");
  EXPECT_THAT(kinds(findings), ElementsAre(FindingKind::MissingLink, FindingKind::MissingLink,
                                           FindingKind::ExtraLink, FindingKind::ExtraLink));
}

TEST(CheckWiring, SlowCablesAreNamed) {
  const auto findings = check_graph(kRails,
                                    "{cable: \"leaf3->spine1\", bandwidth: 100 Gb/s}, {cable: "
                                    "\"node2.nic3->leaf3\", bandwidth: 200 Gb/s}");
  ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::SlowLink, FindingKind::SlowLink));
  EXPECT_EQ(findings[0].cable, "node2.nic3->leaf3");
  EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 0.5);
  EXPECT_DOUBLE_EQ(findings[1].bandwidth_lost, 0.75 / 8);
}

// Two ToRs per rail in two planes, as HPN: a NIC has two ports of 200 Gb/s.
constexpr const char* kPlanes =
    "{name: planes, device: h100, nodes: 8, node: {devices: 2, nics: 2, nic_bandwidth: 400 Gb/s}, "
    "fabric: {tiers: 2, rails: 2, nodes_per_leaf: 4, nic_ports: 2, planes: 2, leaf_uplinks: 4, "
    "uplink_bandwidth: 400 Gb/s, link_latency: 1 us}";

TEST(CheckWiring, DualTorIsCleanAndANicWithOnePortIsNot) {
  EXPECT_THAT(check_wiring(cluster_of(std::string(kPlanes) + "}")), IsEmpty());
  const Cluster cluster = cluster_of(std::string(kPlanes) + "}");
  const auto nic = cluster.find_vertex("node3.nic1");
  ASSERT_TRUE(nic);
  const std::string cable = cluster.link_name(cluster.nic_ports(*nic).front());
  for (const auto& findings : {check(kPlanes, "{remove: \"" + cable + "\"}"),
                               check_graph(kPlanes, "{remove: \"" + cable + "\"}")}) {
    ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::MissingPort));
    EXPECT_THAT(findings[0].vertices, ElementsAre("node3.nic1"));
    EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 0.5);
  }
}

TEST(CheckWiring, OnePortOnAnotherRailIsAQuarterOfTheNode) {
  const Cluster cluster = cluster_of(std::string(kPlanes) + "}");
  const auto port = [&](const char* nic) {
    return cluster.link_name(cluster.nic_ports(*cluster.find_vertex(nic)).front());
  };
  const auto findings = check_graph(
      kPlanes, "{swap: [\"" + port("node2.nic0") + "\", \"" + port("node2.nic1") + "\"]}");
  // Neither NIC shares all its leaves with its peers, but each shares one.
  ASSERT_FALSE(findings.empty());
  EXPECT_THAT(findings[0].kind, FindingKind::RailSwap);
  EXPECT_THAT(findings[0].vertices[0], "node2.nic0");
  EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 0.25);  // one of four ports of the node
}

TEST(CheckWiring, APlaneWithHalfTheUplinksIsAsymmetric) {
  // Every cable of one plane at half speed: half of all uplinks, so that no cable is in a minority.
  GraphSpec graph = as_graph(cluster_of(std::string(kPlanes) + "}")).fabric.graph;
  Cluster::Options options = as_graph(cluster_of(std::string(kPlanes) + "}"));
  const std::string first_leaf = graph.switches.front().name;
  std::vector<std::string> plane = {first_leaf};
  for (std::size_t i = 0; i < plane.size(); ++i) {
    for (Cable& cable : graph.cables) {
      if (cable.a.node >= 0) continue;
      const bool is_a = cable.a.switch_name == plane[i];
      const bool is_b = cable.b.switch_name == plane[i];
      if (!is_a && !is_b) continue;
      cable.bandwidth = 200_Gbps;
      const std::string& other = is_a ? cable.b.switch_name : cable.a.switch_name;
      if (std::find(plane.begin(), plane.end(), other) == plane.end()) plane.push_back(other);
    }
  }
  options.fabric.graph = graph;
  const auto findings = check_wiring(Cluster(options));
  ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::AsymmetricPlane));
  EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 0.5);
  EXPECT_EQ(findings[0].severity, Severity::Warning);  // one plane against one
}

TEST(CheckWiring, NodesThatNoWayJoinsAreUnreachable) {
  const std::string islands =
      "{name: i, device: h100, nodes: 3, node: {devices: 1, nics: 1, nic_bandwidth: 1 Gb/s}, "
      "fabric: {graph: {switches: [{name: a}, {name: b}], cables: ["
      "{from: node0.nic0, to: a, bandwidth: 1 Gb/s, latency: 1 us}, "
      "{from: node1.nic0, to: a, bandwidth: 1 Gb/s, latency: 1 us}, "
      "{from: node2.nic0, to: b, bandwidth: 1 Gb/s, latency: 1 us}]}}}";
  const auto findings = check_wiring(cluster_of(islands));
  ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::Unreachable));
  EXPECT_THAT(findings[0].vertices, ElementsAre("node2.nic0", "node0.nic0"));
}

TEST(CheckWiring, ANicWithoutCablesIsNamed) {
  const auto findings = check(kRails, "{remove: \"node7.nic2->leaf6\"}");
  ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::MissingPort));
  EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 1);
  EXPECT_EQ(findings[0].message, "node7.nic2 has no cable");
}

TEST(CheckWiring, ACrowdedLeafIsOversubscribed) {
  // 5 leaves with two nodes each, but leaf 4 with four of them, all with two uplinks.
  std::string text =
      "{name: o, device: h100, nodes: 12, node: {devices: 1, nics: 1, nic_bandwidth: 1 Gb/s}, "
      "fabric: {graph: {switches: [{name: l0}, {name: l1}, {name: l2}, {name: l3}, {name: l4}, "
      "{name: s, tier: 2}], cables: [";
  for (int n = 0; n < 12; ++n) {
    text += "{from: node" + std::to_string(n) + ".nic0, to: l" +
            std::to_string(std::min(4, n / 2)) + ", bandwidth: 1 Gb/s, latency: 1 us}, ";
  }
  for (int l = 0; l < 5; ++l) {
    text += "{from: l" + std::to_string(l) + ", to: s, bandwidth: 1 Gb/s, latency: 1 us, count: 2}";
    text += l < 4 ? ", " : "]}}}";
  }
  const auto findings = check_wiring(cluster_of(text));
  ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::Oversubscription));
  EXPECT_THAT(findings[0].vertices, ElementsAre("l4"));
  EXPECT_DOUBLE_EQ(findings[0].bandwidth_lost, 0.5);
}

TEST(CheckWiring, ARouterWithFewerCablesThanNearlyAllIsNamed) {
  const auto findings = check_wiring(cluster_of(
      "{name: t, device: h100, nodes: 16, node: {devices: 1, nics: 1, nic_bandwidth: 1 Gb/s}, "
      "fabric: {kind: torus, dimensions: [4, 4], bandwidth: 1 Gb/s, link_latency: 1 us}, "
      "wiring: [{remove: \"router0->router1\"}]}"));
  ASSERT_THAT(kinds(findings), ElementsAre(FindingKind::MissingLink, FindingKind::MissingLink,
                                           FindingKind::NotAsPlanned));
  EXPECT_THAT(findings[0].message, HasSubstr("router0 has 3 cables to its own tier, most have 4"));
}

// 200 random single faults of a 96-node cluster: at least one finding names the culprit, whatever
// is told is an error or a warning about it, and nothing else is accused.
TEST(CheckWiring, RandomFaultsAreFoundAndNothingElseIsAccused) {
  const std::string big =
      "{name: b, device: h100, nodes: 96, node: {devices: 4, nics: 4, nic_bandwidth: 400 Gb/s}, "
      "fabric: {tiers: 3, rails: 4, nodes_per_leaf: 8, leaf_uplinks: 8, uplink_bandwidth: 400 "
      "Gb/s, "
      "leaves_per_pod: 16, aggregation_uplinks: 8, link_latency: 1 us}";
  const Cluster clean = cluster_of(big + "}");
  std::vector<std::string> cables;
  for (std::uint32_t l = 0; l < clean.links().size(); l += 2) {
    const VertexKind kind = clean.vertices()[clean.links()[LinkId{l}].to].kind;
    if (kind == VertexKind::Switch) cables.push_back(clean.link_name(LinkId{l}));
  }
  RandomStream random = Rng(11).stream("faults");
  for (int round = 0; round < 200; ++round) {
    const std::string cable = cables[random.below(cables.size())];
    const bool is_slow = random.below(2) == 0;
    const std::string fault =
        is_slow ? "{cable: \"" + cable + "\", bandwidth: 100 Gb/s}" : "{remove: \"" + cable + "\"}";
    const auto findings = check_graph(big, fault);
    ASSERT_EQ(findings.size(), 1U) << fault;
    EXPECT_EQ(findings[0].vertices.front(), cable.substr(0, cable.find("->"))) << fault;
    EXPECT_GT(findings[0].bandwidth_lost, 0) << fault;
  }
}

TEST(CheckWiring, TextAndDocumentSayTheSame) {
  const Cluster cluster =
      cluster_of(std::string(kRails) + ", wiring: [{remove: \"leaf3->spine1\"}]}");
  const auto findings = check_wiring(cluster);
  const Document document = findings_document(cluster, findings);
  EXPECT_EQ(document.at("clean"), false);
  EXPECT_EQ(document.at("findings").at(0).at("kind"), "missing_link");
  EXPECT_EQ(document.at("findings").at(0).at("cable"), "leaf3->spine1");
  EXPECT_THAT(findings_text(cluster, findings), HasSubstr("error missing_link: leaf3 has 1 of 2"));
  const Cluster clean = cluster_of(std::string(kRails) + "}");
  EXPECT_EQ(findings_text(clean, {}), "rails: nothing is wired wrongly\n");
}

}  // namespace
}  // namespace foresail::topologies
