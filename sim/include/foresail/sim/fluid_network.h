/// \file
/// Flows that share links max-min fairly over time, re-solved only where something changed.
///
/// Exact incremental solve in bottleneck order: when flows come or go, only those whose bottleneck
/// changed, and those that they in turn push or release, get new rates; the others are proved
/// untouched (facts: bottleneck structure, Ros-Giralt et al.). A flow whose links could all carry
/// every flow on them at its own full rate costs O(path) and is never solved for. When the set that
/// must be solved exceeds a share of all flows, one water-fill from scratch is cheaper; its answer
/// is remembered by the set of active routes, since a training step repeats few overlap patterns.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/units.h"
#include "foresail/sim/quad_heap.h"

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

/// How exactly and by which path a FluidNetwork solves.
struct FluidOptions {
  /// 0: exact. Otherwise a change stops spreading where it violates fairness by less than this
  /// (relative): each flow keeps a pipe that is full, and on which no other is faster, to within
  /// `tolerance`; no pipe is ever over capacity. Errors of single rates may add up along chains.
  double tolerance = 0;
  /// A solve of more than this share of the active flows (and of more than 64 flows) starts from
  /// scratch. 0: always from scratch; 1: never.
  double full_fill_share = 0.2;
  /// How many rates of patterns solved from scratch are remembered (24 bytes each); 0: none. Never
  /// changes an answer: a fill from scratch depends on the set of active routes and the capacities
  /// alone.
  std::size_t remembered_rates = std::size_t{1} << 20;
};

/// What a route asks for beside its pipes.
struct RouteOptions {
  /// Flows that a pipe limits get rates in proportion to their shares, > 0.
  double share = 1;
  /// Largest rate of each flow, > 0, in units per second.
  double cap = std::numeric_limits<double>::infinity();
};

/// The moment at which most flows shared a pipe that limited one of them.
struct Contention {
  int sharers = 0;
  SimTime when{};
  /// The first of them by tag, then route: at most kNamedSharers, in step with each other.
  std::vector<RouteId> routes;
  std::vector<std::uint64_t> tags;
};
inline constexpr std::size_t kNamedSharers = 8;

/// Rates by another rule than max-min fairness.
class RateRule {
 public:
  struct Flow {
    RouteId route;
    double rate = 0;         ///< so far; 0 at its start
    double full_rate = 0;    ///< with all pipes of its route to itself, > 0
    bool was_ruled = false;  ///< its rate is this rule's answer of an earlier settle
  };
  struct Answer {
    double rate = 0;  ///< at most full_rate
    /// What keeps it below its full rate, if it is.
    std::optional<PipeId> bottleneck;
  };
  virtual ~RateRule() = default;
  /// One answer per flow. `flows` are all that share pipes with each other, directly or through
  /// others; on one pipe at least they would need more than its capacity at their full rates. The
  /// answers hold until the next call.
  virtual std::span<const Answer> rates(std::span<const Flow> flows) = 0;
};

class WaterFill;

class FluidNetwork {
 public:
  explicit FluidNetwork(const FluidOptions& options = {});
  ~FluidNetwork();
  FluidNetwork(FluidNetwork&&) noexcept;
  FluidNetwork& operator=(FluidNetwork&&) noexcept;

  /// Flows get their rates from `rule` instead: where any pipe is contended, the flows that share
  /// pipes with its flows, directly or through others; all others run at their full rates. Before
  /// the first start; routes must have the share 1.
  void set_rule(std::unique_ptr<RateRule> rule);

  /// Capacity in units (bytes, core-seconds) per second, > 0.
  PipeId add_pipe(double capacity);
  /// A set of pipes that flows may load; entries must not be empty nor repeat a pipe.
  RouteId add_route(std::span<const RouteEntry> entries, const RouteOptions& options = {});
  /// From `now` on `pipe` carries `capacity` >= 0 units per second: a link that degrades, goes down
  /// (0: flows on it stand still and wait) or comes back. Takes effect with the next settle(now).
  /// Reads all routes once: for timed faults, not for every event.
  void set_capacity(PipeId pipe, double capacity, SimTime now);
  /// Number of changes of capacity so far: routes and rates found earlier hold within one epoch.
  std::uint64_t epoch() const { return epoch_; }

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

  /// A flow taken off its route before its end.
  struct Stopped {
    RouteId route;
    std::uint64_t tag = 0;
    double remaining = 0;  ///< of its amount
  };
  /// Ends a running flow now; it is not returned by finish_next.
  Stopped stop(FlowId flow, SimTime now);
  /// Flows that load `pipe`, in order of their ids.
  std::vector<FlowId> flows_on(PipeId pipe) const;

