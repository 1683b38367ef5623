#include "pfc_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "foresail/base/error.h"

namespace foresail::sim {

PfcRule::PfcRule(const Paths& paths, const FluidNetwork& fluid) : paths_(paths), fluid_(fluid) {}

void PfcRule::learn(RouteId route) {
  if (flow_of_.size() <= route.value) flow_of_.resize(route.value + 1, kUnknown);
  if (flow_of_[route.value] != kUnknown) return;
  std::vector<Way> ways = paths_.ways(route);
  if (ways.empty()) {  // a resource: each of its pipes by itself
    for (const RouteEntry& entry : fluid_.route(route)) ways.push_back({entry});
  }
  std::vector<IngressFairRates::Leg> legs;
  for (const Way& way : ways) {
    IngressFairRates::Leg& leg = legs.emplace_back();
    for (const RouteEntry& entry : way) {
      rates_.set_capacity(entry.pipe.value, fluid_.capacity(entry.pipe));
      leg.push_back({entry.pipe.value, entry.weight});
    }
  }
  flow_of_[route.value] = rates_.add_flow(legs);
}

// Of pipes in use, after one has changed: none of them is dead.
void PfcRule::read_capacities(std::span<const Flow> flows) {
  for (const Flow& flow : flows) {
    for (const RouteEntry& entry : fluid_.route(flow.route)) {
      rates_.set_capacity(entry.pipe.value, fluid_.capacity(entry.pipe));
    }
  }
}

void PfcRule::refuse(std::span<const std::uint32_t> cycle) const {
  constexpr std::size_t kNamed = 6;
  std::string names;
  for (std::size_t i = 0; i < std::min(cycle.size(), kNamed); ++i) {
    names += (i == 0 ? "" : ", ") + paths_.pipe_name(PipeId{cycle[i]});
  }
  if (cycle.size() > kNamed) names += fmt::format(" and {} more", cycle.size() - kNamed);
  throw Error(ErrorCode::InvalidInput,
              fmt::format("network.sharing: pfc can deadlock here, since each of these links waits "
                          "for the next one's buffers in a cycle: {}; use max_min, or a fabric and "
                          "routing without such cycles",
                          names));
}

std::span<const RateRule::Answer> PfcRule::rates(std::span<const Flow> flows) {
  demands_.clear();
  for (const Flow& flow : flows) {
    learn(flow.route);
    demands_.push_back({flow_of_[flow.route.value], flow.full_rate, flow.rate, flow.was_ruled});
  }
  if (fluid_.epoch() > 0) read_capacities(flows);
  if (const std::vector<std::uint32_t> cycle = rates_.find_cycle(); !cycle.empty()) refuse(cycle);
  answers_.clear();
  for (const PfcRate& solved : rates_.solve(demands_)) {
    Answer& answer = answers_.emplace_back();
    answer.rate = solved.rate;
    if (solved.cut_at != PfcRate::kUnhindered) answer.bottleneck = PipeId{solved.cut_at};
  }
  return answers_;
}

}  // namespace foresail::sim
