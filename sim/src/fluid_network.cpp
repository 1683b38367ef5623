#include "foresail/sim/fluid_network.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "foresail/base/error.h"
#include "prefetch.h"
#include "water_fill.h"

namespace foresail::sim {
namespace {

constexpr double kLongestSeconds = 8e6;  // SimTime holds 106 days
constexpr std::size_t kFetchedTogether = 16;

}  // namespace

FluidNetwork::FluidNetwork(const FluidOptions& options)
    : options_(options),
      same_(std::max(options.tolerance, 1e-9)),
      scratch_(std::make_unique<WaterFill>()) {
  FORESAIL_EXPECT(options.tolerance >= 0);
  FORESAIL_EXPECT(options.tolerance < 1);
}

FluidNetwork::~FluidNetwork() = default;
FluidNetwork::FluidNetwork(FluidNetwork&&) noexcept = default;
FluidNetwork& FluidNetwork::operator=(FluidNetwork&&) noexcept = default;

void FluidNetwork::set_rule(std::unique_ptr<RateRule> rule) {
  FORESAIL_EXPECT(rule != nullptr);
  FORESAIL_EXPECT(flows_.empty());
  rule_ = std::move(rule);
  for (std::int64_t& load : loads_) load |= kListed;
}

PipeId FluidNetwork::add_pipe(double capacity) {
  FORESAIL_EXPECT(capacity > 0);
  Pipe pipe;
  pipe.capacity = capacity;
  loads_.push_back(is_crowded(pipe) ? kListed : 0);
  limits_.emplace_back();
  pipes_.push_back(std::move(pipe));
  return PipeId{static_cast<std::uint32_t>(pipes_.size() - 1)};
}

RouteId FluidNetwork::add_route(std::span<const RouteEntry> entries, const RouteOptions& options) {
  FORESAIL_EXPECT(!entries.empty());
  FORESAIL_EXPECT(options.share > 0);
  FORESAIL_EXPECT(options.cap > 0);
  Route route;
  route.begin = static_cast<std::uint32_t>(entries_.size());
  route.share = options.share;
  first_flow_.push_back(kNobody);
  for (const RouteEntry& entry : entries) {
    FORESAIL_EXPECT(entry.weight > 0);
    entries_.push_back({entry.pipe, kind_of(entry.weight * options.share, 0)});
    add_place(entry.pipe, {static_cast<std::uint32_t>(routes_.size()), entries_.back().kind});
  }
  route.end = static_cast<std::uint32_t>(entries_.size());
  routes_.push_back(route);
  uses_.push_back({options.cap / options.share, 0, 0, 0});
  const RouteId id{static_cast<std::uint32_t>(routes_.size() - 1)};
  find_full_rate(id);
  return id;
}

// Rows of places double when they are full; old ones are used again.
void FluidNetwork::add_place(PipeId id, const Place& place) {
  Pipe& pipe = pipes_[id.value];
  if (pipe.routes == 0 || (pipe.routes > 1 && std::has_single_bit(pipe.routes))) {
    const std::uint32_t room = std::max(2u, 2 * pipe.routes);
    const auto size = static_cast<std::size_t>(std::countr_zero(room));
    std::uint32_t first = 0;
    if (free_places_[size].empty()) {
      first = static_cast<std::uint32_t>(places_.size());
      places_.resize(places_.size() + room);
    } else {
      first = free_places_[size].back();
      free_places_[size].pop_back();
    }
    std::copy_n(places_.begin() + pipe.first_place, pipe.routes, places_.begin() + first);
    if (pipe.routes > 0) free_places_[size - 1].push_back(pipe.first_place);
    pipe.first_place = first;
  }
  places_[pipe.first_place + pipe.routes++] = place;
  if (is_crowded(pipe)) list_users(id);
}

std::uint32_t FluidNetwork::kind_of(double weight, std::int64_t potential) {
  const auto next = static_cast<std::uint32_t>(kinds_.size());
  const auto [known, is_new] = known_kinds_.try_emplace({weight, potential}, next);
  if (is_new) kinds_.push_back({weight, potential});
  return known->second;
}

void FluidNetwork::find_full_rate(RouteId id) {
  Route& route = routes_[id.value];
  route.full_rate = uses_[id.value].cap;
  route.narrowest = kNoPipe;
  for (std::size_t i = route.begin; i < route.end; ++i) {
    const double alone = pipes_[entries_[i].pipe.value].capacity / weight(entries_[i]);
    if (alone < route.full_rate) {
      route.full_rate = alone;
      route.narrowest = entries_[i].pipe;
    }
  }
  for (std::size_t i = route.begin; i < route.end; ++i) {
    Entry& entry = entries_[i];
    const double taken = weight(entry) * route.full_rate;
    const double share = taken > 0 ? taken / pipes_[entry.pipe.value].capacity : 0;
    entry.kind = kind_of(weight(entry), 2 * std::llround(share * kWhole));
  }
}

std::vector<RouteEntry> FluidNetwork::route(RouteId id) const {
  const Route& found = routes_[id.value];
  std::vector<RouteEntry> made;
  for (std::size_t i = found.begin; i < found.end; ++i) {
    made.push_back({entries_[i].pipe, weight(entries_[i]) / found.share});
  }
  return made;
}

void FluidNetwork::set_capacity(PipeId pipe, double capacity, SimTime now) {
  FORESAIL_EXPECT(capacity >= 0);
  Pipe& changed = pipes_[pipe.value];
  if (changed.capacity == capacity) return;
  settle(now);  // what changed before ran until now on the old capacity
  list_users(pipe);
  dirty_.push_back(pipe);
  const std::vector<User> users = users_of(pipe);
  // Take the flows on the pipe out of the loads, and mark what they may release.
  for (const User& user : users) {
    for (const Entry& entry : entries(flows_[user.flow])) {
      if (is_hot(entry.pipe)) dirty_.push_back(entry.pipe);
    }
  }
  for (const User& user : users) {
    for (const Entry& entry : entries(flows_[user.flow])) {
      loads_[entry.pipe.value] -= potential(entry);
    }
    pending_.push_back(user.flow);
  }
  changed.capacity = capacity;
  for (std::uint32_t id = 0; id < routes_.size(); ++id) {
    const Route& route = routes_[id];
    const bool is_on = std::any_of(entries_.begin() + route.begin, entries_.begin() + route.end,
                                   [pipe](const Entry& entry) { return entry.pipe == pipe; });
    if (is_on) find_full_rate(RouteId{id});
  }
  for (const User& user : users) {
    for (const Entry& entry : entries(flows_[user.flow])) {
      loads_[entry.pipe.value] += potential(entry);
      if (is_hot(entry.pipe)) list_users(entry.pipe);
    }
  }
  ++epoch_;
  remembered_.clear();
  remembered_count_ = 0;
}

// The flows on a pipe with their weights.
std::vector<FluidNetwork::User> FluidNetwork::users_of(PipeId pipe) const {
  if (is_listed(pipe)) return pipes_[pipe.value].users;
  std::vector<User> users;
  find_users(pipe, users);
  return users;
}

void FluidNetwork::find_users(PipeId pipe, std::vector<User>& users) const {
  for (const Place& place : places(pipes_[pipe.value])) {
    std::uint32_t flow = first_flow_[place.route];
    for (; flow != kNobody; flow = flows_[flow].next_on_route) {
      users.push_back({flow, kinds_[place.kind].weight});
    }
  }
}

void FluidNetwork::list_users(PipeId pipe) {
  if (is_listed(pipe)) return;
  std::vector<User>& users = pipes_[pipe.value].users;
  users.clear();
  find_users(pipe, users);
  loads_[pipe.value] |= kListed;
}

// Pipes that are no longer hot forget their flows.
void FluidNetwork::unlist_cold() {
  for (const PipeId pipe : dirty_) {
    if (is_hot(pipe) || is_crowded(pipes_[pipe.value])) continue;
    loads_[pipe.value] &= ~kListed;
  }
}

// Puts a flow on its pipes; with a rate if nothing there is contended, else pending.
std::uint32_t FluidNetwork::admit(RouteId route, double amount, std::uint64_t tag, SimTime now) {
  FORESAIL_EXPECT(amount > 0);
  std::uint32_t id = 0;
  if (free_.empty()) {
    id = static_cast<std::uint32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[id];
  flow.route = route;
  Route& taken = routes_[route.value];
  flow.amount = flow.remaining = taken.share == 1 ? amount : amount / taken.share;
  flow.rate = 0;
  flow.updated = now;
  flow.tag = tag;
  flow.rider = kNobody;
  flow.is_active = true;
  flow.is_solved = false;
  ++flow.version;
  ++active_;
  bool is_contended = rule_ != nullptr && shares_with_ruled(flow);
  flow.is_ruled = false;
  flow.next_on_route = first_flow_[route.value];
  first_flow_[route.value] = id;
  for (const Entry& entry : entries(flow)) {
    std::int64_t& load = loads_[entry.pipe.value];
    load += potential(entry);
    if (load < kHot && (load & kListed) == 0) continue;
    is_contended = is_contended || load >= kHot;
    if ((load & kListed) != 0) {
      pipes_[entry.pipe.value].users.push_back({id, weight(entry)});
    } else {
      list_users(entry.pipe);  // with this one
    }
  }
  if (is_contended || taken.full_rate <= 0) {
    pending_.push_back(id);
  } else {
    flow.rate = taken.full_rate;
  }
  return id;
}

FlowId FluidNetwork::start(RouteId route, double amount, std::uint64_t tag, SimTime now) {
  const std::uint32_t id = admit(route, amount, tag, now);
  push_finish(id, Pending::Alone);
  return FlowId{id};
}

void FluidNetwork::start_together(std::span<const RouteId> routes, double amount, std::uint64_t tag,
                                  SimTime now) {
  const std::size_t soon = std::min(routes.size(), kFetchedTogether);
  for (const RouteId route : routes.first(soon)) {
    prefetch(entries_.data() + routes_[route.value].begin);
  }
  for (std::size_t i = 1; i <= std::min(soon, free_.size()); ++i) {
    prefetch(&flows_[free_[free_.size() - i]]);
  }
  std::uint32_t last = kNobody;
  for (const RouteId route : routes) {
    const std::uint32_t id = admit(route, amount, tag, now);
    Flow& flow = flows_[id];
    if (flow.rate <= 0) continue;
    flow.is_chained = true;
    if (last != kNobody && flows_[last].rate == flow.rate) {
      flows_[last].rider = id;
      flows_[last].rider_version = flow.version;
    } else {
      push_finish(id, Pending::Bundle);
    }
    last = id;
  }
}

SimTime FluidNetwork::finish_time(const Flow& flow) const {
  // Whoever runs the clock refuses steps of that length.
  const double seconds = std::min(flow.remaining / flow.rate, kLongestSeconds);
  return flow.updated + Duration(static_cast<std::int64_t>(std::ceil(seconds * 1e12)));
}

void FluidNetwork::push_finish(std::uint32_t id, Pending kind) {
  const Flow& flow = flows_[id];
  if (flow.rate <= 0) return;  // starved: it waits until somebody leaves
  const std::uint64_t order = next_order_ + (kind == Pending::Bundle ? 1 : 0);
  next_order_ += 2;
  finishes_.push({finish_time(flow), order, id, flow.version});
}

// Leaves behind the flows of a pending event that were re-rated or ended, so that none is looked at
// twice. False if none still ends then.
bool FluidNetwork::find_live(Finish& finish) {
  while (finish.flow != kNobody) {
    Flow& flow = flows_[finish.flow];
    if (flow.is_active && flow.version == finish.version) return true;
    if (!finish.is_bundle()) return false;
    const std::uint32_t passed = finish.flow;
    finish.version = flow.rider_version;
    finish.flow = flow.rider;
    flow.is_chained = false;
    if (!flow.is_active) free_.push_back(passed);
  }
  return false;
}

std::optional<SimTime> FluidNetwork::next_finish() {
  while (!finishes_.empty()) {
    if (find_live(finishes_.front())) return finishes_.front().when;
    finishes_.pop();
  }
  return std::nullopt;
}

std::uint64_t FluidNetwork::finish_next() {
  const bool has_one = next_finish().has_value();
  FORESAIL_EXPECT(has_one);
  const std::uint32_t id = finishes_.front().flow;
  for (const Finish& finish : finishes_.seconds()) prefetch(&flows_[finish.flow]);
  if (flows_[id].rider != kNobody) prefetch(&flows_[flows_[id].rider]);
  leave(id, finishes_.front().when);
  return flows_[id].tag;
}

void FluidNetwork::leave(std::uint32_t id, SimTime now) {
  Flow& flow = flows_[id];
  if (flow.is_slowed) slow(flow, kNoPipe, now);
  --active_;
  routes_[flow.route.value].carried += flow.amount;
  std::uint32_t* link = &first_flow_[flow.route.value];
  while (*link != id) link = &flows_[*link].next_on_route;
  *link = flow.next_on_route;
  for (const Entry& entry : entries(flow)) {
    std::int64_t& load = loads_[entry.pipe.value];
    const std::int64_t before = load;
    load -= potential(entry);
    if ((before & kListed) == 0) continue;
    if (flow.is_ruled || before >= kHot) dirty_.push_back(entry.pipe);
    std::vector<User>& users = pipes_[entry.pipe.value].users;
    const auto user = std::ranges::find_if(users, [id](const User& u) { return u.flow == id; });
    *user = users.back();
    users.pop_back();
  }
  flow.is_active = false;
  if (!flow.is_chained) free_.push_back(id);
}

FluidNetwork::Stopped FluidNetwork::stop(FlowId id, SimTime now) {
  Flow& flow = flows_[id.value];
  FORESAIL_EXPECT(flow.is_active);
  set_rate(flow, flow.rate, now);
  const Stopped stopped{flow.route, flow.tag, flow.remaining * routes_[flow.route.value].share};
  flow.amount -= flow.remaining;
  ++flow.version;
  std::erase(pending_, id.value);
  leave(id.value, now);
  return stopped;
}

std::vector<FlowId> FluidNetwork::flows_on(PipeId pipe) const {
  std::vector<FlowId> flows;
  for (const User& user : users_of(pipe)) flows.push_back(FlowId{user.flow});
  std::ranges::sort(flows);
  return flows;
}

double FluidNetwork::carried(PipeId pipe) const {
  double sum = 0;
  for (const Place& place : places(pipes_[pipe.value])) {
    sum += kinds_[place.kind].weight * routes_[place.route].carried;
  }
  return sum;
}

double FluidNetwork::carried(PipeId pipe, SimTime now) const {
  double sum = carried(pipe);
  for (const User& user : users_of(pipe)) {
    const Flow& flow = flows_[user.flow];
    const double sent = flow.amount - flow.remaining + flow.rate * to_seconds(now - flow.updated);
    sum += user.weight * std::min(flow.amount, sent);
  }
  return sum;
}

Duration FluidNetwork::limiting_time(PipeId pipe, SimTime now) const {
  const Limit& limit = limits_[pipe.value];
  return limit.slowed > 0 ? limit.total + (now - limit.since) : limit.total;
}

const Contention& FluidNetwork::worst_moment(PipeId pipe) const {
  static const Contention kNone{};
  const Limit& limit = limits_[pipe.value];
  return limit.worst == kNobody ? kNone : worst_[limit.worst];
}

}  // namespace foresail::sim
