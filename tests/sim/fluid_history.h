/// \file
/// Random systems of routes, and a FluidNetwork driven beside plain bookkeeping of what is active,
/// so that any moment of a history can be compared with the reference solver.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "foresail/base/rng.h"
#include "foresail/sim/fluid_network.h"
#include "foresail/sim/max_min.h"

namespace foresail::sim::test {

/// 2 to 15 pipes of capacity 1 to 9 and 1 to 25 routes of 1 to 5 of them; some coefficients are not
/// 1, some routes have a share or a cap.
inline MaxMinSystem random_system(RandomStream& random) {
  MaxMinSystem made;
  const std::size_t pipes = 2 + random.below(14);
  for (std::size_t p = 0; p < pipes; ++p) {
    made.capacity.push_back(1.0 + static_cast<double>(random.below(9)));
  }
  const bool has_shares = random.below(2) == 0;
  const bool has_caps = random.below(2) == 0;
  for (std::size_t routes = 1 + random.below(25); routes > 0; --routes) {
    std::map<std::uint32_t, double> chosen;
    for (std::uint64_t hops = 1 + random.below(5); hops > 0; --hops) {
      chosen[static_cast<std::uint32_t>(random.below(pipes))] =
          random.below(4) == 0 ? 0.5 * static_cast<double>(1 + random.below(5)) : 1.0;
    }
    made.variables.emplace_back();
    for (const auto& [pipe, weight] : chosen) made.variables.back().push_back({pipe, weight});
    made.share.push_back(has_shares ? 0.25 * static_cast<double>(1 + random.below(12)) : 1.0);
    made.cap.push_back(has_caps && random.below(3) == 0 ? 0.1 + random.uniform() : 1e6);
  }
  return made;
}

/// Variable i of `system` is route i.
class History {
 public:
  explicit History(MaxMinSystem system, const FluidOptions& options = {})
      : network(options), system_(std::move(system)) {
    for (const double capacity : system_.capacity) network.add_pipe(capacity);
    for (std::size_t v = 0; v < system_.variables.size(); ++v) {
      std::vector<RouteEntry> entries;
      for (const MaxMinEntry& entry : system_.variables[v]) {
        entries.push_back({PipeId{entry.constraint}, entry.weight});
      }
      RouteOptions wanted;
      if (!system_.share.empty()) wanted.share = system_.share[v];
      if (!system_.cap.empty()) wanted.cap = system_.cap[v];
      routes_.push_back(network.add_route(entries, wanted));
    }
    sent_.assign(system_.capacity.size(), 0);
  }

  struct Active {
    std::uint64_t tag = 0;
    std::size_t route = 0;
    FlowId flow;
    double amount = 0;
  };

  void start(std::size_t route, double amount) {
    const FlowId flow = network.start(routes_[route], amount, next_tag_, now);
    active.push_back({next_tag_++, route, flow, amount});
  }
  void set_capacity(std::uint32_t pipe, double capacity) {
    network.set_capacity(PipeId{pipe}, capacity, now);
    system_.capacity[pipe] = capacity;
  }
  void settle() {
    network.settle(now);
    rates_.clear();
    for (const Active& each : active) rates_.push_back(network.rate(each.flow));
  }
  /// Goes on to `when`, at most the next finish; adds up what flows send until then.
  void advance(SimTime when) {
    for (std::size_t i = 0; i < active.size(); ++i) {
      for (const MaxMinEntry& entry : system_.variables[active[i].route]) {
        sent_[entry.constraint] += entry.weight * rates_[i] * to_seconds(when - now);
      }
    }
    now = when;
  }
  /// Ends all flows that end next. False if none does.
  bool finish() {
    const std::optional<SimTime> when = network.next_finish();
    if (!when) return false;
    advance(*when);
    while (network.next_finish() == when) {
      const std::uint64_t tag = network.finish_next();
      std::erase_if(active, [tag](const Active& each) { return each.tag == tag; });
    }
    settle();
    return true;
  }
  /// What the reference solver gives the active flows.
  std::vector<double> expected() const {
    MaxMinSystem now_active{system_.capacity, {}};
    for (const Active& each : active) {
      now_active.variables.push_back(system_.variables[each.route]);
      if (!system_.share.empty()) now_active.share.push_back(system_.share[each.route]);
      if (!system_.cap.empty()) now_active.cap.push_back(system_.cap[each.route]);
    }
    return solve_max_min(now_active);
  }
  const MaxMinSystem& system() const { return system_; }
  const std::vector<double>& rates() const { return rates_; }
  double sent(std::uint32_t pipe) const { return sent_[pipe]; }

  FluidNetwork network;
  SimTime now{};
  std::vector<Active> active;

 private:
  MaxMinSystem system_;
  std::vector<RouteId> routes_;
  std::vector<double> rates_, sent_;
  std::uint64_t next_tag_ = 0;
};

/// One random event: starts, a finish, or a change of capacity (at times to 0), then settle.
inline void random_event(History& history, RandomStream& random) {
  const std::uint64_t kind = random.below(8);
  if (kind == 0) {
    const auto pipe = static_cast<std::uint32_t>(random.below(history.system().capacity.size()));
    history.set_capacity(pipe, static_cast<double>(random.below(10)));
  } else if (kind < 4 && history.network.next_finish()) {
    history.finish();
  } else {
    for (std::uint64_t starts = 1 + random.below(4); starts > 0; --starts) {
      history.start(random.below(history.system().variables.size()),
                    1.0 + static_cast<double>(random.below(100)));
    }
  }
  history.settle();
}

/// How far the rates are from a fair allocation: the largest relative excess of a pipe, and the
/// largest relative distance of a flow from being justified by its cap or by a pipe that is full
/// and on which nobody has more in proportion.
struct Unfairness {
  double overload = 0, unjustified = 0;
};

inline Unfairness unfairness(const History& history) {
  const MaxMinSystem& system = history.system();
  std::vector<double> load(system.capacity.size(), 0), highest(system.capacity.size(), 0);
  const auto level = [&](std::size_t i) {
    return history.rates()[i] / system.share[history.active[i].route];
  };
  for (std::size_t i = 0; i < history.active.size(); ++i) {
    for (const MaxMinEntry& entry : system.variables[history.active[i].route]) {
      load[entry.constraint] += entry.weight * history.rates()[i];
      highest[entry.constraint] = std::max(highest[entry.constraint], level(i));
    }
  }
  Unfairness found;
  for (std::size_t p = 0; p < load.size(); ++p) {
    const double scale = std::max(system.capacity[p], 1e-3);
    found.overload = std::max(found.overload, (load[p] - system.capacity[p]) / scale);
  }
  for (std::size_t i = 0; i < history.active.size(); ++i) {
    const std::size_t route = history.active[i].route;
    double best = 1 - history.rates()[i] / system.cap[route];
    for (const MaxMinEntry& entry : system.variables[route]) {
      const std::uint32_t p = entry.constraint;
      const double slack =
          system.capacity[p] > 0 ? 1 - load[p] / system.capacity[p] : (load[p] > 0 ? 1 : 0);
      const double envy = highest[p] > 0 ? 1 - level(i) / highest[p] : 0;
      best = std::min(best, std::max(slack, envy));
    }
    found.unjustified = std::max(found.unjustified, best);
  }
  return found;
}

}  // namespace foresail::sim::test