  double rate(FlowId flow) const {
    const Flow& f = flows_[flow.value];
    return f.rate * routes_[f.route.value].share;
  }
  /// Units that have passed through `pipe` so far in flows that ended.
  double carried(PipeId pipe) const;
  /// The same with what flows under way have sent by `now` (>= the last settle): the integral of
  /// the pipe's load over time. Both: O(routes over the pipe).
  double carried(PipeId pipe, SimTime now) const;
  /// Time up to `now` during which `pipe` kept some flow below the rate it has alone.
  Duration limiting_time(PipeId pipe, SimTime now) const;
  /// Rate of a flow that has all pipes of its route to itself.
  double full_rate(RouteId route) const {
    const Route& r = routes_[route.value];
    return r.full_rate * r.share;
  }
  double capacity(PipeId pipe) const { return pipes_[pipe.value].capacity; }
  /// Largest number of flows that shared `pipe` while it limited one of them.
  int sharers_max(PipeId pipe) const { return limits_[pipe.value].sharers_max; }
  /// Who they were; no sharers if the pipe never limited anyone.
  const Contention& worst_moment(PipeId pipe) const;
  /// The pipes of a route with their weights.
  std::vector<RouteEntry> route(RouteId route) const;
  std::size_t pipe_count() const { return pipes_.size(); }
  /// Solves, the flows that took part in them, and how many solves were from scratch or remembered.
  std::uint64_t solves() const { return solves_; }
  std::uint64_t solved_flows() const { return solved_flows_; }
  std::uint64_t full_fills() const { return full_fills_; }
  std::uint64_t remembered_fills() const { return remembered_fills_; }

 private:
  static constexpr std::uint32_t kNobody = ~0u;
  static constexpr PipeId kNoPipe{kNobody};

  /// The whole capacity of a pipe in potentials; a pipe that its flows would exceed by less than
  /// 1e-9 needs no solve: rounding, not contention.
  static constexpr double kWhole = 1ULL << 40u;
  static constexpr std::int64_t kFull = (1LL << 40) + 1100;
  static constexpr std::int64_t kListed = 1;
  static constexpr std::int64_t kHot = 2 * (kFull + 1);
  /// More routes than that are not searched for active flows.
  static constexpr std::uint32_t kSearchedRoutes = 32;

  // A route of share s is solved for x / s, its amounts and weights scaled to match: max-min
  // fairness of the scaled rates is fairness in proportion to shares. All rates, amounts and
  // weights below are scaled.

  struct User {
    std::uint32_t flow;
    double weight;
  };
  struct Pipe {
    double capacity = 0;
    std::uint32_t first_place = 0;  // of the routes over it
    std::uint32_t routes = 0;
    std::vector<User> users;  // while it is listed
    // Scratch of one solve.
    std::uint64_t stamp = 0;
    double fixed = 0, free_weight = 0, level = 0;
    std::uint32_t free_users = 0;
  };
  /// Whom a pipe slows, apart from what every start touches.
  struct Limit {
    std::uint32_t slowed = 0;  // flows that it keeps below their full rates now
    std::uint32_t worst = kNobody;
    int sharers_max = 0;
    SimTime since{};
    Duration total{};
  };
  struct Route {
    std::uint32_t begin = 0, end = 0;
    double full_rate = 0;  // alone on idle pipes
    double share = 1;
    double carried = 0;  // by flows that ended
    PipeId narrowest;    // kNoPipe if the cap is less
  };
  /// What starts and finishes do not read.
  struct RouteUse {
    double cap = std::numeric_limits<double>::infinity();
    std::uint64_t stamp = 0;  // flows and slot hold in the solve of this number
    std::uint32_t flows = 0, slot = 0;
    std::uint32_t searched = 0;  // entry at which the last search for a bottleneck ended
  };
  struct Entry {
    PipeId pipe;
    std::uint32_t kind = 0;
  };
  /// Of entries: millions of them have but a few.
  struct Kind {
    double weight = 1;
    std::int64_t potential = 0;  // weight * the route's full rate, as a share of the capacity
  };
  /// A route over a pipe.
  struct Place {
    std::uint32_t route = 0, kind = 0;
  };
  /// One cache line for flows that no solve meets, the next for those that it does.
  struct alignas(128) Flow {
    double amount = 0, remaining = 0, rate = 0;
    SimTime updated{};
    std::uint64_t tag = 0;
    RouteId route;
    std::uint32_t version = 0;
    std::uint32_t rider = kNobody;    // next flow of the bundle that shares a pending event
    std::uint32_t rider_version = 0;  // ... while its version is still this one
    std::uint32_t next_on_route = kNobody;
    bool is_active : 1 = false;
    bool is_ruled : 1 = false;    // its rate is the rule's answer
    bool is_chained : 1 = false;  // a pending event may still walk over this flow: keep its id
    bool is_solved : 1 = false;   // `bottleneck` holds; else it is the narrowest of the route
    bool is_slowed : 1 = false;   // `slowed_by` holds
    PipeId bottleneck;
    PipeId slowed_by;
    std::uint64_t stamp = 0;  // equals the solve's number while the flow is in its set
    double new_rate = -1;
  };
  struct Finish {
    SimTime when;
    std::uint64_t order;  ///< in which they were pushed, doubled; odd: for the riders of `flow` too
    std::uint32_t flow, version;
    bool is_bundle() const { return order % 2 != 0; }
  };
  struct Sooner {
    bool operator()(const Finish& a, const Finish& b) const {
      return a.when != b.when ? a.when < b.when : a.order < b.order;
    }
  };

