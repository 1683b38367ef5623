#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/edmonds_karp_max_flow.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <map>
#include <set>

#include "foresail/base/error.h"
#include "foresail/topologies/cluster.h"
#include "tiers.h"

namespace foresail::topologies {
namespace {

constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using FlowGraph = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS,
    boost::property<boost::vertex_color_t, boost::default_color_type,
                    boost::property<boost::vertex_predecessor_t, Traits::edge_descriptor>>,
    boost::property<
        boost::edge_capacity_t, std::int64_t,
        boost::property<boost::edge_residual_capacity_t, std::int64_t,
                        boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

/// Switches are numbered last.
std::uint32_t first_switch(const Cluster& cluster) {
  auto first = static_cast<std::uint32_t>(cluster.vertices().size());
  while (first > 0 && cluster.vertices()[VertexId{first - 1}].kind == VertexKind::Switch) --first;
  return first;
}

/// The switches with a source and a sink beside them.
class SwitchFlow {
 public:
  explicit SwitchFlow(const Cluster& cluster)
      : cluster_(cluster),
        first_(first_switch(cluster)),
        source_(cluster.vertices().size() - first_),
        sink_(source_ + 1),
        graph_(sink_ + 1) {}

  bool is_switch(VertexId vertex) const {
    return cluster_.vertices()[vertex].kind == VertexKind::Switch;
  }

  /// Between every two switches, what `weigh` says of each link from one to the other, summed.
  template <class Weigh>
  void join_switches(const Weigh& weigh) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> pairs;
    for (std::uint32_t v = first_; v < cluster_.vertices().size(); ++v) {
      for (const LinkId id : cluster_.out_links(VertexId{v})) {
        const Link& link = cluster_.links()[id];
        // Both directions of a cable are alike: one pair of edges serves for both.
        if (v < link.to.value) pairs[{v, link.to.value}] += weigh(link);
      }
    }
    for (const auto& [ends, weight] : pairs) {
      join(ends.first - first_, ends.second - first_, weight, weight);
    }
  }
  void from_source(VertexId to, std::int64_t capacity) {
    join(source_, to.value - first_, capacity, 0);
  }
  void to_sink(VertexId from, std::int64_t capacity) {
    join(from.value - first_, sink_, capacity, 0);
  }
  std::int64_t greatest() { return boost::push_relabel_max_flow(graph_, source_, sink_); }
  std::int64_t greatest_of_few() { return boost::edmonds_karp_max_flow(graph_, source_, sink_); }

 private:
  // Either direction has a reverse edge of its own without capacity, as Boost's algorithms expect.
  void join(std::size_t a, std::size_t b, std::int64_t there, std::int64_t back) {
    if (there > 0) join_one_way(a, b, there);
    if (back > 0) join_one_way(b, a, back);
  }
  void join_one_way(std::size_t a, std::size_t b, std::int64_t capacity) {
    const auto forward = boost::add_edge(a, b, graph_).first;
    const auto backward = boost::add_edge(b, a, graph_).first;
    boost::put(boost::edge_capacity, graph_, forward, capacity);
    boost::put(boost::edge_capacity, graph_, backward, 0);
    boost::put(boost::edge_reverse, graph_, forward, backward);
    boost::put(boost::edge_reverse, graph_, backward, forward);
  }

  const Cluster& cluster_;
  const std::uint32_t first_;
  const std::size_t source_;
  const std::size_t sink_;
  FlowGraph graph_;
};

/// Whether a node belongs to the first half: of a torus, along its longest dimension.
bool is_in_first_half(const Cluster& cluster, int node) {
  const FabricSpec& fabric = cluster.options().fabric;
  if (fabric.kind != FabricKind::Torus) return node < cluster.options().nodes / 2;
  const std::vector<int>& sizes = fabric.torus.dimensions;
  const auto longest = std::ranges::max_element(sizes);
  int stride = 1;
  for (auto size = sizes.begin(); size != longest; ++size) stride *= *size;
  return node / stride % *longest < *longest / 2;
}

Bandwidth flow_between_halves(const Cluster& cluster) {
  SwitchFlow flow(cluster);
  flow.join_switches([](const Link& link) { return link.bandwidth.bits_per_second(); });
  std::map<VertexId, std::int64_t> sources;
  std::map<VertexId, std::int64_t> sinks;
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const Vertex& vertex = cluster.vertices()[VertexId{v}];
    if (vertex.kind != VertexKind::Nic) continue;
    auto& side = is_in_first_half(cluster, vertex.node) ? sources : sinks;
    for (const LinkId port : cluster.nic_ports(VertexId{v})) {
      const Link& link = cluster.links()[port];
      if (flow.is_switch(link.to)) side[link.to] += link.bandwidth.bits_per_second();
    }
  }
  for (const auto& [at, bits] : sources) flow.from_source(at, bits);
  for (const auto& [at, bits] : sinks) flow.to_sink(at, bits);
  return Bandwidth::bps(flow.greatest());
}

