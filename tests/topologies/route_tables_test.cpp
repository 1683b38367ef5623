#include "foresail/topologies/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <thread>

#include "catalogue.h"
#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::topologies {
namespace {

int below(RandomStream& random, int count) {
  return static_cast<int>(random.below(static_cast<std::uint64_t>(count)));
}

CableEnd nic_end(int node, int nic) {
  return {node, nic, ""};
}
CableEnd switch_end(int index) {
  return {-1, 0, "s" + std::to_string(index)};
}

/// Switches cabled at random, NICs with one to three ports anywhere (or none).
Cluster::Options random_graph(RandomStream& random) {
  Cluster::Options options;
  options.name = "random";
  options.device.nvlink = 100_Gbps;
  options.nodes = 1 + below(random, 6);
  options.node = {
      .devices = 3, .nics = 1 + below(random, 3), .nic_bandwidth = 100_Gbps, .cores = 0};
  options.fabric.kind = FabricKind::Graph;
  GraphSpec& graph = options.fabric.graph;
  const int switches = 1 + below(random, 12);
  for (int s = 0; s < switches; ++s) graph.switches.push_back({"s" + std::to_string(s), 1});
  for (int c = below(random, 3 * switches); c > 0; --c) {
    const int a = below(random, switches);
    const int b = below(random, switches);
    if (a == b) continue;
    graph.cables.push_back({switch_end(a), switch_end(b), 100_Gbps, {}, 1 + below(random, 2)});
  }
  for (int node = 0; node < options.nodes; ++node) {
    for (int nic = 0; nic < options.node.nics; ++nic) {
      for (int port = below(random, 4); port > 0; --port) {
        CableEnd a = nic_end(node, nic);
        CableEnd b = switch_end(below(random, switches));
        if (below(random, 2) == 0) std::swap(a, b);
        graph.cables.push_back({a, b, 100_Gbps, {}, 1 + below(random, 2)});
      }
    }
  }
  graph.cables.push_back({nic_end(0, 0), switch_end(0), 100_Gbps, {}, 1});
  return options;
}

bool relays(const Cluster& cluster, VertexId vertex) {
  return cluster.vertices()[vertex].kind == VertexKind::Switch;
}

/// Hops from every vertex to `nic` over links that are up, by relaxing until nothing changes.
std::vector<int> hops_to(const Cluster& cluster, VertexId nic, const std::set<LinkId>& down) {
  constexpr int kFar = 1 << 20;
  std::vector<int> hops(cluster.vertices().size(), kFar);
  hops[nic.value] = 0;
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (std::uint32_t l = 0; l < cluster.links().size(); ++l) {
      const auto& [from, to, bandwidth, latency] = cluster.links()[LinkId{l}];
      const VertexKind kind = cluster.vertices()[from].kind;
      if (kind != VertexKind::Nic && kind != VertexKind::Switch) continue;
      if (to != nic && !relays(cluster, to)) continue;
      if (down.contains(LinkId{l}) || hops[to.value] + 1 >= hops[from.value]) continue;
      hops[from.value] = hops[to.value] + 1;
      has_changed = true;
    }
  }
  return hops;
}

void expect_equal_to_brute_force(const Cluster& cluster, const RouteTables& tables,
                                 const std::set<LinkId>& down) {
  for (std::uint32_t n = 0; n < cluster.vertices().size(); ++n) {
    const VertexId nic{n};
    if (cluster.vertices()[nic].kind != VertexKind::Nic) continue;
    const std::vector<int> hops = hops_to(cluster, nic, down);
    for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
      const VertexKind kind = cluster.vertices()[VertexId{v}].kind;
      if (v == n || (kind != VertexKind::Nic && kind != VertexKind::Switch)) continue;
      std::vector<LinkId> closer;
      for (const LinkId id : cluster.out_links(VertexId{v})) {
        const VertexId to = cluster.links()[id].to;
        const bool is_way = to == nic || relays(cluster, to);
        if (is_way && !down.contains(id) && hops[to.value] + 1 == hops[v]) closer.push_back(id);
      }
      const auto found = tables.next_hops(VertexId{v}, nic);
      ASSERT_EQ(std::vector<LinkId>(found.begin(), found.end()), closer);
    }
  }
}

std::vector<LinkId> random_links(const Cluster& cluster, RandomStream& random) {
  std::vector<LinkId> links;
  for (std::uint32_t l = 0; l < cluster.links().size(); ++l) {
    if (below(random, 5) == 0) links.push_back(LinkId{l});
  }
  return links;
}

// Hops fall by one at every step, so that routes are shortest and have no loops.
TEST(RouteTables, EqualBruteForceOnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random = Rng(seed).stream("graph");
    const Cluster cluster(random_graph(random));
    expect_equal_to_brute_force(cluster, RouteTables(cluster), {});
    const std::vector<LinkId> down = random_links(cluster, random);
    expect_equal_to_brute_force(cluster, RouteTables(cluster, down), {down.begin(), down.end()});
  }
}

TEST(RouteTables, EqualBruteForceOnCataloguesWithDeadLinks) {
  for (const char* name : {"{name: hpn, gpus: 16}", "{name: dragonfly, gpus: 64}",
                           "{name: dgx_a100_pcie, gpus: 32}"}) {
    SCOPED_TRACE(name);
    RandomStream random = Rng(7).stream(name);
    const Cluster cluster = cluster_of(name);
    const std::vector<LinkId> down = random_links(cluster, random);
    expect_equal_to_brute_force(cluster, RouteTables(cluster, down), {down.begin(), down.end()});
  }
}

