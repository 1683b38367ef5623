/// \file
/// What the checks of the wiring share: the fabric as pairs of vertices, and what was found.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "foresail/topologies/check.h"

namespace foresail::topologies {

/// All cables between two vertices of the fabric. `lower` has the lower tier (NICs: 0); of equal
/// ones the lower number.
struct CablePair {
  VertexId lower, upper;
  std::vector<LinkId> links;   ///< from `lower` to `upper`, ascending
  std::int64_t bandwidth = 0;  ///< bits per second of all of them
};

/// The cables between NICs and switches. Pairs are sorted by (lower, upper).
class WiringView {
 public:
  explicit WiringView(const Cluster& cluster);

  const Cluster& cluster() const { return cluster_; }
  const std::vector<CablePair>& pairs() const { return pairs_; }
  const CablePair& pair(std::size_t index) const { return pairs_[index]; }
  std::size_t vertex_count() const { return up_.size(); }
  const Vertex& vertex(VertexId id) const { return cluster_.vertices()[id]; }
  /// 0: a NIC; -1: inside a node.
  int tier(VertexId id) const;
  std::string name(VertexId id) const { return vertex(id).name(); }
  std::string cable(const CablePair& pair) const { return cluster_.link_name(pair.links.front()); }
  /// "a->b" for cables that are not there.
  std::string cable(VertexId from, VertexId to) const { return name(from) + "->" + name(to); }

  /// Pairs in which a vertex is the lower end below another tier, or the upper end above one, or
  /// which join it to its own tier.
  const std::vector<std::size_t>& up(VertexId id) const { return up_[id.value]; }
  const std::vector<std::size_t>& down(VertexId id) const { return down_[id.value]; }
  const std::vector<std::size_t>& beside(VertexId id) const { return beside_[id.value]; }
  /// Bits per second upwards (of a switch without a tier above: to its own tier).
  std::int64_t capacity(VertexId id) const;
  /// Vertices of a tier, ascending.
  const std::vector<VertexId>& tier_members(int tier) const;
  int tier_max() const { return static_cast<int>(members_.size()) - 1; }

 private:
  const Cluster& cluster_;
  std::vector<CablePair> pairs_;
  std::vector<std::vector<std::size_t>> up_, down_, beside_;
  std::vector<std::vector<VertexId>> members_;
};

/// What a repair of the findings so far would change: later checks look at the fabric as repaired.
struct Repair {
  VertexId lower, upper;
  std::int64_t bandwidth = 0;  ///< bits per second to add
};

/// A finding and the pairs of vertices that it speaks of.
struct FoundFinding {
  Finding finding;
  std::vector<std::pair<VertexId, VertexId>> pairs;
};

struct Findings {
  std::vector<FoundFinding> list;
  std::vector<Repair> repairs;
};

/// Bits per second of one cable between two tiers, as most have it; by (lower, upper) tier.
using UsualRates = std::map<std::pair<int, int>, std::int64_t>;

UsualRates check_speeds(const WiringView& view, Findings& findings);
void check_switch_cables(const WiringView& view, const UsualRates& rates, Findings& findings);
void check_ports(const WiringView& view, Findings& findings);
void check_rails(const WiringView& view, Findings& findings);
void check_reach(const WiringView& view, Findings& findings);
void check_planes(const WiringView& view, Findings& findings);
void check_oversubscription(const WiringView& view, Findings& findings);
/// Drops warnings that the plan decides.
void check_plan(const WiringView& view, const WiringView& planned, Findings& findings);

/// "25 %": for messages.
std::string percent(double share);
inline double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// What most hold, by votes. `is_clear`: more than half of all votes.
template <class Value>
struct Verdict {
  Value value{};
  int votes = 0;
  bool is_clear = false;
};

/// Of equally common values the largest.
template <class Value>
Verdict<Value> most_voted(const std::map<Value, int>& votes) {
  Verdict<Value> verdict;
  int all = 0;
  for (const auto& [value, count] : votes) {
    all += count;
    if (count < verdict.votes) continue;
    verdict.value = value;
    verdict.votes = count;
  }
  verdict.is_clear = 2 * verdict.votes > all;
  return verdict;
}

}  // namespace foresail::topologies
