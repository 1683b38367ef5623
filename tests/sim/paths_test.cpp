#include "foresail/sim/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "foresail/base/error.h"
#include "test_clusters.h"

namespace foresail::sim {
namespace {

using topologies::NetworkOptions;
using topologies::Routing;

struct Fabric {
  Fabric(const topologies::Cluster::Options& built, const NetworkOptions& network)
      : cluster(built), options(network), paths(cluster, options, {}, 1, fluid) {}
  topologies::Cluster cluster;
  NetworkOptions options;
  FluidNetwork fluid;
  Paths paths;
};

DeviceId device(int node, int gpu = 0) {
  return DeviceId{static_cast<std::uint32_t>(8 * node + gpu)};
}

NetworkOptions routed(Routing routing) {
  NetworkOptions options;
  options.routing = routing;
  return options;
}

double weight_towards(const Fabric& fabric, const Load& load, const std::string& name) {
  for (const auto& [pipe, weight] : load.pipes) {
    if (fabric.paths.pipe_name(PipeId{pipe}) == name) return weight;
  }
  return 0;
}

TEST(Paths, HashedQueuePairsTakeOnePathEach) {
  Fabric fabric(test::small_clos(8), routed(Routing::Ecmp));
  std::set<std::vector<std::uint32_t>> ways;
  for (std::uint64_t pair = 0; pair < 64; ++pair) {
    Load load;
    fabric.paths.add(device(0), device(4), pair, 1, load);
    EXPECT_EQ(load.pipes.size(), 4u);  // NIC, up, down, NIC
    EXPECT_EQ(load.hops, 3);
    std::vector<std::uint32_t> way;
    for (const auto& [pipe, weight] : load.pipes) {
      EXPECT_EQ(weight, 1);
      way.push_back(pipe);
    }
    ways.insert(way);
  }
  EXPECT_EQ(ways.size(), 4u);  // all spines are used
}

TEST(Paths, QueuePairsTakeThePortsOfANicInTurn) {
  topologies::Cluster::Options twin = test::small_clos(8);
  twin.fabric.nic_ports = 2;
  NetworkOptions in_turn = routed(Routing::Ecmp);
  in_turn.lag = topologies::Lag::QueueAffinity;
  Fabric fabric(twin, in_turn);
  std::map<std::string, int> ports;
  for (std::uint64_t pair = 0; pair < 64; ++pair) {
    Load load;
    Load again;
    fabric.paths.add(device(0), device(4), pair, 1, load);
    fabric.paths.add(device(0), device(4), pair, 1, again);
    EXPECT_EQ(load.pipes, again.pipes);
    for (const auto& [pipe, weight] : load.pipes) {
      const std::string name = fabric.paths.pipe_name(PipeId{pipe});
      if (name.starts_with("node0.nic0->")) ++ports[name];
    }
  }
  EXPECT_EQ(ports.size(), 2u);
  for (const auto& [name, count] : ports) EXPECT_EQ(count, 32) << name;
}

TEST(Paths, EnhancedEcmpHashesTheQueuePairToo) {
  NetworkOptions enhanced = routed(Routing::Ecmp);
  enhanced.hash_queue_pair = true;
  Fabric plain(test::small_clos(8), routed(Routing::Ecmp));
  Fabric deep(test::small_clos(8), enhanced);
  int different = 0;
  for (std::uint64_t pair = 0; pair < 64; ++pair) {
    Load a;
    Load b;
    plain.paths.add(device(0), device(4), pair, 1, a);
    deep.paths.add(device(0), device(4), pair, 1, b);
    std::set<std::string> names_a;
    std::set<std::string> names_b;
    for (const auto& [pipe, weight] : a.pipes) names_a.insert(plain.paths.pipe_name(PipeId{pipe}));
    for (const auto& [pipe, weight] : b.pipes) names_b.insert(deep.paths.pipe_name(PipeId{pipe}));
    different += names_a != names_b ? 1 : 0;
  }
  EXPECT_GT(different, 16);
}

TEST(Paths, DModKSpreadsDestinationsEvenly) {
  Fabric fabric(test::small_clos(8), routed(Routing::DModK));
  std::map<std::string, int> uses;
  for (int to = 4; to < 8; ++to) {
    for (int gpu = 0; gpu < 8; ++gpu) {
      Load load;
      fabric.paths.add(device(0, gpu), device(to, gpu), 7, 1, load);
      for (const auto& [pipe, weight] : load.pipes) ++uses[fabric.paths.pipe_name(PipeId{pipe})];
    }
  }
  // Every leaf spreads its 4 destinations over its 4 uplinks.
  for (int spine = 0; spine < 4; ++spine) {
    for (int leaf = 0; leaf < 8; ++leaf) {
      const std::string name = "leaf" + std::to_string(leaf) + "->spine" + std::to_string(spine);
      EXPECT_EQ(uses[name], 1) << name;
    }
  }
}

TEST(Paths, DModKUsesParallelCablesInBothDirections) {
  topologies::Cluster::Options options = test::small_clos(8);
  options.fabric.switch_ports = 64;  // one spine, 4 cables to each leaf
  Fabric fabric(options, routed(Routing::DModK));
  std::set<std::string> down;
  for (int to = 4; to < 8; ++to) {
    Load load;
    fabric.paths.add(device(0), device(to), 7, 1, load);
    for (const auto& [pipe, weight] : load.pipes) {
      const std::string name = fabric.paths.pipe_name(PipeId{pipe});
      if (name.starts_with("spine0->leaf8")) down.insert(name);
    }
  }
  EXPECT_EQ(down.size(), 4u);
}

TEST(Paths, SprayedWeightsOfAnyFabricSumToOneAtEveryCut) {
  topologies::Cluster::Options options = test::small_clos(8);
  options.wiring = {{topologies::WiringAction::Remove, "leaf0->spine3", {}, {}, {}}};
  Fabric fabric(options, routed(Routing::Spray));
  Load load;
  fabric.paths.add(device(0), device(4), 1, 1, load);
  double up = 0;
  for (int spine = 0; spine < 4; ++spine) {
    up += weight_towards(fabric, load, "leaf0->spine" + std::to_string(spine));
  }
  EXPECT_NEAR(up, 1, 1e-12);
  EXPECT_NEAR(weight_towards(fabric, load, "leaf0->spine1"), 1.0 / 3, 1e-12);
  EXPECT_EQ(weight_towards(fabric, load, "leaf0->spine3"), 0);
}

TEST(Paths, AdaptiveRoutingFollowsBandwidth) {
  topologies::Cluster::Options options = test::small_clos(8);
  options.wiring = {
      {topologies::WiringAction::Cable, "leaf0->spine3", {}, Bandwidth::gbps(100), {}}};
  Fabric even(options, routed(Routing::Spray));
  Fabric adaptive(options, routed(Routing::Adaptive));
  Load a;
  Load b;
  even.paths.add(device(0), device(4), 1, 1, a);
  adaptive.paths.add(device(0), device(4), 1, 1, b);
  EXPECT_NEAR(weight_towards(even, a, "leaf0->spine3"), 0.25, 1e-12);
  EXPECT_NEAR(weight_towards(adaptive, b, "leaf0->spine3"), 100.0 / 700, 1e-12);
  // Four flows share the uplinks of their leaf: the slow one holds the even ones back.
  EXPECT_LT(even.fluid.full_rate(even.paths.make_route(a)) / 4,
            adaptive.fluid.full_rate(adaptive.paths.make_route(b)) / 3.5);
}

TEST(Paths, ReroutedFlowsAvoidWhatIsDownAndComeBack) {
  Fabric fabric(test::small_clos(8), routed(Routing::Ecmp));
  Load load;
  fabric.paths.add(device(0), device(4), 1, 1, load);
  const RouteId route = fabric.paths.make_route(load);
  std::string uplink;
  for (const auto& [pipe, weight] : load.pipes) {
    const std::string name = fabric.paths.pipe_name(PipeId{pipe});
    if (name.starts_with("leaf0->spine")) uplink = name;
  }
  const LinkId link = *fabric.cluster.find_link(uplink);
  EXPECT_EQ(fabric.paths.current(route), route);
  fabric.paths.set_factor(link, 0, SimTime{});
  fabric.paths.set_factor(topologies::Cluster::reverse(link), 0, SimTime{});
  EXPECT_EQ(fabric.paths.current(route), route);  // nobody has noticed
  fabric.paths.reroute();
  const RouteId detour = fabric.paths.current(route);
  ASSERT_NE(detour, route);
  for (const RouteEntry& entry : fabric.fluid.route(detour)) {
    EXPECT_NE(fabric.paths.pipe_name(entry.pipe), uplink);
  }
  fabric.paths.set_factor(link, 1, SimTime{});
  fabric.paths.set_factor(topologies::Cluster::reverse(link), 1, SimTime{});
  fabric.paths.reroute();
  const std::vector<RouteEntry> back = fabric.fluid.route(fabric.paths.current(route));
  EXPECT_TRUE(std::ranges::any_of(
      back, [&](const RouteEntry& entry) { return fabric.paths.pipe_name(entry.pipe) == uplink; }));
}

// Of a NIC with two ports one is down before anything is laid: the other carries all, once.
TEST(Paths, RoutesLaidWhileALinkIsDownKeepTheirLoad) {
  topologies::Cluster::Options twin = test::small_clos(8);
  twin.fabric.nic_ports = 2;
  NetworkOptions in_turn = routed(Routing::Ecmp);
  in_turn.lag = topologies::Lag::QueueAffinity;
  Fabric fabric(twin, in_turn);
  const auto ports = fabric.cluster.next_hops(fabric.cluster.nic_vertex(device(0)),
                                              fabric.cluster.nic_vertex(device(4)));
  ASSERT_EQ(ports.size(), 2u);
  const LinkId dead = ports[0];
  const LinkId alive = ports[1];
  const auto load_of = [&](RouteId route, LinkId link) {
    double weight = 0;
    for (const RouteEntry& entry : fabric.fluid.route(fabric.paths.current(route))) {
      if (entry.pipe == fabric.paths.pipe_of(link)) weight += entry.weight;
    }
    return weight;
  };
  const auto set = [&](double factor) {
    fabric.paths.set_factor(dead, factor, SimTime{});
    fabric.paths.set_factor(topologies::Cluster::reverse(dead), factor, SimTime{});
    fabric.paths.reroute();
  };
  set(0);
  Load load;
  fabric.paths.add(device(0), device(4), 1, 0.5, load);
  fabric.paths.add(device(0), device(4), 2, 0.5, load);
  const RouteId route = fabric.paths.make_route(load);
  EXPECT_EQ(load_of(route, alive), 1);
  EXPECT_EQ(load_of(route, dead), 0);
  set(1);
  EXPECT_EQ(load_of(route, alive), 0.5);
  EXPECT_EQ(load_of(route, dead), 0.5);
}

TEST(Paths, WhatARouteLoadsBesidesItsLegsStays) {
  Fabric fabric(test::small_clos(8), routed(Routing::Ecmp));
  const LinkId nvlink = fabric.cluster.out_links(fabric.cluster.device_vertex(device(0)))[0];
  Load load;
  load.pipes[fabric.paths.pipe_of(nvlink).value] = 2;
  const RouteId inside = fabric.paths.make_route(load);
  fabric.paths.add(device(0), device(4), 1, 1, load);
  const RouteId route = fabric.paths.make_route(load);
  for (int spine = 0; spine < 3; ++spine) {
    const LinkId link = *fabric.cluster.find_link("leaf0->spine" + std::to_string(spine));
    fabric.paths.set_factor(link, 0, SimTime{});
    fabric.paths.set_factor(topologies::Cluster::reverse(link), 0, SimTime{});
  }
  fabric.paths.reroute();
  EXPECT_EQ(fabric.paths.current(inside), inside);
  const std::vector<RouteEntry> entries = fabric.fluid.route(fabric.paths.current(route));
  EXPECT_EQ(entries.size(), 5u);
  EXPECT_TRUE(std::ranges::any_of(entries, [&](const RouteEntry& entry) {
    return entry.pipe == fabric.paths.pipe_of(nvlink) && entry.weight == 2;
  }));
}

TEST(Paths, WithoutGpuDirectBytesCrossTheHost) {
  topologies::Cluster::Options options = test::small_clos(8);
  options.node.pcie.bandwidth = Bandwidth::gigabytes_per_second(25);
  for (int s = 0; s < 4; ++s) {
    options.node.pcie.switches.push_back({{2 * s, 2 * s + 1}, {2 * s, 2 * s + 1}});
  }
  NetworkOptions bounced = routed(Routing::Ecmp);
  bounced.nccl.gpudirect = false;
  Fabric direct(options, routed(Routing::Ecmp));
  Fabric host(options, bounced);
  Load a;
  Load b;
  direct.paths.add(device(0), device(4), 1, 1, a);
  host.paths.add(device(0), device(4), 1, 1, b);
  EXPECT_EQ(weight_towards(direct, a, "node0.pcie0->node0.host"), 0);
  EXPECT_EQ(weight_towards(host, b, "node0.pcie0->node0.host"), 1);
  EXPECT_EQ(weight_towards(host, b, "node0.host->node0.pcie0"), 1);
}

TEST(Paths, FlowsAreNamedByNicAndQueuePair) {
  Fabric fabric(test::small_clos(8), routed(Routing::Ecmp));
  Load load;
  fabric.paths.add(device(0, 2), device(4, 2), 1, 1, load);
  EXPECT_EQ(fabric.paths.describe(fabric.paths.make_route(load)), "node0.nic2->node4.nic2 qp 17");
}

}  // namespace
}  // namespace foresail::sim
