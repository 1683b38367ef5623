#include "foresail/topologies/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "check_parts.h"
#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

constexpr int kShownPerKind = 20;

using Ends = std::pair<VertexId, VertexId>;
/// Bandwidths of the cables of each pair, ascending.
using CableRates = std::map<Ends, std::vector<std::int64_t>>;

CableRates cable_rates(const WiringView& view) {
  CableRates rates;
  for (const CablePair& pair : view.pairs()) {
    std::vector<std::int64_t>& list = rates[{pair.lower, pair.upper}];
    for (const LinkId id : pair.links) {
      list.push_back(view.cluster().links()[id].bandwidth.bits_per_second());
    }
    std::ranges::sort(list);
  }
  return rates;
}

std::string text_of(const std::vector<std::int64_t>& rates) {
  if (rates.empty()) return "no cable";
  const std::string each = to_text(Bandwidth::bps(rates.front()));
  if (rates.front() == rates.back()) return fmt::format("{} x {}", rates.size(), each);
  return fmt::format("{} of {} to {}", rates.size(), each, to_text(Bandwidth::bps(rates.back())));
}

std::int64_t sum(const std::vector<std::int64_t>& rates) {
  std::int64_t all = 0;
  for (const std::int64_t rate : rates) all += rate;
  return all;
}

/// Pairs that differ from the plan. Vertices do not: wiring changes cables alone.
std::map<Ends, std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> differences(
    const WiringView& view, const WiringView& planned) {
  std::map<Ends, std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> found;
  const CableRates is = cable_rates(view);
  const CableRates should = cable_rates(planned);
  for (const auto& [ends, rates] : is) {
    const auto plan = should.find(ends);
    if (plan == should.end()) {
      found[ends] = {rates, {}};
    } else if (plan->second != rates) {
      found[ends] = {rates, plan->second};
    }
  }
  for (const auto& [ends, rates] : should) {
    if (!is.contains(ends)) found[ends] = {{}, rates};
  }
  return found;
}

Document finding_document(const Finding& finding) {
  return {{"kind", std::string(to_string(finding.kind))},
          {"severity", std::string(to_string(finding.severity))},
          {"vertices", finding.vertices},
          {"cable", finding.cable},
          {"bandwidth_lost", finding.bandwidth_lost},
          {"message", finding.message}};
}

}  // namespace

void check_plan(const WiringView& view, const WiringView& planned, Findings& findings) {
  const auto changed = differences(view, planned);
  const auto is_changed = [&](const Ends& ends) { return changed.contains(ends); };
  std::erase_if(findings.list, [&](const FoundFinding& found) {
    return found.finding.severity == Severity::Warning &&
           std::ranges::any_of(found.pairs, is_changed);
  });
  std::set<Ends> explained;
  for (const FoundFinding& found : findings.list) {
    explained.insert(found.pairs.begin(), found.pairs.end());
    // A NIC without a cable explains the cable that it lacks.
    if (found.finding.kind != FindingKind::MissingPort) continue;
    for (const auto& [ends, rates] : changed) {
      if (view.name(ends.first) == found.finding.vertices.front()) explained.insert(ends);
    }
  }
  for (const auto& [ends, rates] : changed) {
    if (explained.contains(ends)) continue;
    const std::int64_t missing = sum(rates.second) - sum(rates.first);
    Finding finding;
    finding.kind = FindingKind::NotAsPlanned;
    finding.vertices = {view.name(ends.first), view.name(ends.second)};
    finding.cable = view.cable(ends.first, ends.second);
    finding.bandwidth_lost = missing > 0 ? ratio(missing, planned.capacity(ends.first)) : 0;
    finding.message = fmt::format("{} should be {}, but is {}", finding.cable,
                                  text_of(rates.second), text_of(rates.first));
    findings.list.push_back({finding, {ends}});
  }
}

std::vector<Finding> check_wiring(const Cluster& cluster) {
  const WiringView view(cluster);
  if (view.pairs().empty() && view.tier_members(0).empty()) return {};
  Findings findings;
  check_ports(view, findings);
  check_rails(view, findings);
  const UsualRates rates = check_speeds(view, findings);
  check_switch_cables(view, rates, findings);
  check_reach(view, findings);
  check_planes(view, findings);
  check_oversubscription(view, findings);
  if (!cluster.options().wiring.empty()) {
    Cluster::Options options = cluster.options();
    options.wiring.clear();
    const Cluster planned(options);
    check_plan(view, WiringView(planned), findings);
  }
  // Within a kind the checks go by vertex.
  std::ranges::stable_sort(findings.list, {},
                           [](const FoundFinding& found) { return found.finding.kind; });
  std::vector<Finding> list;
  for (FoundFinding& found : findings.list) list.push_back(std::move(found.finding));
  return list;
}

std::string findings_text(const Cluster& cluster, const std::vector<Finding>& findings) {
  if (findings.empty()) return fmt::format("{}: nothing is wired wrongly\n", cluster.name());
  std::string text;
  std::map<FindingKind, int> count;
  for (const Finding& finding : findings) {
    if (++count[finding.kind] > kShownPerKind) continue;
    text += fmt::format("{} {}: {}\n", to_string(finding.severity), to_string(finding.kind),
                        finding.message);
  }
  for (const auto& [kind, all] : count) {
    if (all > kShownPerKind) {
      text +=
          fmt::format("and {} more {} (--json has all)\n", all - kShownPerKind, to_string(kind));
    }
  }
  return text + fmt::format("{}: {} findings\n", cluster.name(), findings.size());
}

Document findings_document(const Cluster& cluster, const std::vector<Finding>& findings) {
  Document document = {
      {"name", cluster.name()}, {"clean", findings.empty()}, {"findings", Document::array()}};
  for (const Finding& finding : findings) {
    document["findings"].push_back(finding_document(finding));
  }
  return document;
}

}  // namespace foresail::topologies
