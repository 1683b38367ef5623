#include "path_latency.h"

#include <algorithm>
#include <map>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

using topologies::Cluster;
using topologies::VertexKind;

// Whether all links of the fabric take equally long: then one way tells of all shortest ones.
bool is_uniform(const Cluster& cluster) {
  std::optional<Duration> first;
  for (const topologies::Link& link : cluster.links()) {
    const VertexKind from = cluster.vertices()[link.from].kind;
    const VertexKind to = cluster.vertices()[link.to].kind;
    const bool has_switch = from == VertexKind::Switch || to == VertexKind::Switch;
    if (!has_switch && (from != VertexKind::Nic || to != VertexKind::Nic)) continue;  // in a node
    if (!first) first = link.latency;
    if (link.latency != *first) return false;
  }
  return true;
}

std::optional<Duration> first_way(const Cluster& cluster, VertexId from, VertexId to) {
  Duration sum{};
  for (VertexId at = from; at != to;) {
    const std::span<const LinkId> next = cluster.next_hops(at, to);
    if (next.empty()) return std::nullopt;
    sum += cluster.links()[next[0]].latency;
    at = cluster.links()[next[0]].to;
  }
  return sum;
}

// All shortest ways have equally many links: level by level.
std::optional<Duration> slowest_way(const Cluster& cluster, VertexId from, VertexId to) {
  std::map<VertexId, Duration> here = {{from, Duration{}}};
  while (!here.contains(to)) {
    std::map<VertexId, Duration> next;
    for (const auto& [at, sum] : here) {
      for (const LinkId l : cluster.next_hops(at, to)) {
        const topologies::Link& link = cluster.links()[l];
        Duration& longest = next[link.to];
        longest = std::max(longest, sum + link.latency);
      }
    }
    if (next.empty()) return std::nullopt;
    here = std::move(next);
  }
  return here.at(to);
}

// Ways between the NICs of a group's members, by node and position.
class Edges {
 public:
  Edges(const Cluster& cluster, const CollectiveGroup& group)
      : cluster_(cluster), group_(group), is_uniform_(is_uniform(cluster)) {}

  // Beyond what the tables assume; nothing if there is no way: the routes will say so.
  std::optional<Duration> delay(std::size_t from, std::size_t to, std::size_t position) {
    const VertexId source = cluster_.nic_vertex(member(from, position));
    const VertexId destination = cluster_.nic_vertex(member(to, position));
    const auto [entry, is_new] = known_.try_emplace({source, destination});
    if (is_new) {
      entry->second = is_uniform_ ? first_way(cluster_, source, destination)
                                  : slowest_way(cluster_, source, destination);
    }
    if (!entry->second) return std::nullopt;
    return std::max(Duration{}, *entry->second - kTabledPath);
  }

 private:
  DeviceId member(std::size_t node, std::size_t position) const {
    return group_.nodes[node][position % group_.nodes[node].size()];
  }

  const Cluster& cluster_;
  const CollectiveGroup& group_;
  bool is_uniform_;
  std::map<std::pair<VertexId, VertexId>, std::optional<Duration>> known_;
};

}  // namespace

std::optional<Duration> path_latency(const Cluster& cluster, DeviceId from, DeviceId to) {
  FORESAIL_EXPECT(cluster.node_of(from) != cluster.node_of(to));
  const VertexId source = cluster.nic_vertex(from);
  const VertexId destination = cluster.nic_vertex(to);
  return is_uniform(cluster) ? first_way(cluster, source, destination)
                             : slowest_way(cluster, source, destination);
}

StepDelay step_delay(const Cluster& cluster, const CollectiveGroup& group) {
  StepDelay delay;
  const std::size_t nodes = group.nodes.size();
  if (nodes < 2) return delay;
  Edges edges(cluster, group);
  Duration sum{};
  int count = 0;
  const std::vector<int> trees[] = {tree_parents(static_cast<int>(nodes), 0),
                                    tree_parents(static_cast<int>(nodes), 1)};
  for (std::size_t m = 0; m < group.narrowest(); ++m) {
    for (std::size_t n = 0; n < nodes; ++n) {
      if (const auto edge = edges.delay(n, (n + 1) % nodes, m)) {
        sum += *edge;
        ++count;
        delay.slowest = std::max(delay.slowest, *edge);
      }
      for (const std::vector<int>& parents : trees) {
        if (parents[n] < 0) continue;
        const auto edge = edges.delay(n, static_cast<std::size_t>(parents[n]), m);
        if (edge) delay.slowest = std::max(delay.slowest, *edge);
      }
    }
  }
  if (count > 0) delay.ring = sum / count;
  return delay;
}

}  // namespace foresail::sim
