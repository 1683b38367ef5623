// Where the NICs are plugged in: ports, rails, and who reaches whom.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "check_parts.h"

namespace foresail::topologies {
namespace {

/// The leaves of one NIC, ascending.
using Leaves = std::vector<VertexId>;

Leaves leaves_of(const WiringView& view, VertexId nic) {
  Leaves leaves;
  for (const std::size_t p : view.up(nic)) leaves.push_back(view.pair(p).upper);
  std::ranges::sort(leaves);
  return leaves;
}

std::string names_of(const WiringView& view, const Leaves& leaves) {
  std::string text;
  for (const VertexId leaf : leaves) text += (text.empty() ? "" : " and ") + view.name(leaf);
  return text;
}

/// Nodes whose NICs stand on the same leaves.
struct NodeClass {
  std::vector<Leaves> leaves;  ///< by NIC
  std::vector<int> nodes;
};

/// A NIC that stands elsewhere than the same NIC of the nodes beside it.
struct Astray {
  int node = 0;
  int nic = 0;
  Leaves is, should;
  bool is_clear = true;
  int peer = 0;  ///< a node that votes otherwise
};

/// Nodes are beside each other when more than half of their NICs share a leaf, or when they use the
/// same leaves in another order.
class RailVote {
 public:
  RailVote(const WiringView& view, Findings& findings);
  void judge();

 private:
  std::vector<std::size_t> neighbours(std::size_t c) const;
  void judge(std::size_t c);
  void plug_in(const NodeClass& own, std::size_t nic, const Leaves& should, int peer);
  void report(const Astray& one, const Astray* other);
  VertexId nic_vertex(int node, int nic) const {
    return nics_[static_cast<std::size_t>(node)][static_cast<std::size_t>(nic)];
  }
  static std::vector<Leaves> sorted(std::vector<Leaves> leaves) {
    std::ranges::sort(leaves);
    return leaves;
  }

  const WiringView& view_;
  Findings& findings_;
  std::vector<std::vector<VertexId>> nics_;  // by node
  std::vector<NodeClass> classes_;
  std::map<std::pair<std::size_t, VertexId>, std::vector<std::size_t>> at_;  // classes by NIC, leaf
  std::map<std::vector<Leaves>, std::vector<std::size_t>> same_set_;
  std::vector<Astray> astray_;
};

RailVote::RailVote(const WiringView& view, Findings& findings) : view_(view), findings_(findings) {
  const auto nodes = static_cast<std::size_t>(view.cluster().options().nodes);
  nics_.resize(nodes);
  for (const VertexId nic : view.tier_members(0)) {
    nics_[static_cast<std::size_t>(view.vertex(nic).node)].push_back(nic);
  }
  std::map<std::vector<Leaves>, std::vector<int>> alike;
  for (std::size_t n = 0; n < nodes; ++n) {
    std::vector<Leaves> leaves;
    for (const VertexId nic : nics_[n]) leaves.push_back(leaves_of(view, nic));
    alike[leaves].push_back(static_cast<int>(n));
  }
  for (auto& [leaves, members] : alike) classes_.push_back({leaves, members});
  std::ranges::sort(classes_, {}, [](const NodeClass& c) { return c.nodes.front(); });
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    for (std::size_t i = 0; i < classes_[c].leaves.size(); ++i) {
      for (const VertexId leaf : classes_[c].leaves[i]) at_[{i, leaf}].push_back(c);
    }
    same_set_[sorted(classes_[c].leaves)].push_back(c);
  }
}

std::vector<std::size_t> RailVote::neighbours(std::size_t c) const {
  std::map<std::size_t, std::size_t> shared;
  const auto& leaves = classes_[c].leaves;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    std::set<std::size_t> here;
    for (const VertexId leaf : leaves[i]) {
      const auto& classes = at_.at({i, leaf});
      here.insert(classes.begin(), classes.end());
    }
    for (const std::size_t other : here) ++shared[other];
  }
  std::set<std::size_t> found;
  for (const auto& [other, count] : shared) {
    if (2 * count > leaves.size()) found.insert(other);
  }
  for (const std::size_t other : same_set_.at(sorted(leaves))) found.insert(other);
  return {found.begin(), found.end()};
}

