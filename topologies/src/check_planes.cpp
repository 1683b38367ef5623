// Capacities of planes and switches, as they would be once everything found so far is repaired.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "check_parts.h"
#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

/// Bits per second between two vertices, as repaired.
using Repaired = std::map<std::pair<VertexId, VertexId>, std::int64_t>;

Repaired repaired(const WiringView& view, const Findings& findings) {
  Repaired rates;
  for (const CablePair& pair : view.pairs()) rates[{pair.lower, pair.upper}] = pair.bandwidth;
  for (const Repair& repair : findings.repairs) {
    rates[{repair.lower, repair.upper}] += repair.bandwidth;
  }
  return rates;
}

/// Joins the switches from `lowest` tier on; a plane is what hangs together.
class Planes {
 public:
  Planes(const WiringView& view, const Repaired& rates, int lowest)
      : view_(view), rates_(rates), lowest_(lowest), parent_(view.vertex_count()) {
    std::iota(parent_.begin(), parent_.end(), 0U);
    for (const auto& [ends, rate] : rates) {
      if (view.tier(ends.first) >= lowest) join(ends.first.value, ends.second.value);
    }
  }
  void compare(Findings& findings);

 private:
  struct Plane {
    std::uint32_t first = 0;  ///< its lowest switch
    int switches = 0;
    std::int64_t below = 0;      ///< bits per second to the tier under it
    std::int64_t within = 0;     ///< and between its own switches
    std::uint32_t served = ~0U;  ///< the first NIC that it serves
  };
  std::uint32_t root(std::uint32_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void join(std::uint32_t a, std::uint32_t b) {
    a = root(a);
    b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }
  std::map<std::uint32_t, Plane> collect();
  void judge(const std::vector<Plane>& planes, std::int64_t Plane::*capacity, const char* what,
             Findings& findings);

  const WiringView& view_;
  const Repaired& rates_;
  int lowest_;
  std::vector<std::uint32_t> parent_;
};

std::map<std::uint32_t, Planes::Plane> Planes::collect() {
  // The lowest NIC below each switch, tier by tier.
  std::vector<std::uint32_t> served(view_.vertex_count(), ~0U);
  for (int tier = 0; tier <= view_.tier_max(); ++tier) {
    for (const VertexId id : view_.tier_members(tier)) {
      if (tier == 0) served[id.value] = id.value;
      for (const std::size_t p : view_.up(id)) {
        std::uint32_t& upper = served[view_.pair(p).upper.value];
        upper = std::min(upper, served[id.value]);
      }
    }
  }
  std::map<std::uint32_t, Plane> planes;
  for (int tier = lowest_; tier <= view_.tier_max(); ++tier) {
    for (const VertexId id : view_.tier_members(tier)) {
      Plane& plane = planes[root(id.value)];
      plane.first = root(id.value);
      ++plane.switches;
      plane.served = std::min(plane.served, served[id.value]);
    }
  }
  for (const auto& [ends, rate] : rates_) {
    if (view_.tier(ends.second) < lowest_) continue;
    Plane& plane = planes.at(root(ends.second.value));
    (view_.tier(ends.first) < lowest_ ? plane.below : plane.within) += rate;
  }
  return planes;
}

void Planes::judge(const std::vector<Plane>& planes, std::int64_t Plane::*capacity,
                   const char* what, Findings& findings) {
  std::map<std::int64_t, int> votes;
  for (const Plane& plane : planes) ++votes[plane.*capacity];
  const auto verdict = most_voted(votes);
  // Even votes of two planes speak for the larger one.
  const bool is_even = planes.size() == 2 && votes.size() == 2;
  if (!verdict.is_clear && !is_even) return;
  for (const Plane& plane : planes) {
    if (plane.*capacity >= verdict.value) continue;
    const VertexId first{plane.first};
    const double lost = ratio(verdict.value - plane.*capacity, verdict.value);
    const std::string message = fmt::format(
        "the plane of {} ({} switches) has {} {}, the others {}: {} of it is missing{}",
        view_.name(first), plane.switches, to_text(Bandwidth::bps(plane.*capacity)), what,
        to_text(Bandwidth::bps(verdict.value)), percent(lost), is_even ? " (votes are even)" : "");
    const Severity severity = verdict.is_clear ? Severity::Error : Severity::Warning;
    findings.list.push_back(
        {{FindingKind::AsymmetricPlane, severity, {view_.name(first)}, "", lost, message}, {}});
  }
}

void Planes::compare(Findings& findings) {
  // Planes beside each other serve the same nodes; the lowest NIC's node tells which.
  std::map<int, std::vector<Plane>> beside;
  for (const auto& [first, plane] : collect()) {
    if (plane.served == ~0U) continue;
    beside[view_.vertex(VertexId{plane.served}).node].push_back(plane);
  }
  for (const auto& [node, planes] : beside) {
    const auto before = findings.list.size();
    judge(planes, &Plane::below, "down", findings);
    if (findings.list.size() == before) judge(planes, &Plane::within, "within", findings);
  }
}

}  // namespace

void check_planes(const WiringView& view, Findings& findings) {
  const Repaired rates = repaired(view, findings);
  const auto before = findings.list.size();
  Planes(view, rates, 1).compare(findings);
  if (findings.list.size() > before || view.tier_max() < 2) return;
  Planes(view, rates, 2).compare(findings);
}

void check_oversubscription(const WiringView& view, Findings& findings) {
  std::map<VertexId, std::pair<std::int64_t, std::int64_t>> sums;  // down and up
  for (const auto& [ends, rate] : repaired(view, findings)) {
    if (view.tier(ends.first) == view.tier(ends.second)) continue;
    sums[ends.first].second += rate;
    sums[ends.second].first += rate;
  }
  for (int tier = 1; tier < view.tier_max(); ++tier) {
    std::map<std::int64_t, int> votes;  // millionths
    const auto millionths = [&](VertexId id) -> std::int64_t {
      const auto found = sums.find(id);
      if (found == sums.end() || found->second.second <= 0) return -1;
      return std::llround(1e6 * ratio(found->second.first, found->second.second));
    };
    for (const VertexId id : view.tier_members(tier)) ++votes[millionths(id)];
    votes.erase(-1);
    const auto verdict = most_voted(votes);
    if (!verdict.is_clear) continue;
    for (const VertexId id : view.tier_members(tier)) {
      const std::int64_t own = millionths(id);
      if (own <= verdict.value) continue;
      const double lost = 1 - ratio(verdict.value, own);
      const std::string message = fmt::format(
          "{} is oversubscribed {:.3g}:1, most of its tier {:.3g}:1: {} of the bandwidth that it "
          "should give to each below is missing",
          view.name(id), 1e-6 * static_cast<double>(own), 1e-6 * static_cast<double>(verdict.value),
          percent(lost));
      findings.list.push_back(
          {{FindingKind::Oversubscription, Severity::Error, {view.name(id)}, "", lost, message},
           {}});
    }
  }
}

}  // namespace foresail::topologies
