#include "tiers.h"

#include <fmt/format.h>

namespace foresail::topologies {
namespace {

std::string name_of(const Cluster& cluster, std::size_t tier) {
  const FabricKind kind = cluster.options().fabric.kind;
  if (kind == FabricKind::Dragonfly || kind == FabricKind::Torus) return "router";
  if (tier > 3) return fmt::format("tier {}", tier);
  return tier == 1 ? "leaf" : tier == 2 ? "spine" : "core";
}

void keep_larger(Ports& most, const Ports& ports) {
  if (count(ports) > count(most)) most = ports;
}

void add(Bandwidth& total, const Ports& ports) {
  total = Bandwidth::bps(total.bits_per_second() + sum(ports).bits_per_second());
}

}  // namespace

int count(const Ports& ports) {
  int total = 0;
  for (const auto& [bandwidth, number] : ports) total += number;
  return total;
}

Bandwidth sum(const Ports& ports) {
  std::int64_t total = 0;
  for (const auto& [bandwidth, number] : ports) total += number * bandwidth.bits_per_second();
  return Bandwidth::bps(total);
}

std::vector<Tier> tiers_of(const Cluster& cluster) {
  std::vector<Tier> tiers;
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const Vertex& vertex = cluster.vertices()[VertexId{v}];
    if (vertex.kind != VertexKind::Switch) continue;
    const auto wanted = static_cast<std::size_t>(vertex.tier);
    while (tiers.size() < wanted) {
      tiers.emplace_back();
      tiers.back().name = name_of(cluster, tiers.size());
    }
    Tier& tier = tiers[wanted - 1];
    ++tier.switches;
    Ports down;
    Ports up;
    Ports across;
    for (const LinkId id : cluster.out_links(VertexId{v})) {
      const Link& link = cluster.links()[id];
      const Vertex& to = cluster.vertices()[link.to];
      const bool is_across = to.kind == VertexKind::Switch && to.tier == vertex.tier;
      Ports& side = is_across ? across : to.tier > vertex.tier ? up : down;
      ++side[link.bandwidth];
    }
    keep_larger(tier.ports_down, down);
    keep_larger(tier.ports_up, up);
    keep_larger(tier.ports_across, across);
    add(tier.down, down);
    add(tier.up, up);
    add(tier.across, across);
  }
  return tiers;
}

double oversubscription(const Tier& tier) {
  if (tier.ports_up.empty()) return 0;
  return sum(tier.ports_down).bytes_per_second() / sum(tier.ports_up).bytes_per_second();
}

}  // namespace foresail::topologies