  // True if the flows on the pipe, each at its full rate, would need more than its capacity.
  bool is_hot(PipeId pipe) const { return loads_[pipe.value] >= kHot; }
  // True if the pipe knows its flows: it is hot, or was since the last settle, or is crowded.
  bool is_listed(PipeId pipe) const { return (loads_[pipe.value] & kListed) != 0; }
  bool is_crowded(const Pipe& pipe) const {
    return rule_ != nullptr || pipe.routes > kSearchedRoutes;
  }
  double weight(const Entry& entry) const { return kinds_[entry.kind].weight; }
  std::int64_t potential(const Entry& entry) const { return kinds_[entry.kind].potential; }
  std::span<const Entry> entries(const Flow& flow) const {
    const Route& route = routes_[flow.route.value];
    return {entries_.data() + route.begin, entries_.data() + route.end};
  }
  std::span<const Place> places(const Pipe& pipe) const {
    return {places_.data() + pipe.first_place, pipe.routes};
  }
  PipeId bottleneck(const Flow& flow) const {
    return flow.is_solved ? flow.bottleneck : routes_[flow.route.value].narrowest;
  }
  static void hold(Flow& flow, PipeId bottleneck) {
    flow.bottleneck = bottleneck;
    flow.is_solved = true;
  }
  void add_place(PipeId pipe, const Place& place);
  std::uint32_t kind_of(double weight, std::int64_t potential);
  std::vector<User> users_of(PipeId pipe) const;
  void find_users(PipeId pipe, std::vector<User>& users) const;
  void list_users(PipeId pipe);
  void unlist_cold();
  std::uint32_t admit(RouteId route, double amount, std::uint64_t tag, SimTime now);
  bool find_live(Finish& finish);
  SimTime finish_time(const Flow& flow) const;
  void join(std::uint32_t flow);
  void touch_pipes(std::size_t from);
  void fill();
  bool grow(unsigned round);
  void freeze(std::uint32_t flow, double rate, PipeId bottleneck);
  void set_rate(Flow& flow, double rate, SimTime now);
  enum class Pending { Alone, Bundle };
  void push_finish(std::uint32_t flow, Pending kind);
  void leave(std::uint32_t flow, SimTime now);
  void find_full_rate(RouteId route);
  bool is_too_large() const;
  void fill_from_scratch();
  using Pattern = std::pair<std::uint64_t, std::uint64_t>;
  void remember(const Pattern& pattern);
  Pattern gather_active();
  void fill_levels();
  bool finds_other_bottleneck(Flow& flow, SimTime now);
  bool shares_with_ruled(const Flow& flow) const;
  void gather_component(std::uint32_t first);
  void rule_component(std::size_t first);
  void apply_rule();
  void note_limit(Flow& flow, double rate, SimTime now);
  void slow(Flow& flow, PipeId pipe, SimTime now);
  void note_worst(PipeId pipe, SimTime now);

  FluidOptions options_;
  double same_ = 0;  // relative difference below which rates are not told apart
  // By pipe, what its flows would take at their full rates, doubled, and kListed: integers, so that
  // the sum never drifts; apart from the pipes, and all that every start and finish touches of a
  // pipe that is not hot, so that it stays in the cache.
  std::vector<std::int64_t> loads_;
  std::vector<Limit> limits_;
  std::vector<Contention> worst_;
  std::vector<Pipe> pipes_;
  std::vector<Entry> entries_;
  std::vector<Place> places_;  // of each pipe in a row, with room for as many again
  std::array<std::vector<std::uint32_t>, 32> free_places_;  // rows of 2^i, i the index
  std::vector<Kind> kinds_;
  std::map<std::pair<double, std::int64_t>, std::uint32_t> known_kinds_;
  std::vector<Route> routes_;
  std::vector<RouteUse> uses_;             // by route
  std::vector<std::uint32_t> first_flow_;  // active, the latest to start, by route
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> free_;
  std::size_t active_ = 0;
  std::uint64_t epoch_ = 0;
  QuadHeap<Finish, Sooner> finishes_;  // stale entries are skipped by version
  std::uint64_t next_order_ = 0;
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
  std::uint64_t solves_ = 0, solved_flows_ = 0, full_fills_ = 0, remembered_fills_ = 0;
  std::unique_ptr<WaterFill> scratch_;
  struct Level {
    std::uint32_t route, flows;
    PipeId bottleneck;
    double level;
  };
  std::vector<Level> levels_;                         // of the fill from scratch, by route
  std::map<Pattern, std::vector<Level>> remembered_;  // this epoch
  std::size_t remembered_count_ = 0;
  std::unique_ptr<RateRule> rule_;  // null: max-min
  std::vector<RateRule::Flow> ruled_;
};

}  // namespace foresail::sim
