// Paths while links are down or slow.
#include <algorithm>
#include <utility>

#include "foresail/sim/paths.h"
#include "foresail/topologies/routes.h"

namespace foresail::sim {
namespace {

constexpr double kWeightNoise = 1e-9;  // of sums of weights in another order

}  // namespace

PipeId Paths::set_factor(LinkId link, double factor, SimTime now) {
  changed_ = now;
  if (factor == 1) {
    factors_.erase(link.value);
  } else {
    factors_[link.value] = factor;
  }
  const auto bundled = bundle_of_link_.find(link.value);
  if (bundled != bundle_of_link_.end()) {
    const PipeId pipe = bundled->second;
    fluid_.set_capacity(pipe, bundle_rate(bundle_links_.at(pipe.value)), now);
    return pipe;
  }
  const PipeId pipe = pipe_of(link);
  fluid_.set_capacity(pipe, line_rate(link), now);
  return pipe;
}

void Paths::reroute() {
  std::vector<LinkId> down;
  for (const auto& [link, factor] : factors_) {
    if (factor <= 0) down.push_back(LinkId{link});
  }
  if (down.empty() && epochs_.empty()) return;
  Epoch& epoch = epochs_[down];  // a link that flaps comes back to what was known
  if (epoch.tables == nullptr) {
    epoch.tables = std::make_shared<const topologies::RouteTables>(cluster_, down);
  }
  tables_ = epoch.tables;
  current_ = &epoch.routes;
}

RouteId Paths::current(RouteId route) {
  if (tables_ == laid_[route.value]) return route;
  if (const auto known = current_->find(route.value); known != current_->end()) {
    return known->second;
  }
  const std::vector<Leg> legs = legs_[route.value];
  Load planned;  // of the legs as they were laid: what the route has besides stays as it is
  const auto tables = std::exchange(tables_, laid_[route.value]);
  for (const Leg& leg : legs) add_way(leg, planned);
  tables_ = tables;
  Load load;
  load.legs = legs;
  for (const RouteEntry& entry : fluid_.route(route)) {
    const auto found = planned.pipes.find(entry.pipe.value);
    const double beside = entry.weight - (found == planned.pipes.end() ? 0 : found->second);
    if (beside > kWeightNoise * entry.weight) load.pipes[entry.pipe.value] = beside;
  }
  const bool has_way =
      std::ranges::all_of(legs, [&](const Leg& leg) { return add_leg(leg, load); });
  const RouteId now = has_way && !legs.empty() ? make_route(load) : route;
  current_->emplace(route.value, now);
  current_->emplace(now.value, now);
  return now;
}

}  // namespace foresail::sim
