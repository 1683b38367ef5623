// Cables between switches, judged by the siblings of a switch; the speed of all cables.
#include <fmt/format.h>

#include <algorithm>

#include "check_parts.h"
#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

/// Upper neighbours and how many cables go to each.
using Uplinks = std::vector<std::pair<VertexId, int>>;

/// Switches of one tier that are cabled alike.
struct SwitchClass {
  Uplinks uplinks;
  std::vector<VertexId> members;
};

std::vector<SwitchClass> classes_of(const WiringView& view, int tier) {
  std::map<Uplinks, std::vector<VertexId>> alike;
  for (const VertexId id : view.tier_members(tier)) {
    Uplinks uplinks;
    for (const std::size_t p : view.up(id)) {
      uplinks.emplace_back(view.pair(p).upper, static_cast<int>(view.pair(p).links.size()));
    }
    std::ranges::sort(uplinks);
    alike[uplinks].push_back(id);
  }
  std::vector<SwitchClass> classes;
  for (auto& [uplinks, members] : alike) classes.push_back({uplinks, members});
  std::ranges::sort(classes, {}, [](const SwitchClass& c) { return c.members.front(); });
  return classes;
}

/// Judges the switches of one tier by their siblings: those that share at least half of the upper
/// neighbours of whichever has fewer.
class SiblingVote {
 public:
  SiblingVote(const WiringView& view, int tier, const UsualRates& rates, Findings& findings)
      : view_(view), rates_(rates), findings_(findings), classes_(classes_of(view, tier)) {
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      for (const auto& [upper, count] : classes_[c].uplinks) below_[upper].push_back(c);
    }
  }

  void judge() {
    for (std::size_t c = 0; c < classes_.size(); ++c) judge(c);
  }

 private:
  std::vector<std::size_t> siblings(std::size_t c) const;
  void judge(std::size_t c);
  void report(VertexId id, VertexId upper, int count, const Verdict<int>& verdict);

  const WiringView& view_;
  const UsualRates& rates_;
  Findings& findings_;
  std::vector<SwitchClass> classes_;
  std::map<VertexId, std::vector<std::size_t>> below_;  // classes by upper neighbour
};

std::vector<std::size_t> SiblingVote::siblings(std::size_t c) const {
  std::map<std::size_t, std::size_t> shared;
  for (const auto& [upper, count] : classes_[c].uplinks) {
    for (const std::size_t other : below_.at(upper)) ++shared[other];
  }
  std::vector<std::size_t> siblings;
  for (const auto& [other, count] : shared) {
    const std::size_t fewer = std::min(classes_[c].uplinks.size(), classes_[other].uplinks.size());
    if (2 * count >= fewer) siblings.push_back(other);
  }
  return siblings;
}

void SiblingVote::judge(std::size_t c) {
  const std::vector<std::size_t> voters = siblings(c);
  if (voters.size() < 2) return;  // all siblings are cabled alike
  std::map<VertexId, std::map<int, int>> votes;
  int all = 0;
  for (const std::size_t voter : voters) {
    const int members = static_cast<int>(classes_[voter].members.size());
    for (const auto& [upper, count] : classes_[voter].uplinks) votes[upper][count] += members;
    all += members;
  }
  std::map<VertexId, int> own(classes_[c].uplinks.begin(), classes_[c].uplinks.end());
  for (auto& [upper, by_count] : votes) {
    int cast = 0;
    for (const auto& [count, members] : by_count) cast += members;
    if (cast < all) by_count[0] = all - cast;
    const Verdict<int> verdict = most_voted(by_count);
    const auto found = own.find(upper);
    const int count = found == own.end() ? 0 : found->second;
    // Even votes speak for the larger count, and only against the smaller.
    if (count == verdict.value || (!verdict.is_clear && by_count[count] < verdict.votes)) continue;
    if (!verdict.is_clear && count > verdict.value) continue;
    for (const VertexId id : classes_[c].members) report(id, upper, count, verdict);
  }
}

void SiblingVote::report(VertexId id, VertexId upper, int count, const Verdict<int>& verdict) {
  const std::int64_t rate = rates_.at({view_.tier(id), view_.tier(upper)});
  const std::int64_t change = (verdict.value - count) * rate;
  const bool is_missing = count < verdict.value;
  Finding finding;
  finding.kind = is_missing ? FindingKind::MissingLink : FindingKind::ExtraLink;
  finding.severity = is_missing && verdict.is_clear ? Severity::Error : Severity::Warning;
  finding.vertices = {view_.name(id), view_.name(upper)};
  finding.cable = view_.cable(id, upper);
  if (is_missing) {
    finding.bandwidth_lost = ratio(change, view_.capacity(id) + change);
    finding.message = fmt::format(
        "{} has {} of {} cables to {}, as its siblings have: {} of its uplink "
        "bandwidth is missing{}",
        view_.name(id), count, verdict.value, view_.name(upper), percent(finding.bandwidth_lost),
        verdict.is_clear ? "" : " (votes are even)");
  } else {
    finding.message = fmt::format("{} has {} cables to {}, its siblings {}", view_.name(id), count,
                                  view_.name(upper), verdict.value);
  }
  findings_.list.push_back({finding, {{id, upper}}});
  findings_.repairs.push_back({id, upper, change});
}