void RailVote::judge(std::size_t c) {
  const std::vector<std::size_t> voters = neighbours(c);
  if (voters.size() < 2) return;
  const NodeClass& own = classes_[c];
  for (std::size_t i = 0; i < own.leaves.size(); ++i) {
    std::map<Leaves, int> votes;
    std::map<Leaves, int> first;
    for (const std::size_t voter : voters) {
      const Leaves& leaves = classes_[voter].leaves[i];
      if (leaves.empty()) continue;
      votes[leaves] += static_cast<int>(classes_[voter].nodes.size());
      first.try_emplace(leaves, classes_[voter].nodes.front());
    }
    const auto verdict = most_voted(votes);
    Leaves should = verdict.value;
    if (!verdict.is_clear) {
      // Even votes: told once, at the later of two nodes that disagree.
      if (votes.size() != 2 || votes.begin()->second != votes.rbegin()->second) continue;
      should = votes.begin()->first == own.leaves[i] ? votes.rbegin()->first : votes.begin()->first;
      if (first.at(should) > own.nodes.front()) continue;
    }
    // Fewer ports are no swap; check_ports tells them.
    if (std::ranges::includes(should, own.leaves[i])) {
      if (verdict.is_clear) plug_in(own, i, should, first.at(should));
      continue;
    }
    for (const int node : own.nodes) {
      astray_.push_back(
          {node, static_cast<int>(i), own.leaves[i], should, verdict.is_clear, first.at(should)});
    }
  }
}

/// Repairs the ports that NIC `nic` of the nodes of a class lacks, as those of `peer` are.
void RailVote::plug_in(const NodeClass& own, std::size_t nic, const Leaves& should, int peer) {
  Leaves missing;
  std::ranges::set_difference(should, own.leaves[nic], std::back_inserter(missing));
  const int number = static_cast<int>(nic);
  const std::int64_t each =
      view_.capacity(nic_vertex(peer, number)) / static_cast<std::int64_t>(should.size());
  for (const int node : own.nodes) {
    for (const VertexId leaf : missing) {
      findings_.repairs.push_back({nic_vertex(node, number), leaf, each});
    }
  }
}

void RailVote::report(const Astray& one, const Astray* other) {
  const VertexId nic = nic_vertex(one.node, one.nic);
  std::int64_t of_node = 0;
  for (const VertexId each : nics_[static_cast<std::size_t>(one.node)]) {
    of_node += view_.capacity(each);
  }
  Finding finding;
  finding.kind = FindingKind::RailSwap;
  finding.severity = one.is_clear ? Severity::Error : Severity::Warning;
  finding.vertices = {view_.name(nic)};
  // Of a NIC with several ports only those on the wrong leaf leave the rail.
  const auto astray_capacity = [&](const Astray& astray) {
    Leaves wrong;
    std::ranges::set_difference(astray.is, astray.should, std::back_inserter(wrong));
    const std::int64_t all = view_.capacity(nic_vertex(astray.node, astray.nic));
    return all * static_cast<std::int64_t>(wrong.size()) /
           static_cast<std::int64_t>(astray.is.size());
  };
  std::int64_t moved = astray_capacity(one);
  FoundFinding found;
  const auto add = [&](const Astray& astray) {
    const VertexId id = nic_vertex(astray.node, astray.nic);
    const std::int64_t each =
        view_.capacity(id) / static_cast<std::int64_t>(std::max<std::size_t>(1, astray.is.size()));
    for (const VertexId leaf : astray.is) {
      found.pairs.emplace_back(id, leaf);
      if (one.is_clear) findings_.repairs.push_back({id, leaf, -each});
    }
    for (const VertexId leaf : astray.should) {
      found.pairs.emplace_back(id, leaf);
      if (one.is_clear) findings_.repairs.push_back({id, leaf, each});
    }
  };
  add(one);
  if (other != nullptr) {
    const VertexId second = nic_vertex(other->node, other->nic);
    finding.vertices.push_back(view_.name(second));
    if (other->node == one.node) moved += astray_capacity(*other);
    add(*other);
    finding.message = fmt::format("{} and {} are swapped: {} is on {}, {} on {}", view_.name(nic),
                                  view_.name(second), view_.name(nic), names_of(view_, one.is),
                                  view_.name(second), names_of(view_, other->is));
  } else {
    finding.message = fmt::format("{} is on {}", view_.name(nic), names_of(view_, one.is));
  }
  finding.bandwidth_lost = ratio(moved, of_node);
  const VertexId peer = nic_vertex(one.peer, one.nic);
  if (!one.is_clear) {
    for (const VertexId leaf : one.should) found.pairs.emplace_back(peer, leaf);
  }
  finding.message += one.is_clear ? fmt::format(", but NIC {} of the nodes beside it is on {}",
                                                one.nic, names_of(view_, one.should))
                                  : fmt::format(", but {} is on {} (votes are even)",
                                                view_.name(peer), names_of(view_, one.should));
  finding.message +=
      fmt::format(": {} of the node's bandwidth leaves its rail", percent(finding.bandwidth_lost));
  if (view_.up(nic).size() == 1) finding.cable = view_.cable(view_.pair(view_.up(nic).front()));
  found.finding = std::move(finding);
  findings_.list.push_back(std::move(found));
}