/// Whether traffic between halves stays below the top of a Clos of three tiers.
bool is_one_pod(const Cluster& cluster, std::int64_t groups) {
  const FabricSpec& fabric = cluster.options().fabric;
  if (fabric.tiers < 3 || groups == 1) return true;
  const std::int64_t groups_per_pod = fabric.leaves_per_pod / fabric.nic_ports;
  return fabric.pod_order == PodOrder::Rail && groups <= groups_per_pod;
}

Bisection half_of_narrowest_tier(const Cluster& cluster) {
  const Cluster::Options& options = cluster.options();
  const std::vector<Tier> tiers = tiers_of(cluster);
  const std::int64_t per_leaf = options.fabric.nodes_per_leaf;
  const std::int64_t groups = (options.nodes + per_leaf - 1) / per_leaf;
  Bisection bisection;
  bisection.method = "half of the narrowest tier";
  const auto cross = [&](std::string name, Bandwidth all) {
    const Bandwidth half = Bandwidth::bps(all.bits_per_second() / 2);
    bisection.tiers.push_back({std::move(name), half});
    const bool is_narrowest = bisection.tiers.size() == 1 || half < bisection.bandwidth;
    if (is_narrowest) bisection.bandwidth = half;
  };
  cross("nodes", tiers.front().down);
  if (groups > 1) cross(tiers[0].name, tiers[0].up);
  if (tiers.size() > 2 && !is_one_pod(cluster, groups)) cross(tiers[1].name, tiers[1].up);
  return bisection;
}

/// Switches that a NIC is cabled to.
std::set<VertexId> attachments(const Cluster& cluster, const SwitchFlow& flow, VertexId nic) {
  std::set<VertexId> found;
  for (const LinkId port : cluster.nic_ports(nic)) {
    if (flow.is_switch(cluster.links()[port].to)) found.insert(cluster.links()[port].to);
  }
  return found;
}

}  // namespace

Bisection bisection(const Cluster& cluster) {
  const Cluster::Options& options = cluster.options();
  if (!options.fabric.has_fabric()) return {};
  const bool is_regular = options.fabric.kind == FabricKind::Clos && options.wiring.empty();
  if (is_regular) return half_of_narrowest_tier(cluster);
  Bisection bisection;
  bisection.bandwidth = flow_between_halves(cluster);
  bisection.method = options.fabric.kind == FabricKind::Torus
                         ? "greatest flow between halves along the longest dimension"
                         : "greatest flow from the first half of the nodes to the second";
  return bisection;
}

Bandwidth bisection_bandwidth(const Cluster& cluster) {
  return bisection(cluster).bandwidth;
}

RouteCount count_routes(const Cluster& cluster, DeviceId from, DeviceId to) {
  const VertexId target = cluster.nic_vertex(to);
  FORESAIL_EXPECT(cluster.nic_vertex(from) != target);
  // Paths that reach each vertex after so many hops; all arrive together, for all are shortest.
  std::map<VertexId, std::int64_t> reached = {{cluster.nic_vertex(from), 1}};
  RouteCount count;
  while (!reached.contains(target)) {
    if (reached.empty()) return {};
    std::map<VertexId, std::int64_t> next;
    for (const auto& [at, paths] : reached) {
      for (const LinkId hop : cluster.next_hops(at, target)) {
        next[cluster.links()[hop].to] += paths;
      }
    }
    reached = std::move(next);
    ++count.hops;
  }
  count.paths = reached.at(target);
  return count;
}

int disjoint_paths(const Cluster& cluster, DeviceId from, DeviceId to) {
  SwitchFlow flow(cluster);
  const std::set<VertexId> here = attachments(cluster, flow, cluster.nic_vertex(from));
  const std::set<VertexId> there = attachments(cluster, flow, cluster.nic_vertex(to));
  for (const VertexId shared : here) {
    if (there.contains(shared)) return 0;
  }
  flow.join_switches([](const Link&) { return std::int64_t{1}; });
  for (const VertexId at : here) flow.from_source(at, kUnlimited);
  for (const VertexId at : there) flow.to_sink(at, kUnlimited);
  return static_cast<int>(flow.greatest_of_few());
}

}  // namespace foresail::topologies
