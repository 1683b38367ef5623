#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/fluid_network.h"
#include "water_fill.h"

// The solve of FluidNetwork: which flows get new rates when something changed, and which.
namespace foresail::sim {
namespace {

// Relative difference below which two rates are the same: solver noise, far under a picosecond in
// a transfer of a second.
constexpr double kSame = 1e-9;
// Sets up to this size are solved in place, whatever their share.
constexpr std::size_t kSmallSet = 64;
// Routes with more entries are asked what else holds their flows before they are solved for.
constexpr std::uint32_t kLongRoute = 64;
// From this round of growth on, in rounds 4, 8, 16, ..., a set takes in whoever may have to join.
constexpr unsigned kPatientRounds = 4;
constexpr std::uint64_t kSecondHash = 0x5bd1e9955bd1e995ULL;

bool higher(const auto& a, const auto& b) {
  return a.level != b.level ? a.level > b.level : a.id > b.id;
}

}  // namespace

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
      if (!is_hot(entry.pipe)) continue;
      Pipe& pipe = pipes_[entry.pipe.value];
      if (pipe.stamp == solve_) continue;
      pipe.stamp = solve_;
      touched_.push_back(entry.pipe.value);
    }
  }
}

void FluidNetwork::freeze(std::uint32_t id, double rate, PipeId bottleneck) {
  Flow& flow = flows_[id];
  flow.new_rate = rate;
  hold(flow, bottleneck);
  for (const Entry& entry : entries(flow)) {
    if (!is_hot(entry.pipe)) continue;
    Pipe& pipe = pipes_[entry.pipe.value];
    if (pipe.stamp != solve_) continue;
    pipe.fixed += weight(entry) * rate;
    pipe.free_weight -= weight(entry);
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
    for (const User& user : pipe.users) {
      const Flow& flow = flows_[user.flow];
      if (flow.stamp == solve_ && flow.new_rate < 0) freeze(user.flow, level, PipeId{key.id});
    }
  }
}

