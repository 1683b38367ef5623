#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kPlanned = "{name: megascale, gpus: 1024}";

std::string wired(std::string_view changes) {
  return "{name: megascale, gpus: 1024, wiring: [" + std::string(changes) + "]}";
}

std::string complaint(const std::string& text) {
  try {
    resolve_text(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

const Link& link(const Cluster& cluster, std::string_view name) {
  const auto found = cluster.find_link(name);
  EXPECT_TRUE(found.has_value()) << name;
  return cluster.links()[found.value()];
}

TEST(Wiring, NoneChangesNothing) {
  EXPECT_EQ(resolve_text(wired("")), resolve_text(kPlanned));
}

TEST(Wiring, SwappedNicsStandOnEachOthersLeaves) {
  const Cluster cluster = cluster_of(wired("{swap: [node3.nic0, node3.nic1]}"));
  EXPECT_TRUE(cluster.find_link("node3.nic0->leaf1").has_value());
  EXPECT_TRUE(cluster.find_link("leaf0->node3.nic1").has_value());
  EXPECT_FALSE(cluster.find_link("node3.nic0->leaf0").has_value());
  // Rail 0 of node 3 now takes a spine to reach rail 0 of node 2.
  EXPECT_EQ(count_routes(cluster, device_id(16), device_id(24)).hops, 4);
  EXPECT_EQ(count_routes(cluster, device_id(17), device_id(24)).hops, 2);
  EXPECT_EQ(cluster.links().size(), cluster_of(kPlanned).links().size());
}

TEST(Wiring, SwapExchangesBothPortsOfANic) {
  const Cluster cluster =
      cluster_of("{name: hpn, gpus: 16, wiring: [{swap: [node0.nic0, node0.nic1]}]}");
  EXPECT_TRUE(cluster.find_link("node0.nic0->leaf2").has_value());
  EXPECT_TRUE(cluster.find_link("node0.nic0->leaf3").has_value());
  EXPECT_TRUE(cluster.find_link("node0.nic1->leaf0").has_value());
  EXPECT_TRUE(cluster.find_link("node0.nic1->leaf1").has_value());
}

TEST(Wiring, SwappedCablesExchangeTheirFarEnds) {
  const Cluster cluster = cluster_of(wired("{swap: [leaf0->spine1, leaf9->spine2]}"));
  EXPECT_TRUE(cluster.find_link("leaf0->spine2#1").has_value());
  EXPECT_TRUE(cluster.find_link("spine1->leaf9#1").has_value());
  EXPECT_FALSE(cluster.find_link("leaf0->spine1").has_value());
}

TEST(Wiring, ARemovedCableIsGoneInBothDirections) {
  const Cluster planned = cluster_of(kPlanned);
  const Cluster cluster = cluster_of(wired("{remove: spine1->leaf0}"));
  EXPECT_EQ(cluster.links().size(), planned.links().size() - 2);
  EXPECT_FALSE(cluster.find_link("leaf0->spine1").has_value());
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(512)).paths, 31);
  for (std::uint32_t l = 0; l < cluster.links().size(); l += 2) {
    ASSERT_EQ(cluster.links()[LinkId{l}].from, cluster.links()[LinkId{l + 1}].to);
    ASSERT_EQ(cluster.links()[LinkId{l}].to, cluster.links()[LinkId{l + 1}].from);
  }
}

TEST(Wiring, ANicWithoutItsCableHasNoRoutes) {
  const Cluster cluster = cluster_of(wired("{remove: node0.nic0->leaf0}"));
  EXPECT_TRUE(cluster.nic_ports(cluster.nic_vertex(device_id(0))).empty());
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(8)).paths, 0);
  EXPECT_EQ(count_routes(cluster, device_id(8), device_id(0)).paths, 0);
}