TEST(RouteTables, WithoutDeadLinksAreTheClusters) {
  const Cluster cluster = cluster_of("{name: torus_3d, gpus: 512}");
  const RouteTables tables(cluster);
  const VertexId nic = cluster.nic_vertex(device_id(100));
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    if (cluster.vertices()[VertexId{v}].kind != VertexKind::Switch) continue;
    const auto own = cluster.next_hops(VertexId{v}, nic);
    const auto found = tables.next_hops(VertexId{v}, nic);
    ASSERT_TRUE(std::ranges::equal(own, found));
  }
}

// A leaf of MegaScale loses one of 32 uplinks: 31 remain, also for what comes down to it.
TEST(RouteTables, ADeadUplinkLeavesTheGroup) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 1024}");
  const LinkId up = cluster.find_link("leaf0->spine5").value();
  const RouteTables tables(cluster, {up, Cluster::reverse(up)});
  const VertexId leaf = cluster.find_vertex("leaf0").value();
  const VertexId far = cluster.nic_vertex(device_id(64 * 8));
  EXPECT_EQ(cluster.next_hops(leaf, far).size(), 32U);
  const auto hops = tables.next_hops(leaf, far);
  EXPECT_EQ(hops.size(), 31U);
  EXPECT_EQ(std::ranges::find(hops, up), hops.end());
  // Spine 5 has only the way round over another leaf and spine.
  const VertexId spine = cluster.find_vertex("spine5").value();
  const VertexId near = cluster.nic_vertex(device_id(0));
  for (const LinkId hop : tables.next_hops(spine, near)) {
    EXPECT_NE(cluster.links()[hop].to, leaf);
  }
}

TEST(RouteTables, ADualTorNicSurvivesOnePort) {
  const Cluster cluster = cluster_of("{name: hpn, gpus: 2048}");
  const VertexId nic = cluster.nic_vertex(device_id(0));
  const VertexId far = cluster.nic_vertex(device_id(1024));
  const LinkId port = cluster.find_link("node0.nic0->leaf0").value();
  const RouteTables tables(cluster, {port, Cluster::reverse(port)});
  ASSERT_EQ(cluster.next_hops(nic, far).size(), 2U);
  ASSERT_EQ(tables.next_hops(nic, far).size(), 1U);
  EXPECT_EQ(cluster.link_name(tables.next_hops(nic, far)[0]), "node0.nic0->leaf1");
  // The way back stays in the plane of the port that is left.
  const auto back = tables.next_hops(far, nic);
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(cluster.link_name(back[0]), "node128.nic0->leaf17");
}

TEST(RouteTables, NoWayIsEmpty) {
  const Cluster cluster = cluster_of("{name: megascale, gpus: 512}");
  const VertexId nic = cluster.nic_vertex(device_id(0));
  const VertexId other = cluster.nic_vertex(device_id(8));
  const LinkId in = cluster.find_link("leaf0->node0.nic0").value();
  const RouteTables tables(cluster, {in});
  EXPECT_TRUE(tables.next_hops(other, nic).empty());
  EXPECT_TRUE(tables.next_hops(cluster.find_vertex("leaf0").value(), nic).empty());
  EXPECT_TRUE(tables.next_hops(cluster.find_vertex("spine3").value(), nic).empty());
  EXPECT_FALSE(tables.next_hops(nic, other).empty());  // only one direction is down
}

TEST(RouteTables, AnswersDoNotDependOnTheOrderOfQuestions) {
  const Cluster cluster = cluster_of("{name: dragonfly, gpus: 1056}");
  const RouteTables forwards(cluster);
  const RouteTables backwards(cluster);
  std::vector<VertexId> switches;
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    if (cluster.vertices()[VertexId{v}].kind == VertexKind::Switch) switches.push_back(VertexId{v});
  }
  const VertexId nic = cluster.nic_vertex(device_id(500));
  std::vector<std::vector<LinkId>> first;
  for (const VertexId at : switches) {
    const auto hops = forwards.next_hops(at, nic);
    first.emplace_back(hops.begin(), hops.end());
  }
  for (std::size_t i = switches.size(); i-- > 0;) {
    ASSERT_TRUE(std::ranges::equal(backwards.next_hops(switches[i], nic), first[i]));
  }
}

TEST(RouteTables, ThreadsMayAskAtOnce) {
  const Cluster cluster = cluster_of("{name: torus_3d, gpus: 512}");
  const RouteTables tables(cluster, {cluster.find_link("router0->router1").value()});
  const std::uint32_t first_router = cluster.find_vertex("router0").value().value;
  const auto sum = [&](std::uint64_t seed) {
    RandomStream random = Rng(seed).stream("questions");
    std::size_t hops = 0;
    for (int i = 0; i < 20'000; ++i) {
      const VertexId at{first_router + static_cast<std::uint32_t>(below(random, 512))};
      hops += tables.next_hops(at, cluster.nic_vertex(device_id(below(random, 512)))).size();
    }
    return hops;
  };
  std::size_t one = 0;
  std::size_t other = 0;
  std::thread first([&] { one = sum(1); });
  std::thread second([&] { other = sum(2); });
  first.join();
  second.join();
  EXPECT_EQ(one, sum(1));
  EXPECT_EQ(other, sum(2));
}

}  // namespace
}  // namespace foresail::topologies