// Fixed flows that the filled set pushes down or releases join it. True if any did. A ring that has
// become faster pushes one flow per round, that of the pipe where it is slowest now, until it is as
// fast as it can be: in some rounds all those faster than a member on a common pipe join. A set
// that is larger than need be has the same rates.
bool FluidNetwork::grow(unsigned round) {
  const bool is_eager = round >= kPatientRounds && std::has_single_bit(round);
  const std::size_t before = set_.size();
  for (const std::uint32_t p : touched_) {
    const Pipe& pipe = pipes_[p];
    double load = 0;
    double fastest = 0;
    double slowest = std::numeric_limits<double>::infinity();
    for (const User& user : pipe.users) {
      const Flow& flow = flows_[user.flow];
      const bool is_member = flow.stamp == solve_ && flow.new_rate >= 0;
      const double rate = is_member ? flow.new_rate : flow.rate;
      load += user.weight * rate;
      if (!is_member) continue;
      fastest = std::max(fastest, rate);
      slowest = std::min(slowest, rate);
    }
    const double pushed = is_eager ? std::min(pipe.level, slowest) : pipe.level;
    const bool is_full = load >= pipe.capacity * (1 - same_);
    for (const User& user : pipe.users) {
      const Flow& flow = flows_[user.flow];
      if (flow.stamp == solve_) continue;
      const bool is_released =
          bottleneck(flow).value == p && (!is_full || fastest > flow.rate * (1 + same_));
      const bool is_pushed = flow.rate > pushed * (1 + same_);
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

// True if a solve from scratch costs less than to go on growing the set.
bool FluidNetwork::is_too_large() const {
  if (options_.full_fill_share <= 0) return true;
  return set_.size() > kSmallSet &&
         static_cast<double>(set_.size()) > options_.full_fill_share * static_cast<double>(active_);
}

// All active flows become the set, their routes `levels_` in order of their ids with the number of
// their flows. Returns their hash: a sum, so that the order of flows leaves no trace.
FluidNetwork::Pattern FluidNetwork::gather_active() {
  set_.clear();
  levels_.clear();
  Pattern pattern{0, 0};
  for (std::uint32_t id = 0; id < flows_.size(); ++id) {
    Flow& flow = flows_[id];
    if (!flow.is_active) continue;
    flow.stamp = solve_;
    set_.push_back(id);
    const std::uint32_t route = flow.route.value;
    pattern.first += mix64(route);
    pattern.second += mix64(route ^ kSecondHash);
    RouteUse& use = uses_[route];
    if (use.stamp != solve_) {
      use.stamp = solve_;
      use.flows = 0;
      levels_.push_back({route, 0, kNoPipe, 0});
    }
    ++use.flows;
  }
  std::ranges::sort(levels_, {}, &Level::route);
  for (Level& each : levels_) each.flows = uses_[each.route].flows;
  return pattern;
}

void FluidNetwork::fill_levels() {
  scratch_->clear();
  for (const Level& each : levels_) {
    const Route& route = routes_[each.route];
    scratch_->add(each.flows, route.full_rate);
    for (std::uint32_t i = route.begin; i < route.end; ++i) {
      const Entry& entry = entries_[i];
      if (!is_hot(entry.pipe)) continue;
      scratch_->load(entry.pipe.value, pipes_[entry.pipe.value].capacity, weight(entry));
    }
  }
  const std::span<const WaterFill::Answer> answers = scratch_->solve();
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    const bool is_own = answers[i].constraint == WaterFill::kOwnCap;
    levels_[i].level = answers[i].level;
    levels_[i].bottleneck =
        is_own ? routes_[levels_[i].route].narrowest : PipeId{answers[i].constraint};
  }
}

// Gives every active flow its rate. The same set of routes has the same answer, bit by bit, however
// it came about.
void FluidNetwork::fill_from_scratch() {
  ++full_fills_;
  const Pattern pattern = gather_active();
  const auto is_same = [](const Level& a, const Level& b) {
    return a.route == b.route && a.flows == b.flows;
  };
  const auto known = remembered_.find(pattern);
  if (known != remembered_.end() && std::ranges::equal(known->second, levels_, is_same)) {
    ++remembered_fills_;
    levels_ = known->second;
  } else {
    fill_levels();
    remember(pattern);
  }
  for (std::uint32_t i = 0; i < levels_.size(); ++i) uses_[levels_[i].route].slot = i;
  for (const std::uint32_t id : set_) {
    Flow& flow = flows_[id];
    const Level& level = levels_[uses_[flow.route.value].slot];
    flow.new_rate = level.level;
    hold(flow, level.bottleneck);
  }
}

void FluidNetwork::remember(const Pattern& pattern) {
  if (levels_.size() > options_.remembered_rates) return;
  if (remembered_count_ + levels_.size() > options_.remembered_rates) {
    remembered_.clear();
    remembered_count_ = 0;
  }
  remembered_count_ += levels_.size();
  remembered_.emplace(pattern, levels_);
}

// True if a long route's flow has another bottleneck at its present rate: a pipe that is full and
// on which none is faster. A ring is as slow as the slowest of thousands of pipes, many of which
// are often equal; when the one that it is said to wait for becomes free, nothing changes. The
// search goes round the route, from where the last one ended.
bool FluidNetwork::finds_other_bottleneck(Flow& flow, SimTime now) {
  const Route& route = routes_[flow.route.value];
  const std::uint32_t length = route.end - route.begin;
  if (length <= kLongRoute || flow.rate <= 0) return false;
  std::uint32_t& at = uses_[flow.route.value].searched;
  for (std::uint32_t i = 0; i < length; ++i) {
    at = at + 1 < length ? at + 1 : 0;
    const PipeId candidate = entries_[route.begin + at].pipe;
    if (!is_hot(candidate)) continue;
    const Pipe& pipe = pipes_[candidate.value];
    double load = 0;
    double fastest = 0;
    for (const User& user : pipe.users) {
      load += user.weight * flows_[user.flow].rate;
      fastest = std::max(fastest, flows_[user.flow].rate);
    }
    if (load < pipe.capacity * (1 - same_) || fastest > flow.rate * (1 + same_)) continue;
    hold(flow, candidate);
    note_limit(flow, flow.rate, now);
    return true;
  }
  return false;
}

// Flows on one pipe are all ruled or all not, but for those that wait for the next settle.
bool FluidNetwork::shares_with_ruled(const Flow& flow) const {
  FORESAIL_EXPECT(routes_[flow.route.value].share == 1);
  return std::ranges::any_of(entries(flow), [this](const Entry& entry) {
    const std::vector<User>& users = pipes_[entry.pipe.value].users;
    return !users.empty() && flows_[users.front().flow].is_ruled;
  });
}

// Moves the flows that share pipes with `first` to the end of the set.
void FluidNetwork::gather_component(std::uint32_t first) {
  std::size_t next = set_.size();
  join(first);
  for (; next < set_.size(); ++next) {
    for (const Entry& entry : entries(flows_[set_[next]])) {
      Pipe& pipe = pipes_[entry.pipe.value];
      if (pipe.stamp == solve_) continue;
      pipe.stamp = solve_;
      for (const User& user : pipe.users) join(user.flow);
    }
  }
}

// New rates for the set from `first` on: one component.
void FluidNetwork::rule_component(std::size_t first) {
  const std::span<const std::uint32_t> members = std::span(set_).subspan(first);
  bool is_contended = false;
  ruled_.clear();
  for (const std::uint32_t id : members) {
    const Flow& flow = flows_[id];
    const double full_rate = routes_[flow.route.value].full_rate;
    for (const Entry& entry : entries(flow)) is_contended = is_contended || is_hot(entry.pipe);
    if (full_rate > 0) ruled_.push_back({flow.route, flow.rate, full_rate, flow.is_ruled});
  }
  std::span<const RateRule::Answer> answers;
  if (is_contended) answers = rule_->rates(ruled_);
  FORESAIL_EXPECT(answers.size() == (is_contended ? ruled_.size() : 0));
  auto answer = answers.begin();
  for (const std::uint32_t id : members) {
    Flow& flow = flows_[id];
    const Route& route = routes_[flow.route.value];
    hold(flow, route.narrowest);
    flow.is_ruled = is_contended;
    if (!is_contended || route.full_rate <= 0) {
      flow.new_rate = route.full_rate;  // on a dead pipe: nothing, and it holds nobody up
      continue;
    }
    flow.new_rate = answer->rate;
    if (answer->bottleneck) hold(flow, *answer->bottleneck);
    ++answer;
  }
}

// The set grows to all components that its flows belong to, each with its new rates.
void FluidNetwork::apply_rule() {
  std::vector<std::uint32_t> seeds;
  seeds.swap(set_);
  std::ranges::sort(seeds);
  ++solve_;
  for (const std::uint32_t seed : seeds) {
    if (flows_[seed].stamp == solve_) continue;
    const std::size_t first = set_.size();
    gather_component(seed);
    std::sort(set_.begin() + static_cast<std::ptrdiff_t>(first), set_.end());
    rule_component(first);
  }
}

void FluidNetwork::settle(SimTime now) {
  if (pending_.empty() && dirty_.empty()) return;
  ++solve_;
  set_.clear();
  touched_.clear();
  for (const std::uint32_t id : pending_) {
    if (flows_[id].is_active) join(id);  // set_capacity names flows that may end at this moment
  }
  pending_.clear();
  for (const PipeId dirty : dirty_) {
    for (const User& user : pipes_[dirty.value].users) {
      Flow& flow = flows_[user.flow];
      if (rule_ == nullptr && (bottleneck(flow) != dirty || finds_other_bottleneck(flow, now)))
        continue;
      join(user.flow);
    }
  }
  unlist_cold();
  dirty_.clear();
  if (set_.empty()) return;
  ++solves_;
  if (rule_ != nullptr) apply_rule();
  std::size_t seen = 0;
  bool is_growing = rule_ == nullptr;
  for (unsigned round = 1; is_growing; ++round) {
    if (is_too_large()) {
      fill_from_scratch();
      break;
    }
    touch_pipes(seen);
    seen = set_.size();
    fill();
    is_growing = grow(round);
  }
  solved_flows_ += set_.size();
  for (const std::uint32_t id : set_) note_limit(flows_[id], flows_[id].new_rate, now);
  for (const std::uint32_t id : set_) {
    Flow& flow = flows_[id];
    if (std::abs(flow.new_rate - flow.rate) <= kSame * flow.rate && flow.rate > 0) continue;
    set_rate(flow, flow.new_rate, now);
    ++flow.version;
    push_finish(id, Pending::Alone);
  }
}

void FluidNetwork::slow(Flow& flow, PipeId pipe, SimTime now) {
  if (pipe == (flow.is_slowed ? flow.slowed_by : kNoPipe)) return;
  if (flow.is_slowed) {
    Limit& before = limits_[flow.slowed_by.value];
    if (--before.slowed == 0) before.total += now - before.since;
  }
  flow.slowed_by = pipe;
  flow.is_slowed = pipe != kNoPipe;
  if (pipe != kNoPipe) {
    Limit& limit = limits_[pipe.value];
    if (limit.slowed++ == 0) limit.since = now;
  }
}

// Which pipe slows a flow of `rate`.
void FluidNetwork::note_limit(Flow& flow, double rate, SimTime now) {
  const double full_rate = routes_[flow.route.value].full_rate;
  const bool is_slowed = rate < full_rate * (1 - kSame) || rate <= 0;
  const PipeId pipe = is_slowed ? bottleneck(flow) : kNoPipe;
  slow(flow, pipe, now);
  if (!is_slowed) return;
  const std::size_t users = is_listed(pipe) ? pipes_[pipe.value].users.size()
                                            : users_of(pipe).size();  // dead, but not contended
  const auto sharers = static_cast<int>(users);
  if (sharers > limits_[pipe.value].sharers_max) note_worst(pipe, now);
}

void FluidNetwork::note_worst(PipeId pipe, SimTime now) {
  Limit& limit = limits_[pipe.value];
  const std::vector<User> users = users_of(pipe);
  limit.sharers_max = static_cast<int>(users.size());
  if (limit.worst == kNobody) {
    limit.worst = static_cast<std::uint32_t>(worst_.size());
    worst_.emplace_back();
  }
  std::vector<std::pair<std::uint64_t, RouteId>> who;
  for (const User& user : users) who.emplace_back(flows_[user.flow].tag, flows_[user.flow].route);
  const std::size_t named = std::min(who.size(), kNamedSharers);
  std::ranges::partial_sort(who, who.begin() + static_cast<std::ptrdiff_t>(named));
  Contention& worst = worst_[limit.worst];
  worst = {limit.sharers_max, now, {}, {}};
  for (std::size_t i = 0; i < named; ++i) {
    worst.tags.push_back(who[i].first);
    worst.routes.push_back(who[i].second);
  }
}

}  // namespace foresail::sim
