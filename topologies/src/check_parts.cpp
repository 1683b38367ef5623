#include "check_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace foresail::topologies {
namespace {

bool is_fabric(const Vertex& vertex) {
  return vertex.kind == VertexKind::Nic || vertex.kind == VertexKind::Switch;
}

}  // namespace

int WiringView::tier(VertexId id) const {
  const Vertex& at = vertex(id);
  if (at.kind == VertexKind::Nic) return 0;
  return at.kind == VertexKind::Switch ? at.tier : -1;
}

WiringView::WiringView(const Cluster& cluster) : cluster_(cluster) {
  const std::size_t count = cluster.vertices().size();
  up_.resize(count);
  down_.resize(count);
  beside_.resize(count);
  std::vector<std::pair<std::pair<VertexId, VertexId>, LinkId>> cables;
  for (std::uint32_t l = 0; l < cluster.links().size(); ++l) {
    const Link& link = cluster.links()[LinkId{l}];
    if (!is_fabric(vertex(link.from)) || !is_fabric(vertex(link.to))) continue;
    const auto rank = [&](VertexId id) { return std::pair(tier(id), id); };
    if (rank(link.from) < rank(link.to)) cables.push_back({{link.from, link.to}, LinkId{l}});
  }
  std::ranges::sort(cables);
  for (const auto& [ends, link] : cables) {
    if (pairs_.empty() || std::pair(pairs_.back().lower, pairs_.back().upper) != ends) {
      pairs_.push_back({ends.first, ends.second, {}, 0});
    }
    pairs_.back().links.push_back(link);
    pairs_.back().bandwidth += cluster.links()[link].bandwidth.bits_per_second();
  }
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    const auto [low, high] = std::pair(pairs_[p].lower.value, pairs_[p].upper.value);
    if (tier(pairs_[p].lower) == tier(pairs_[p].upper)) {
      beside_[low].push_back(p);
      beside_[high].push_back(p);
    } else {
      up_[low].push_back(p);
      down_[high].push_back(p);
    }
  }
  for (std::uint32_t v = 0; v < count; ++v) {
    const int at = tier(VertexId{v});
    if (at < 0) continue;
    const auto slot = static_cast<std::size_t>(at);
    if (members_.size() <= slot) members_.resize(slot + 1);
    members_[slot].push_back(VertexId{v});
  }
}

const std::vector<VertexId>& WiringView::tier_members(int tier) const {
  static const std::vector<VertexId> kNone;
  return tier >= 0 && tier <= tier_max() ? members_[static_cast<std::size_t>(tier)] : kNone;
}

std::int64_t WiringView::capacity(VertexId id) const {
  std::int64_t sum = 0;
  for (const std::size_t p : up(id).empty() ? beside(id) : up(id)) sum += pairs_[p].bandwidth;
  return sum;
}

std::string percent(double share) {
  return fmt::format("{:.3g} %", 100 * share);
}

}  // namespace foresail::topologies