void RailVote::judge() {
  for (std::size_t c = 0; c < classes_.size(); ++c) judge(c);
  std::ranges::sort(astray_, {}, [](const Astray& a) { return std::pair(a.node, a.nic); });
  std::vector<bool> told(astray_.size(), false);
  for (std::size_t i = 0; i < astray_.size(); ++i) {
    if (told[i]) continue;
    const Astray* partner = nullptr;
    for (std::size_t j = i + 1; j < astray_.size() && partner == nullptr; ++j) {
      const bool is_swap = astray_[i].is == astray_[j].should && astray_[j].is == astray_[i].should;
      if (told[j] || !is_swap) continue;
      told[j] = true;
      partner = &astray_[j];
    }
    report(astray_[i], partner);
  }
}

/// Switches that some way joins, by union and find.
class Components {
 public:
  explicit Components(const WiringView& view) : parent_(view.vertex_count()) {
    std::iota(parent_.begin(), parent_.end(), 0U);
    for (const CablePair& pair : view.pairs()) {
      if (view.tier(pair.lower) > 0) join(pair.lower.value, pair.upper.value);
    }
  }
  std::uint32_t of(VertexId id) { return root(id.value); }

 private:
  std::uint32_t root(std::uint32_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void join(std::uint32_t a, std::uint32_t b) {
    a = root(a);
    b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }
  std::vector<std::uint32_t> parent_;
};

struct Island {
  std::vector<std::uint32_t> components;
  std::vector<VertexId> nics;
};

void report_islands(const WiringView& view, const Island& main, const Island& other,
                    Findings& findings) {
  const VertexId first = other.nics.front();
  const VertexId far = main.nics.front();
  const std::string message =
      fmt::format("no way leads from {} ({} NICs) to {} ({} NICs of the same number)",
                  view.name(first), other.nics.size(), view.name(far), main.nics.size());
  findings.list.push_back({{FindingKind::Unreachable,
                            Severity::Error,
                            {view.name(first), view.name(far)},
                            "",
                            1,
                            message},
                           {}});
}

}  // namespace

void check_ports(const WiringView& view, Findings& findings) {
  std::map<int, int> votes;
  const auto ports = [&](VertexId nic) {
    int count = 0;
    for (const std::size_t p : view.up(nic)) count += static_cast<int>(view.pair(p).links.size());
    return count;
  };
  for (const VertexId nic : view.tier_members(0)) ++votes[ports(nic)];
  votes.erase(0);  // whoever has no cable has no say in how many there should be
  const Verdict<int> verdict = most_voted(votes);
  for (const VertexId nic : view.tier_members(0)) {
    const int count = ports(nic);
    if (count >= verdict.value) continue;
    const double lost = ratio(verdict.value - count, verdict.value);
    const std::string message =
        count == 0 ? fmt::format("{} has no cable", view.name(nic))
                   : fmt::format("{} has {} of {} cables: {} of its bandwidth is lost",
                                 view.name(nic), count, verdict.value, percent(lost));
    const Severity severity = verdict.is_clear || count == 0 ? Severity::Error : Severity::Warning;
    FoundFinding found{{FindingKind::MissingPort, severity, {view.name(nic)}, "", lost, message},
                       {}};
    findings.list.push_back(found);
  }
}

void check_rails(const WiringView& view, Findings& findings) {
  // NICs fill the routers of dragonflies and tori in order, without rails.
  const FabricKind kind = view.cluster().options().fabric.kind;
  if (kind == FabricKind::Dragonfly || kind == FabricKind::Torus) return;
  RailVote(view, findings).judge();
}

void check_reach(const WiringView& view, Findings& findings) {
  Components components(view);
  // By number of the NIC in its node: NICs that hang on the same parts of the fabric.
  std::map<int, std::map<std::vector<std::uint32_t>, Island>> rails;
  for (const VertexId nic : view.tier_members(0)) {
    std::set<std::uint32_t> parts;
    for (const std::size_t p : view.up(nic)) parts.insert(components.of(view.pair(p).upper));
    if (parts.empty()) continue;
    const std::vector<std::uint32_t> key(parts.begin(), parts.end());
    Island& island = rails[view.vertex(nic).index][key];
    island.components = key;
    island.nics.push_back(nic);
  }
  for (const auto& [index, by_parts] : rails) {
    std::vector<const Island*> islands;
    for (const auto& [key, island] : by_parts) islands.push_back(&island);
    // The largest is what the others should reach.
    std::ranges::stable_sort(
        islands, [](const Island* a, const Island* b) { return a->nics.size() > b->nics.size(); });
    for (std::size_t b = 1; b < islands.size(); ++b) {
      for (std::size_t a = 0; a < b; ++a) {
        std::vector<std::uint32_t> common;
        std::ranges::set_intersection(islands[a]->components, islands[b]->components,
                                      std::back_inserter(common));
        if (!common.empty()) continue;
        report_islands(view, *islands[a], *islands[b], findings);
        break;
      }
    }
  }
}

}  // namespace foresail::topologies
