/// \file
/// Flows that share links max-min fairly over time, re-solved only where something changed.
///
/// Exact incremental solve in bottleneck order: when flows come or go, only those whose bottleneck
/// changed, and those that they in turn push or release, get new rates; the others are proved
/// untouched (facts: bottleneck structure, Ros-Giralt et al.). A flow whose links could all carry
/// every flow on them at its own full rate costs O(path) and is never solved for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/units.h"

namespace foresail::sim {

using RouteId = Id<struct RouteTag>;
using FlowId = Id<struct FlowTag>;
/// A constraint of the fluid network: a link of the cluster, a bundle of links under spraying, or
/// the cores of a host.
using PipeId = Id<struct PipeTag>;

/// One entry of a route: a flow of rate x takes `weight` x of the pipe's capacity.
struct RouteEntry {
  PipeId pipe;
  double weight = 1;
};

class FluidNetwork {
 public:
  /// Capacity in units (bytes, core-seconds) per second, > 0.
  PipeId add_pipe(double capacity);
  /// A set of pipes that flows may load; entries must not be empty nor repeat a pipe.
  RouteId add_route(std::span<const RouteEntry> entries);

  /// Starts `amount` units along `route` at `now`; `tag` comes back from finish_next. The flow's
  /// rate is known after settle().
  FlowId start(RouteId route, double amount, std::uint64_t tag, SimTime now);
  /// The same for several routes with one tag, which finish_next returns once per route. Flows of
  /// one call that run unhindered end together and share one pending event.
  void start_together(std::span<const RouteId> routes, double amount, std::uint64_t tag,
                      SimTime now);
  /// Gives every flow that changes at `now` its new rate. Call after all starts and finishes of one
  /// moment: equal flows that start together then need one solve (water-fill).
  void settle(SimTime now);
  /// When the next flow that has a rate ends, if any. After a start or a finish the answer holds
  /// only once settle() was called.
  std::optional<SimTime> next_finish();
  /// Ends the flow of next_finish() and returns its tag.
  std::uint64_t finish_next();

  double rate(FlowId flow) const { return flows_[flow.value].rate; }
  /// Units that have passed through `pipe` so far in flows that ended.
  double carried(PipeId pipe) const { return pipes_[pipe.value].carried; }
  /// Rate of a flow that has all pipes of its route to itself.
  double full_rate(RouteId route) const { return routes_[route.value].full_rate; }
  double capacity(PipeId pipe) const { return pipes_[pipe.value].capacity; }
  /// Largest number of flows that shared `pipe` while it limited one of them.
  int sharers_max(PipeId pipe) const { return pipes_[pipe.value].sharers_max; }
  std::size_t pipe_count() const { return pipes_.size(); }
  std::uint64_t solves() const { return solves_; }
  std::uint64_t solved_flows() const { return solved_flows_; }

 private:
  static constexpr std::uint32_t kNobody = ~0u;

  struct User {
    std::uint32_t flow;
    double weight;
  };
  /// What every start and finish touches, packed so that it stays in the cache.
  struct Load {
    std::int64_t potential = 0;  // sum of weight * full rate, in milli-units/s: exact, never drifts
    std::int64_t potential_max = 0;
  };
  struct Pipe {
    double capacity = 0;
    double carried = 0;
    std::vector<User> users;
    // Scratch of one solve.
    std::uint64_t stamp = 0;
    double fixed = 0, free_weight = 0, level = 0;
    std::uint32_t free_users = 0;
    int sharers_max = 0;
  };
  struct Route {
    std::uint32_t begin = 0, end = 0;
    double full_rate = 0;  // alone on idle pipes
    PipeId narrowest;
  };
  struct Entry {
    PipeId pipe;
    double weight = 1;
    std::int64_t potential = 0;  // weight * the route's full rate, in milli-units/s
  };
  struct Flow {
    RouteId route;
    double amount = 0, remaining = 0, rate = 0;
    SimTime updated{};
    PipeId bottleneck;
    std::uint32_t version = 0;
    std::uint32_t rider = kNobody;    // next flow of the bundle that shares a pending event
    std::uint32_t rider_version = 0;  // ... while its version is still this one
    bool is_active = false;
    bool is_chained = false;  // a pending event may still walk over this flow: keep its id
    std::uint64_t tag = 0;
    std::uint64_t stamp = 0;  // equals the solve's number while the flow is in its set
    double new_rate = -1;
  };
  struct Finish {
    SimTime when;
    std::uint64_t sequence;
    std::uint32_t flow, version;
    bool is_bundle = false;  ///< stands for the riders of `flow` too
  };

  // True if the flows on the pipe, each at its full rate, would need more than its capacity.
  bool is_hot(PipeId pipe) const {
    return loads_[pipe.value].potential > loads_[pipe.value].potential_max;
  }
  std::span<const Entry> entries(const Flow& flow) const {
    const Route& route = routes_[flow.route.value];
    return {entries_.data() + route.begin, entries_.data() + route.end};
  }
  std::uint32_t admit(RouteId route, double amount, std::uint64_t tag, SimTime now);
  std::uint32_t live_member(const Finish& finish) const;
  SimTime finish_time(const Flow& flow) const;
  void join(std::uint32_t flow);
  void touch_pipes(std::size_t from);
  void fill();
  bool grow();
  void freeze(std::uint32_t flow, double rate, PipeId bottleneck);
  void set_rate(Flow& flow, double rate, SimTime now);
  enum class Pending { Alone, Bundle };
  void push_finish(std::uint32_t flow, Pending kind);
  void pop_finish();
  void leave(std::uint32_t flow);

  std::vector<Load> loads_;  // by pipe
  std::vector<Pipe> pipes_;
  std::vector<Entry> entries_;
  std::vector<Route> routes_;
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> free_;
  std::vector<Finish> finishes_;  // binary heap, stale entries skipped by version
  std::uint64_t next_sequence_ = 0;
  std::vector<std::uint32_t> pending_;  // started, without a rate
  std::vector<PipeId> dirty_;           // hot pipes that a flow left
  // Scratch of one solve.
  std::uint64_t solve_ = 0;
  std::vector<std::uint32_t> set_;
  std::vector<std::uint32_t> touched_;
  struct Key {
    double level;
    std::uint32_t id;
  };
  std::vector<Key> keys_;  // heap of pipes by level
  std::vector<Key> caps_;  // flows by full rate
  std::uint64_t solves_ = 0, solved_flows_ = 0;
};

}  // namespace foresail::sim