/// Switches of a tier that have no uplink at all while most have some: they have no siblings.
void check_no_uplinks(const WiringView& view, int tier, Findings& findings) {
  std::vector<VertexId> without;
  for (const VertexId id : view.tier_members(tier)) {
    if (view.up(id).empty()) without.push_back(id);
  }
  if (2 * without.size() >= view.tier_members(tier).size()) return;
  for (const VertexId id : without) {
    const std::string message =
        fmt::format("{} has no uplink, most of its tier have", view.name(id));
    findings.list.push_back(
        {{FindingKind::MissingLink, Severity::Error, {view.name(id)}, "", 1, message}, {}});
  }
}

/// Fabrics without tiers (torus, dragonfly): a router with fewer cables to others than nearly all.
void check_degrees(const WiringView& view, int tier, Findings& findings) {
  std::map<int, int> votes;
  std::vector<std::pair<VertexId, int>> degrees;
  for (const VertexId id : view.tier_members(tier)) {
    int degree = 0;
    for (const std::size_t p : view.beside(id)) {
      degree += static_cast<int>(view.pair(p).links.size());
    }
    degrees.emplace_back(id, degree);
    ++votes[degree];
  }
  const Verdict<int> verdict = most_voted(votes);
  // Irregular fabrics have no usual degree.
  if (4 * static_cast<std::size_t>(verdict.votes) < 3 * degrees.size()) return;
  for (const auto& [id, degree] : degrees) {
    if (degree >= verdict.value) continue;
    const double lost = ratio(verdict.value - degree, verdict.value);
    const std::string message = fmt::format("{} has {} cables to its own tier, most have {}",
                                            view.name(id), degree, verdict.value);
    findings.list.push_back(
        {{FindingKind::MissingLink, Severity::Error, {view.name(id)}, "", lost, message}, {}});
  }
}

}  // namespace

UsualRates check_speeds(const WiringView& view, Findings& findings) {
  std::map<std::pair<int, int>, std::map<std::int64_t, int>> votes;
  const auto tiers_of = [&](const CablePair& pair) {
    return std::pair(view.tier(pair.lower), view.tier(pair.upper));
  };
  const auto& links = view.cluster().links();
  for (const CablePair& pair : view.pairs()) {
    for (const LinkId id : pair.links) {
      ++votes[tiers_of(pair)][links[id].bandwidth.bits_per_second()];
    }
  }
  UsualRates rates;
  std::set<std::pair<int, int>> unclear;
  for (const auto& [tiers, rates_seen] : votes) {
    const auto verdict = most_voted(rates_seen);
    rates[tiers] = verdict.value;
    if (!verdict.is_clear) unclear.insert(tiers);
  }
  for (const CablePair& pair : view.pairs()) {
    const auto tiers = tiers_of(pair);
    if (unclear.contains(tiers)) continue;
    for (const LinkId id : pair.links) {
      const std::int64_t rate = links[id].bandwidth.bits_per_second();
      const std::int64_t usual = rates.at(tiers);
      if (rate >= usual) continue;
      Finding finding;
      finding.kind = FindingKind::SlowLink;
      finding.vertices = {view.name(pair.lower), view.name(pair.upper)};
      finding.cable = view.cluster().link_name(id);
      finding.bandwidth_lost = ratio(usual - rate, view.capacity(pair.lower) + usual - rate);
      finding.message = fmt::format(
          "{} runs at {}, most such cables at {}: {} of the bandwidth of "
          "{} is lost",
          finding.cable, to_text(Bandwidth::bps(rate)), to_text(Bandwidth::bps(usual)),
          percent(finding.bandwidth_lost), view.name(pair.lower));
      findings.list.push_back({finding, {{pair.lower, pair.upper}}});
      findings.repairs.push_back({pair.lower, pair.upper, usual - rate});
    }
  }
  return rates;
}

void check_switch_cables(const WiringView& view, const UsualRates& rates, Findings& findings) {
  for (int tier = 1; tier <= view.tier_max(); ++tier) {
    const auto& members = view.tier_members(tier);
    const bool has_uplinks =
        std::ranges::any_of(members, [&](VertexId id) { return !view.up(id).empty(); });
    const bool has_beside =
        std::ranges::any_of(members, [&](VertexId id) { return !view.beside(id).empty(); });
    if (has_uplinks) {
      SiblingVote(view, tier, rates, findings).judge();
      check_no_uplinks(view, tier, findings);
    }
    if (has_beside) check_degrees(view, tier, findings);
  }
}

}  // namespace foresail::topologies
