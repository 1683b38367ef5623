#include "wiring.h"

#include <fmt/format.h>

#include <set>
#include <unordered_map>

#include "names.h"

namespace foresail::topologies {
namespace {

constexpr std::uint32_t kLinksMax = 1U << 24U;

using Fault = std::optional<std::string>;

class Rewiring {
 public:
  Rewiring(const Cluster::Options& options, const NodeShape& shape, GraphParts& parts)
      : parts_(parts),
        range_{static_cast<std::uint32_t>(options.nodes), static_cast<std::uint32_t>(shape.size)},
        latency_(options.fabric.link_latency) {
    std::unordered_map<std::uint64_t, int> count;  // of links with the same ends
    parts_.parallels.reserve(parts_.links.size());
    for (const Link& link : parts_.links) {
      parts_.parallels.push_back(count[(std::uint64_t{link.from.value} << 32U) | link.to.value]++);
    }
  }

  Fault apply(const WiringChange& change) {
    switch (change.action) {
      case WiringAction::Swap:
        return swap(change);
      case WiringAction::Remove:
        return remove(change);
      case WiringAction::Cable:
        return alter(change);
      case WiringAction::Add:
        return add(change);
    }
    return "unknown change";
  }

 private:
  bool is_in_fabric(VertexId vertex) const {
    const VertexKind kind = parts_.vertices[vertex].kind;
    return kind == VertexKind::Nic || kind == VertexKind::Switch;
  }
  bool is_in_fabric(LinkId link) const {
    return is_in_fabric(parts_.links[link].from) && is_in_fabric(parts_.links[link].to);
  }
  void renumber(LinkId link);
  std::optional<LinkId> find(const std::string& name) const;
  std::vector<LinkId> ports(VertexId nic) const;
  Fault cable_of_fabric(const std::string& name, LinkId& link) const;
  Fault exchange(LinkId first, LinkId second);
  Fault swap(const WiringChange& change);
  Fault remove(const WiringChange& change);
  Fault alter(const WiringChange& change);
  Fault add(const WiringChange& change);

