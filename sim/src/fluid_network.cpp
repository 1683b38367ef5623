#include "foresail/sim/fluid_network.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

// Relative difference below which two rates are the same: solver noise, far under a picosecond in
// a transfer of a second.
constexpr double kSame = 1e-9;
constexpr double kPotentialScale = 1e3;

bool later(const auto& a, const auto& b) {
  return a.when != b.when ? a.when > b.when : a.sequence > b.sequence;
}

bool higher(const auto& a, const auto& b) {
  return a.level != b.level ? a.level > b.level : a.id > b.id;
}

}  // namespace

PipeId FluidNetwork::add_pipe(double capacity) {
  FORESAIL_EXPECT(capacity > 0);
  Pipe pipe;
  pipe.capacity = capacity;
  loads_.push_back({0, static_cast<std::int64_t>(capacity * kPotentialScale * (1 + kSame))});
  pipes_.push_back(std::move(pipe));
  return PipeId{static_cast<std::uint32_t>(pipes_.size() - 1)};
}

RouteId FluidNetwork::add_route(std::span<const RouteEntry> entries) {
  FORESAIL_EXPECT(!entries.empty());
  Route route;
  route.begin = static_cast<std::uint32_t>(entries_.size());
  route.full_rate = std::numeric_limits<double>::infinity();
  for (const RouteEntry& entry : entries) {
    FORESAIL_EXPECT(entry.weight > 0);
    const double alone = pipes_[entry.pipe.value].capacity / entry.weight;
    if (alone < route.full_rate) {
      route.full_rate = alone;
      route.narrowest = entry.pipe;
    }
    entries_.push_back({entry.pipe, entry.weight, 0});
  }
  for (std::size_t i = route.begin; i < entries_.size(); ++i) {
    entries_[i].potential = std::llround(entries_[i].weight * route.full_rate * kPotentialScale);
  }
  route.end = static_cast<std::uint32_t>(entries_.size());
  routes_.push_back(route);
  return RouteId{static_cast<std::uint32_t>(routes_.size() - 1)};
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
  flow.amount = flow.remaining = amount;
  flow.rate = 0;
  flow.updated = now;
  flow.tag = tag;
  flow.rider = kNobody;
  flow.is_active = true;
  ++flow.version;
  bool is_contended = false;
  for (const Entry& entry : entries(flow)) {
    loads_[entry.pipe.value].potential += entry.potential;
    pipes_[entry.pipe.value].users.push_back({id, entry.weight});
    is_contended = is_contended || is_hot(entry.pipe);
  }
  if (is_contended) {
    pending_.push_back(id);
  } else {
    flow.rate = routes_[route.value].full_rate;
    flow.bottleneck = routes_[route.value].narrowest;
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
  const double seconds = flow.remaining / flow.rate;
  return flow.updated + Duration(static_cast<std::int64_t>(std::ceil(seconds * 1e12)));
}

void FluidNetwork::push_finish(std::uint32_t id, Pending kind) {
  const Flow& flow = flows_[id];
  if (flow.rate <= 0) return;  // starved: it waits until somebody leaves
  finishes_.push_back(
      {finish_time(flow), next_sequence_++, id, flow.version, kind == Pending::Bundle});
  std::push_heap(finishes_.begin(), finishes_.end(),
                 [](const Finish& a, const Finish& b) { return later(a, b); });
}

// The first flow of a pending event that still ends then; kNobody if all were re-rated or ended.
std::uint32_t FluidNetwork::live_member(const Finish& finish) const {
  std::uint32_t id = finish.flow;
  std::uint32_t version = finish.version;
  while (id != kNobody) {
    const Flow& flow = flows_[id];
    if (flow.is_active && flow.version == version) return id;
    if (!finish.is_bundle) return kNobody;
    version = flow.rider_version;
    id = flow.rider;
  }
  return kNobody;
}

std::optional<SimTime> FluidNetwork::next_finish() {
  while (!finishes_.empty()) {
    if (live_member(finishes_.front()) != kNobody) return finishes_.front().when;
    pop_finish();
  }
  return std::nullopt;
}

void FluidNetwork::pop_finish() {
  std::pop_heap(finishes_.begin(), finishes_.end(),
                [](const Finish& a, const Finish& b) { return later(a, b); });
  const Finish done = finishes_.back();
  finishes_.pop_back();
  if (!done.is_bundle) return;
  for (std::uint32_t id = done.flow; id != kNobody; id = flows_[id].rider) {
    flows_[id].is_chained = false;
    if (!flows_[id].is_active) free_.push_back(id);
  }
}

std::uint64_t FluidNetwork::finish_next() {
  const bool has_one = next_finish().has_value();
  FORESAIL_EXPECT(has_one);
  const std::uint32_t id = live_member(finishes_.front());
  leave(id);
  return flows_[id].tag;
}

void FluidNetwork::leave(std::uint32_t id) {
  Flow& flow = flows_[id];
  for (const Entry& entry : entries(flow)) {
    Pipe& pipe = pipes_[entry.pipe.value];
    if (is_hot(entry.pipe)) dirty_.push_back(entry.pipe);
    loads_[entry.pipe.value].potential -= entry.potential;
    pipe.carried += entry.weight * flow.amount;
    const auto user =
        std::ranges::find_if(pipe.users, [id](const User& u) { return u.flow == id; });
    *user = pipe.users.back();
    pipe.users.pop_back();
  }
  flow.is_active = false;
  if (!flow.is_chained) free_.push_back(id);
}

void FluidNetwork::join(std::uint32_t id) {
  Flow& flow = flows_[id];
  if (flow.stamp == solve_) return;
  flow.stamp = solve_;
  flow.new_rate = -1;
  set_.push_back(id);
}

// The hot pipes of the set's members from index `from` on.
void FluidNetwork::touch_pipes(std::size_t from) {
  for (std::size_t i = from; i < set_.size(); ++i) {
    for (const Entry& entry : entries(flows_[set_[i]])) {
      Pipe& pipe = pipes_[entry.pipe.value];
      if (!is_hot(entry.pipe) || pipe.stamp == solve_) continue;
      pipe.stamp = solve_;
      touched_.push_back(entry.pipe.value);
    }
  }
}

void FluidNetwork::freeze(std::uint32_t id, double rate, PipeId bottleneck) {
  Flow& flow = flows_[id];
  flow.new_rate = rate;
  flow.bottleneck = bottleneck;
  for (const Entry& entry : entries(flow)) {
    Pipe& pipe = pipes_[entry.pipe.value];
    if (pipe.stamp != solve_) continue;
    pipe.fixed += entry.weight * rate;
    pipe.free_weight -= entry.weight;
    --pipe.free_users;
  }
}

// Water-fills the set with all other flows fixed at their rates.
void FluidNetwork::fill() {
  const auto order = [](const Key& a, const Key& b) { return higher(a, b); };
  const auto level_of = [](const Pipe& pipe) {
    return std::max(0.0, pipe.capacity - pipe.fixed) / pipe.free_weight;
  };
  keys_.clear();
  for (const std::uint32_t p : touched_) {
    Pipe& pipe = pipes_[p];
    pipe.fixed = pipe.free_weight = 0;
    pipe.free_users = 0;
    pipe.level = std::numeric_limits<double>::infinity();
    for (const User& user : pipe.users) {
      const Flow& flow = flows_[user.flow];
      if (flow.stamp == solve_) {
        pipe.free_weight += user.weight;
        ++pipe.free_users;
      } else {
        pipe.fixed += user.weight * flow.rate;
      }
    }
    if (pipe.free_users > 0) keys_.push_back({level_of(pipe), p});
  }
  std::make_heap(keys_.begin(), keys_.end(), order);
  caps_.clear();
  for (const std::uint32_t id : set_) {
    flows_[id].new_rate = -1;
    caps_.push_back({routes_[flows_[id].route.value].full_rate, id});
  }
  std::ranges::sort(caps_, [](const Key& a, const Key& b) { return higher(b, a); });
  auto cap = caps_.cbegin();
  while (!keys_.empty() || cap != caps_.cend()) {
    if (cap != caps_.cend() && (keys_.empty() || cap->level <= keys_.front().level)) {
      const Flow& flow = flows_[cap->id];
      if (flow.new_rate < 0) {
        freeze(cap->id, cap->level, routes_[flow.route.value].narrowest);
      }
      ++cap;
      continue;
    }
    std::pop_heap(keys_.begin(), keys_.end(), order);
    const Key key = keys_.back();
    keys_.pop_back();
    Pipe& pipe = pipes_[key.id];
    if (pipe.free_users == 0) continue;
    const double level = level_of(pipe);
    if (level > key.level) {  // keys only grow
      keys_.push_back({level, key.id});
      std::push_heap(keys_.begin(), keys_.end(), order);
      continue;
    }
    pipe.level = level;
    pipe.sharers_max = std::max(pipe.sharers_max, static_cast<int>(pipe.users.size()));
    for (const User& user : pipe.users) {
      const Flow& flow = flows_[user.flow];
      if (flow.stamp == solve_ && flow.new_rate < 0) freeze(user.flow, level, PipeId{key.id});
    }
  }
}

// Fixed flows that the filled set pushes down or releases join it. True if any did.
bool FluidNetwork::grow() {
  const std::size_t before = set_.size();
  for (const std::uint32_t p : touched_) {
    const Pipe& pipe = pipes_[p];
    double load = 0;
    double fastest = 0;
    for (const User& user : pipe.users) {
      const Flow& flow = flows_[user.flow];
      const bool is_member = flow.stamp == solve_ && flow.new_rate >= 0;
      const double rate = is_member ? flow.new_rate : flow.rate;
      load += user.weight * rate;
      if (is_member) fastest = std::max(fastest, rate);
    }
    const bool is_full = load >= pipe.capacity * (1 - kSame);
    for (const User& user : pipe.users) {
      const Flow& flow = flows_[user.flow];
      if (flow.stamp == solve_) continue;
      const bool is_released =
          flow.bottleneck.value == p && (!is_full || fastest > flow.rate * (1 + kSame));
      const bool is_pushed = flow.rate > pipe.level * (1 + kSame);
      if (is_released || is_pushed) join(user.flow);
    }
  }
  return set_.size() > before;
}

void FluidNetwork::set_rate(Flow& flow, double rate, SimTime now) {
  flow.remaining = std::max(0.0, flow.remaining - flow.rate * to_seconds(now - flow.updated));
  flow.updated = now;
  flow.rate = rate;
}

void FluidNetwork::settle(SimTime now) {
  if (pending_.empty() && dirty_.empty()) return;
  ++solve_;
  set_.clear();
  touched_.clear();
  for (const std::uint32_t id : pending_) join(id);
  pending_.clear();
  for (const PipeId dirty : dirty_) {
    for (const User& user : pipes_[dirty.value].users) {
      if (flows_[user.flow].bottleneck.value == dirty.value) join(user.flow);
    }
  }
  dirty_.clear();
  if (set_.empty()) return;
  ++solves_;
  std::size_t seen = 0;
  do {
    touch_pipes(seen);
    seen = set_.size();
    fill();
  } while (grow());
  solved_flows_ += set_.size();
  for (const std::uint32_t id : set_) {
    Flow& flow = flows_[id];
    if (std::abs(flow.new_rate - flow.rate) <= kSame * flow.rate && flow.rate > 0) continue;
    set_rate(flow, flow.new_rate, now);
    ++flow.version;
    push_finish(id, Pending::Alone);
  }
}

}  // namespace foresail::sim