TEST(Wiring, ACableMayBeSlowerOrLonger) {
  const Cluster cluster = cluster_of(
      wired("{cable: leaf0->spine1, bandwidth: 200 Gb/s}, {cable: node5.gpu2->node5.nic2, "
            "bandwidth: 12 GB/s, latency: 3 us}"));
  EXPECT_EQ(link(cluster, "leaf0->spine1").bandwidth, 200_Gbps);
  EXPECT_EQ(link(cluster, "spine1->leaf0").bandwidth, 200_Gbps);
  EXPECT_EQ(link(cluster, "leaf0->spine2").bandwidth, 400_Gbps);
  EXPECT_EQ(link(cluster, "node5.nic2->node5.gpu2").bandwidth, Bandwidth::gigabytes_per_second(12));
  EXPECT_EQ(link(cluster, "node5.nic2->node5.gpu2").latency, std::chrono::microseconds(3));
}

TEST(Wiring, AddedCablesComeLastAndCountAsParallel) {
  const Cluster cluster = cluster_of(
      wired("{add: leaf0->spine1, bandwidth: 100 Gb/s}, {add: leaf0->leaf1, bandwidth: 1 Tb/s, "
            "latency: 5 us}"));
  EXPECT_EQ(link(cluster, "leaf0->spine1#1").bandwidth, 100_Gbps);
  EXPECT_EQ(link(cluster, "leaf0->spine1#1").latency, std::chrono::microseconds(1));
  EXPECT_EQ(link(cluster, "leaf1->leaf0").latency, std::chrono::microseconds(5));
  EXPECT_EQ(count_routes(cluster, device_id(0), device_id(1)).hops, 3);
  // The new parallel cable is far from the others among the leaf's links: a list, not a range.
  const VertexId leaf = cluster.find_vertex("leaf0").value();
  EXPECT_EQ(cluster.next_hops(leaf, cluster.nic_vertex(device_id(512))).size(), 33U);
}

TEST(Wiring, ChangesApplyInOrder) {
  const Cluster cluster =
      cluster_of(wired("{remove: leaf0->spine1}, {add: leaf0->spine1, bandwidth: 10 Gb/s}, {cable: "
                       "leaf0->spine1, bandwidth: 20 Gb/s}"));
  EXPECT_EQ(link(cluster, "leaf0->spine1").bandwidth, Bandwidth::gbps(20));
}

TEST(Wiring, ParallelCablesKeepTheirNumbersWhenOneIsRemoved) {
  const std::string three =
      "{add: leaf0->spine1, bandwidth: 10 Gb/s}, {add: leaf0->spine1, bandwidth: 20 Gb/s}";
  const Cluster cluster = cluster_of(wired(three + ", {remove: leaf0->spine1}"));
  EXPECT_FALSE(cluster.find_link("leaf0->spine1").has_value());
  EXPECT_EQ(link(cluster, "leaf0->spine1#1").bandwidth, Bandwidth::gbps(10));
  EXPECT_EQ(link(cluster, "leaf0->spine1#2").bandwidth, Bandwidth::gbps(20));
  EXPECT_EQ(link(cluster, "spine1->leaf0#2").bandwidth, Bandwidth::gbps(20));
  const LinkId second = cluster.find_link("leaf0->spine1#1").value();
  EXPECT_EQ(cluster.link_name(second), "leaf0->spine1#1");
  EXPECT_EQ(cluster.link_name(Cluster::reverse(second)), "spine1->leaf0#1");
  // Later changes go by the same names; what is added takes the lowest that is free.
  const Cluster more = cluster_of(
      wired(three + ", {remove: leaf0->spine1#1}, {remove: leaf0->spine1#2}, {add: leaf0->spine1, "
                    "bandwidth: 30 Gb/s}"));
  EXPECT_EQ(link(more, "leaf0->spine1#1").bandwidth, Bandwidth::gbps(30));
}

TEST(Wiring, IsPartOfTheDocument) {
  const Cluster::Options options = resolve_text(
      wired("{swap: [node3.nic0, node3.nic1]}, {remove: leaf0->spine1}, {cable: leaf0->spine2, "
            "latency: 2 us}, {add: leaf0->spine1, bandwidth: 100 Gb/s, latency: 1 us}"));
  ASSERT_EQ(options.wiring.size(), 4U);
  const std::string yaml = to_yaml(to_document(options));
  EXPECT_EQ(resolve_cluster(Yaml::parse(yaml, "plan.yaml"), {}), options) << yaml;
  EXPECT_NE(options, resolve_text(kPlanned));
}