  GraphParts& parts_;
  NodeRange range_;
  Duration latency_;
};

/// The lowest number that no other link with the same ends has.
void Rewiring::renumber(LinkId link) {
  const Link& item = parts_.links[link];
  std::set<int> taken;
  for (std::uint32_t l = 0; l < parts_.links.size(); ++l) {
    const Link& other = parts_.links[LinkId{l}];
    if (l == link.value || other.from != item.from || other.to != item.to) continue;
    taken.insert(parts_.parallels[l]);
  }
  int lowest = 0;
  while (taken.contains(lowest)) ++lowest;
  parts_.parallels[link.value] = lowest;
}

std::optional<LinkId> Rewiring::find(const std::string& name) const {
  const auto parsed = parse_link_name(parts_.vertices, range_, name);
  if (!parsed) return std::nullopt;
  for (std::uint32_t l = 0; l < parts_.links.size(); ++l) {
    const Link& link = parts_.links[LinkId{l}];
    if (link.from != parsed->from || link.to != parsed->to) continue;
    if (parts_.parallels[l] == parsed->parallel) return LinkId{l};
  }
  return std::nullopt;
}

std::vector<LinkId> Rewiring::ports(VertexId nic) const {
  std::vector<LinkId> found;
  for (std::uint32_t l = 0; l < parts_.links.size(); ++l) {
    if (parts_.links[LinkId{l}].from == nic && is_in_fabric(LinkId{l})) found.push_back(LinkId{l});
  }
  return found;
}

Fault Rewiring::cable_of_fabric(const std::string& name, LinkId& link) const {
  const auto found = find(name);
  if (!found) return fmt::format("there is no cable \"{}\"", name);
  if (!is_in_fabric(*found)) return fmt::format("\"{}\" lies within a node", name);
  link = *found;
  return std::nullopt;
}

/// Far ends change places: of u -> v and x -> y come u -> y and x -> v.
Fault Rewiring::exchange(LinkId first, LinkId second) {
  Link& a = parts_.links[first];
  Link& b = parts_.links[second];
  if (a.from == b.to || b.from == a.to) {
    return fmt::format("{} would be plugged into itself",
                       parts_.vertices[a.from == b.to ? a.from : b.from].name());
  }
  std::swap(a.to, b.to);
  parts_.links[Cluster::reverse(first)].from = a.to;
  parts_.links[Cluster::reverse(second)].from = b.to;
  for (const LinkId link : {first, second}) {
    renumber(link);
    renumber(Cluster::reverse(link));
  }
  return std::nullopt;
}

Fault Rewiring::swap(const WiringChange& change) {
  if (change.first == change.second) return fmt::format("swaps {} with itself", change.first);
  const auto a = find_vertex(parts_.vertices, range_, change.first);
  const auto b = find_vertex(parts_.vertices, range_, change.second);
  if (a || b) {
    const auto kind_of = [&](const std::optional<VertexId>& end) {
      return end ? parts_.vertices[*end].kind : VertexKind::Switch;
    };
    for (const auto& [name, end] : {std::pair(change.first, a), std::pair(change.second, b)}) {
      if (kind_of(end) == VertexKind::Nic) continue;
      const auto& other = name == change.first ? change.second : change.first;
      if (end) return fmt::format("{} is no NIC", name);
      return fmt::format("there is no NIC \"{}\" to swap with {}", name, other);
    }
    const std::vector<LinkId> from_a = ports(*a);
    const std::vector<LinkId> from_b = ports(*b);
    if (from_a.size() != from_b.size()) {
      return fmt::format("{} has {} cables, {} has {}", change.first, from_a.size(), change.second,
                         from_b.size());
    }
    for (std::size_t i = 0; i < from_a.size(); ++i) {
      if (Fault fault = exchange(from_a[i], from_b[i])) return fault;
    }
    return std::nullopt;
  }
  LinkId first;
  LinkId second;
  if (Fault fault = cable_of_fabric(change.first, first)) return fault;
  if (Fault fault = cable_of_fabric(change.second, second)) return fault;
  if (first == second || first == Cluster::reverse(second)) {
    return fmt::format("{} and {} are one cable", change.first, change.second);
  }
  return exchange(first, second);
}

Fault Rewiring::remove(const WiringChange& change) {
  LinkId link;
  if (Fault fault = cable_of_fabric(change.first, link)) return fault;
  IdVector<LinkId, Link> rest;
  std::vector<int> parallels;
  rest.reserve(parts_.links.size());
  for (std::uint32_t l = 0; l < parts_.links.size(); ++l) {
    if (l != link.value && LinkId{l} != Cluster::reverse(link)) {
      rest.push_back(parts_.links[LinkId{l}]);
      parallels.push_back(parts_.parallels[l]);
    }
  }
  parts_.parallels = std::move(parallels);
  parts_.links = std::move(rest);
  return std::nullopt;
}

Fault Rewiring::alter(const WiringChange& change) {
  const auto link = find(change.first);
  if (!link) return fmt::format("there is no cable \"{}\"", change.first);
  if (!change.bandwidth && !change.latency) {
    return fmt::format("changes neither bandwidth nor latency of \"{}\"", change.first);
  }
  for (const LinkId id : {*link, Cluster::reverse(*link)}) {
    Link& item = parts_.links[id];
    if (change.bandwidth) item.bandwidth = *change.bandwidth;
    if (change.latency) item.latency = *change.latency;
  }
  return std::nullopt;
}

Fault Rewiring::add(const WiringChange& change) {
  const auto ends = parse_link_name(parts_.vertices, range_, change.first);
  if (!ends) return fmt::format("\"{}\" does not name two vertices as \"a->b\"", change.first);
  if (!is_in_fabric(ends->from) || !is_in_fabric(ends->to)) {
    return fmt::format("\"{}\" does not join NICs or switches", change.first);
  }
  if (ends->from == ends->to) return fmt::format("\"{}\" has one end twice", change.first);
  if (!change.bandwidth) return fmt::format("\"{}\" needs a bandwidth", change.first);
  if (parts_.links.size() >= kLinksMax) return "too many links";
  parts_.connect(ends->from.value, ends->to.value, *change.bandwidth,
                 change.latency.value_or(latency_));
  parts_.parallels.resize(parts_.links.size());
  const LinkId added{static_cast<std::uint32_t>(parts_.links.size() - 2)};
  renumber(added);
  renumber(Cluster::reverse(added));
  return std::nullopt;
}

}  // namespace

std::optional<WiringFault> apply_wiring(const Cluster::Options& options, const NodeShape& shape,
                                        GraphParts& parts) {
  if (options.wiring.empty()) return std::nullopt;
  Rewiring rewiring(options, shape, parts);
  for (std::size_t i = 0; i < options.wiring.size(); ++i) {
    if (const Fault fault = rewiring.apply(options.wiring[i])) return WiringFault{i, *fault};
  }
  return std::nullopt;
}

std::optional<WiringFault> broken_wiring(const Cluster::Options& options) {
  if (options.wiring.empty()) return std::nullopt;
  Cluster::Options planned = options;
  planned.wiring.clear();
  const NodeShape shape(options.node, options.device.nvlink);
  GraphParts parts = build_graph(planned, shape);
  return apply_wiring(options, shape, parts);
}

}  // namespace foresail::topologies