TEST(Wiring, ComplaintsNameTheLineAndWhatIsMissing) {
  EXPECT_EQ(complaint("name: megascale\ngpus: 1024\nwiring:\n  - {remove: leaf0->spine1}\n"
                      "  - {remove: leaf0->spine1}\n"),
            "test.yaml:5: wiring[1]: there is no cable \"leaf0->spine1\"");
  EXPECT_THAT(complaint(wired("{remove: leaf0->spine77}")),
              HasSubstr("there is no cable \"leaf0->spine77\""));
  EXPECT_THAT(complaint(wired("{remove: node0.gpu0->node0.nic0}")),
              HasSubstr("\"node0.gpu0->node0.nic0\" lies within a node"));
  EXPECT_THAT(complaint(wired("{swap: [node0.nic0, node0.nic0]}")),
              HasSubstr("swaps node0.nic0 with itself"));
  EXPECT_THAT(complaint(wired("{swap: [node0.nic0, leaf0]}")), HasSubstr("leaf0 is no NIC"));
  EXPECT_THAT(complaint(wired("{swap: [node0.nic0, node0.nic99]}")),
              HasSubstr("there is no NIC \"node0.nic99\" to swap with node0.nic0"));
  EXPECT_THAT(complaint(wired("{swap: [node7000.nic0, node0.nic0]}")),
              HasSubstr("there is no NIC \"node7000.nic0\" to swap with node0.nic0"));
  EXPECT_THAT(complaint(wired("{swap: [leaf0->spine1, node0.nic0]}")),
              HasSubstr("there is no NIC \"leaf0->spine1\" to swap with node0.nic0"));
  EXPECT_THAT(complaint(wired("{swap: [leaf0->spine1, leaf0->spine99]}")),
              HasSubstr("there is no cable \"leaf0->spine99\""));
  EXPECT_THAT(complaint(wired("{swap: [node0.nic0]}")), HasSubstr("needs two NICs or two cables"));
  EXPECT_THAT(complaint(wired("{swap: [leaf0->spine1, spine1->leaf0]}")),
              HasSubstr("are one cable"));
  EXPECT_THAT(complaint(wired("{swap: [leaf0->spine1, spine1->leaf1]}")),
              HasSubstr("spine1 would be plugged into itself"));
  EXPECT_THAT(complaint(wired("{cable: leaf0->spine1}")),
              HasSubstr("changes neither bandwidth nor latency"));
  EXPECT_THAT(complaint(wired("{add: leaf0->spine1}")), HasSubstr("needs a bandwidth"));
  EXPECT_THAT(complaint(wired("{add: leaf0->node0.gpu0, bandwidth: 1 Gb/s}")),
              HasSubstr("does not join NICs or switches"));
  EXPECT_THAT(complaint(wired("{add: leaf0, bandwidth: 1 Gb/s}")),
              HasSubstr("does not name two vertices"));
  EXPECT_THAT(complaint(wired("{add: leaf0->leaf0, bandwidth: 1 Gb/s}")),
              HasSubstr("has one end twice"));
  EXPECT_THAT(complaint(wired("{remove: leaf0->spine1, bandwidth: 1 Gb/s}")),
              HasSubstr("does not belong to remove"));
  EXPECT_THAT(complaint(wired("{remove: leaf0->spine1, add: x}")),
              HasSubstr("stands beside another change"));
  EXPECT_THAT(complaint(wired("{}")),
              HasSubstr("names no change: one of swap, remove, cable, add"));
  EXPECT_THAT(complaint(wired("{unplug: x}")), HasSubstr("unknown key"));
}

TEST(Wiring, OptionsMadeInCodeAreCheckedToo) {
  Cluster::Options options = resolve_text(kPlanned);
  options.wiring = {{WiringAction::Remove, "leaf0->nowhere", "", {}, {}}};
  try {
    const Cluster cluster(options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "cluster megascale: wiring[0]: there is no cable \"leaf0->nowhere\"");
  }
}

}  // namespace
}  // namespace foresail::topologies
