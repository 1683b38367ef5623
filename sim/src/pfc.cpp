#include "foresail/sim/pfc.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

constexpr double kNewest = 0.25;  // weight of the newest pass in a leg's mean

}  // namespace

IngressFairRates::IngressFairRates(const PfcOptions& options) : options_(options) {
  FORESAIL_EXPECT(options.passes_cold >= 2);
  FORESAIL_EXPECT(options.passes_warm >= 2);
  FORESAIL_EXPECT(options.recovery > 1);
}

IngressFairRates::IngressFairRates(std::vector<double> capacity,
                                   const std::vector<std::vector<std::uint32_t>>& paths,
                                   const PfcOptions& options)
    : IngressFairRates(options) {
  for (std::uint32_t link = 0; link < capacity.size(); ++link) set_capacity(link, capacity[link]);
  for (const std::vector<std::uint32_t>& path : paths) {
    Leg leg;
    for (const std::uint32_t link : path) {
      FORESAIL_EXPECT(link < capacity.size());
      leg.push_back({link, 1});
    }
    add_flow(std::span(&leg, 1));
  }
  const std::vector<std::uint32_t> cycle = find_cycle();
  if (cycle.empty()) return;
  throw Error(ErrorCode::InvalidInput,
              fmt::format("paths: link {} waits for itself through other links' buffers, so "
                          "priority flow control can deadlock",
                          cycle.front()));
}

void IngressFairRates::set_capacity(std::uint32_t link, double capacity) {
  FORESAIL_EXPECT(capacity > 0);
  while (capacity_.size() <= link) {
    rank_.push_back(static_cast<std::uint32_t>(capacity_.size()));
    order_.push_back(rank_.back());
    capacity_.push_back(capacity);
    effective_.push_back(capacity);
    carried_.push_back(0);
    throttle_.push_back(1);
    recoveries_.push_back(0);
    feeds_.emplace_back();
  }
  if (capacity_[link] == capacity) return;
  const bool was_open = effective_[link] >= capacity_[link];
  capacity_[link] = capacity;
  effective_[link] = was_open ? capacity : std::min(effective_[link], capacity);
}

std::uint32_t IngressFairRates::add_flow(std::span<const Leg> legs) {
  FORESAIL_EXPECT(!legs.empty());
  const auto first = static_cast<std::uint32_t>(legs_.size());
  for (const Leg& leg : legs) {
    FORESAIL_EXPECT(!leg.empty());
    const auto begin = static_cast<std::uint32_t>(hops_.size());
    for (std::size_t i = 0; i < leg.size(); ++i) {
      FORESAIL_EXPECT(leg[i].link < capacity_.size());
      FORESAIL_EXPECT(leg[i].weight > 0);
      if (i > 0) connect(leg[i - 1].link, leg[i].link);
      hops_.push_back(leg[i]);
    }
    legs_.push_back({begin, static_cast<std::uint32_t>(hops_.size())});
  }
  flows_.push_back({first, static_cast<std::uint32_t>(legs_.size())});
  is_active_.push_back(false);
  rate_.push_back(0);
  return static_cast<std::uint32_t>(flows_.size() - 1);
}

void IngressFairRates::connect(std::uint32_t from, std::uint32_t to) {
  std::vector<std::uint32_t>& next = feeds_[from];
  const auto at = std::ranges::lower_bound(next, to);
  if (at != next.end() && *at == to) return;
  next.insert(at, to);
  if (rank_[from] >= rank_[to]) is_ordered_ = false;
}

// Topological order of "feeds", the lowest link id first among those free to go. Links of a cycle,
// and those behind one, are left out.
void IngressFairRates::order_links() {
  std::vector<std::uint32_t> waits_for(capacity_.size(), 0);
  for (const std::vector<std::uint32_t>& next : feeds_) {
    for (const std::uint32_t to : next) ++waits_for[to];
  }
  order_.clear();
  for (std::uint32_t link = 0; link < capacity_.size(); ++link) {
    if (waits_for[link] == 0) order_.push_back(link);
  }
  for (std::size_t i = 0; i < order_.size(); ++i) {
    for (const std::uint32_t to : feeds_[order_[i]]) {
      if (--waits_for[to] == 0) order_.push_back(to);
    }
  }
  for (std::uint32_t rank = 0; rank < order_.size(); ++rank) rank_[order_[rank]] = rank;
  is_ordered_ = order_.size() == capacity_.size();
}

std::vector<std::uint32_t> IngressFairRates::find_cycle() {
  if (!is_ordered_) order_links();
  if (is_ordered_) return {};
  // Every link left out has another that feeds it: walk back until one comes again.
  std::vector<bool> is_out(capacity_.size(), true);
  for (const std::uint32_t link : order_) is_out[link] = false;
  std::vector<std::uint32_t> fed_by(capacity_.size(), kSource);
  for (std::uint32_t link = 0; link < capacity_.size(); ++link) {
    if (!is_out[link]) continue;
    for (const std::uint32_t to : feeds_[link]) fed_by[to] = std::min(fed_by[to], link);
  }
  std::vector<std::uint32_t> walk;
  auto at = static_cast<std::uint32_t>(std::ranges::find(is_out, true) - is_out.begin());
  auto again = walk.end();
  while ((again = std::ranges::find(walk, at)) == walk.end()) {
    walk.push_back(at);
    at = fed_by[at];
  }
  std::vector<std::uint32_t> cycle(again, walk.end());
  std::ranges::reverse(cycle);
  return cycle;
}

// The legs by link and previous link, links in order.
void IngressFairRates::group(std::span<const PfcDemand> demands) {
  struct Hop {
    std::uint32_t rank, from, strand;
    double weight;
    auto operator<=>(const Hop&) const = default;
  };
  std::vector<Hop> hops;
  strands_.clear();
  strands_of_.clear();
  for (const PfcDemand& demand : demands) {
    const Range legs = flows_[demand.flow];
    const auto first = static_cast<std::uint32_t>(strands_.size());
    for (std::uint32_t leg = legs.begin; leg < legs.end; ++leg) {
      std::uint32_t from = kSource;
      for (std::uint32_t h = legs_[leg].begin; h < legs_[leg].end; ++h) {
        hops.push_back({rank_[hops_[h].link], from, static_cast<std::uint32_t>(strands_.size()),
                        hops_[h].weight});
        from = hops_[h].link;
      }
      Strand strand;
      strand.first_link = hops_[legs_[leg].begin].link;
      strand.first_weight = hops_[legs_[leg].begin].weight;
      strand.rate_max = demand.rate_max;
      strand.mean = demand.was_solved ? demand.rate : demand.rate_max;
      strand.limit = std::min(strand.mean * options_.recovery, demand.rate_max);
      strands_.push_back(strand);
    }
    strands_of_.push_back({first, static_cast<std::uint32_t>(strands_.size())});
  }
  std::ranges::sort(hops);
  egresses_.clear();
  ingresses_.clear();
  members_.clear();
  for (std::size_t i = 0; i < hops.size(); ++i) {
    const bool is_new_link = i == 0 || hops[i].rank != hops[i - 1].rank;
    const auto ingress = static_cast<std::uint32_t>(ingresses_.size());
    if (is_new_link) egresses_.push_back({order_[hops[i].rank], ingress, ingress});
    if (is_new_link || hops[i].from != hops[i - 1].from || hops[i].from == kSource) {
      const auto member = static_cast<std::uint32_t>(members_.size());
      ingresses_.push_back({hops[i].from, member, member, 0});
      ++egresses_.back().end;
    }
    members_.push_back({hops[i].strand, hops[i].weight});
    ++ingresses_.back().end;
  }
}

// Links that none was on who took part in an earlier solve are open.
void IngressFairRates::forget(std::span<const PfcDemand> demands) {
  std::vector<bool> was_solved(strands_.size(), false);
  for (std::size_t d = 0; d < demands.size(); ++d) {
    for (std::uint32_t s = strands_of_[d].begin; s < strands_of_[d].end; ++s) {
      was_solved[s] = demands[d].was_solved;
    }
  }
  for (const Egress& egress : egresses_) {
    const std::uint32_t begin = ingresses_[egress.begin].begin;
    const std::uint32_t end = ingresses_[egress.end - 1].end;
    bool is_known = false;
    for (std::uint32_t m = begin; m < end; ++m) {
      is_known = is_known || was_solved[members_[m].strand];
    }
    if (is_known) continue;
    effective_[egress.link] = capacity_[egress.link];
    recoveries_[egress.link] = 0;
  }
}

// One link of the forward pass.
void IngressFairRates::serve(const Egress& egress) {
  const double room = effective_[egress.link];
  double total = 0;
  by_demand_.clear();
  for (std::uint32_t i = egress.begin; i < egress.end; ++i) {
    Ingress& ingress = ingresses_[i];
    ingress.demand = 0;
    for (std::uint32_t m = ingress.begin; m < ingress.end; ++m) {
      ingress.demand += strands_[members_[m].strand].passing * members_[m].weight;
    }
    total += ingress.demand;
    by_demand_.push_back(i);
  }
  carried_[egress.link] = std::min(total, room);
  if (total <= room) return;
  std::ranges::sort(by_demand_, [this](std::uint32_t a, std::uint32_t b) {
    const double x = ingresses_[a].demand;
    const double y = ingresses_[b].demand;
    return x != y ? x < y : a < b;
  });
  double left = room;
  std::size_t waiting = by_demand_.size();
  for (const std::uint32_t i : by_demand_) {
    const Ingress& ingress = ingresses_[i];
    const double share = left / static_cast<double>(waiting);
    const double given = std::min(ingress.demand, share);
    left -= given;
    --waiting;
    if (given >= ingress.demand) continue;
    const double scale = given / ingress.demand;
    for (std::uint32_t m = ingress.begin; m < ingress.end; ++m) {
      Strand& strand = strands_[members_[m].strand];
      strand.passing *= scale;
      if (scale >= strand.worst_cut) continue;
      strand.worst_cut = scale;
      strand.cut_at = egress.link;
    }
    if (ingress.from != kSource) throttle_[ingress.from] = std::min(throttle_[ingress.from], scale);
  }
}

// What senders put on their first links.
void IngressFairRates::offer() {
  for (std::size_t d = 0; d < strands_of_.size(); ++d) {
    const Range& strands = strands_of_[d];
    const bool is_coupled = strands.end - strands.begin > 1;
    for (std::uint32_t s = strands.begin; s < strands.end; ++s) {
      Strand& strand = strands_[s];
      const double line = capacity_[strand.first_link] / strand.first_weight;
      const double offered = is_coupled ? std::min(line, strand.limit) : line;
      strand.offered = strand.passing = is_sending_[d] ? offered : 0;
    }
  }
}

void IngressFairRates::pass() {
  ++passes_;
  offer();
  for (const Egress& egress : egresses_) throttle_[egress.link] = 1;
  for (const Egress& egress : egresses_) serve(egress);
  for (const Egress& egress : egresses_) {
    const std::uint32_t link = egress.link;
    if (throttle_[link] < 1) {
      effective_[link] = carried_[link] * std::pow(throttle_[link], options_.damping);
      recoveries_[link] = 0;
    } else {
      const bool is_needed =
          effective_[link] < capacity_[link] && carried_[link] >= effective_[link];
      recoveries_[link] = is_needed ? recoveries_[link] + 1 : 0;
      effective_[link] = std::min(capacity_[link], effective_[link] * options_.recovery);
    }
  }
}

// What a flow gets: of several legs, the slowest one's mean, since buffers between legs level out
// single passes. In the next pass no sender offers much more than that and what its leg lags
// behind.
double IngressFairRates::pace_of(std::size_t demand) {
  const Range& strands = strands_of_[demand];
  if (strands.end - strands.begin == 1) return strands_[strands.begin].passing;
  double pace = std::numeric_limits<double>::infinity();
  std::uint32_t slowest = strands.begin;
  for (std::uint32_t s = strands.begin; s < strands.end; ++s) {
    Strand& strand = strands_[s];
    strand.mean += (strand.passing - strand.mean) * kNewest;
    if (strand.mean >= pace) continue;
    pace = strand.mean;
    slowest = s;
  }
  const Strand& slow = strands_[slowest];
  const bool gains = slow.passing >= slow.offered && slow.offered < slow.rate_max;
  gains_[demand] = gains ? gains_[demand] + 1 : 0;
  const double followed = pace * options_.recovery;
  for (std::uint32_t s = strands.begin; s < strands.end; ++s) {
    const double lag = std::max(0.0, followed - strands_[s].mean);
    strands_[s].limit = std::min(followed + lag / kNewest, strands_[s].rate_max);
  }
  return pace;
}

// A link or ring at its fixed point is paused again after a few passes of recovery.
bool IngressFairRates::is_recovering() const {
  for (const int passes : gains_) {
    if (passes >= options_.passes_warm) return true;
  }
  return std::ranges::any_of(egresses_, [this](const Egress& egress) {
    return recoveries_[egress.link] >= options_.passes_warm;
  });
}

void IngressFairRates::iterate(std::size_t demands, int passes) {
  gains_.assign(demands, 0);
  for (int round = 0; round == 0 || (round < options_.rounds_max && is_recovering()); ++round) {
    rates_.assign(demands, PfcRate{});
    for (int i = 0; i < passes; ++i) {
      if (i == passes / 2) {
        for (Strand& strand : strands_) {
          strand.worst_cut = 1;
          strand.cut_at = PfcRate::kUnhindered;
        }
      }
      pass();
      for (std::size_t d = 0; d < demands; ++d) {
        const double pace = pace_of(d);
        if (i >= passes / 2) rates_[d].rate += pace;
      }
    }
  }
  for (std::size_t d = 0; d < demands; ++d) {
    rates_[d].rate /= passes - passes / 2;
    double worst = 1;
    for (std::uint32_t s = strands_of_[d].begin; s < strands_of_[d].end; ++s) {
      if (strands_[s].worst_cut >= worst) continue;
      worst = strands_[s].worst_cut;
      rates_[d].cut_at = strands_[s].cut_at;
    }
  }
}

std::span<const PfcRate> IngressFairRates::solve(std::span<const PfcDemand> demands) {
  FORESAIL_EXPECT(is_ordered_);
  group(demands);
  forget(demands);
  is_sending_.assign(demands.size(), true);
  const bool is_warm = std::ranges::any_of(demands, &PfcDemand::was_solved);
  iterate(demands.size(), is_warm ? options_.passes_warm : options_.passes_cold);
  for (std::size_t d = 0; d < demands.size(); ++d) {
    rates_[d].rate = std::min(rates_[d].rate, demands[d].rate_max);
  }
  return rates_;
}

void IngressFairRates::start(std::uint32_t flow) {
  FORESAIL_EXPECT(!is_active_[flow]);
  is_active_[flow] = true;
  ++active_;
  is_listed_ = false;
}

void IngressFairRates::finish(std::uint32_t flow) {
  FORESAIL_EXPECT(is_active_[flow]);
  is_active_[flow] = false;
  rate_[flow] = 0;
  --active_;
}

std::span<const double> IngressFairRates::solve() {
  if (active_ == 0) return rate_;
  // Flows that ended stay listed, with nothing to send, until they are an eighth of the list.
  if (!is_listed_ || active_ * 8 <= listed_.size() * 7) {
    listed_.clear();
    std::vector<PfcDemand> demands;
    for (std::uint32_t flow = 0; flow < flows_.size(); ++flow) {
      if (!is_active_[flow]) continue;
      listed_.push_back(flow);
      PfcDemand demand;
      demand.flow = flow;
      demand.rate = rate_[flow];
      demand.was_solved = is_warm_ && rate_[flow] > 0;
      demands.push_back(demand);
    }
    group(demands);
    is_listed_ = true;
  }
  is_sending_.clear();
  for (const std::uint32_t flow : listed_) is_sending_.push_back(is_active_[flow]);
  iterate(listed_.size(), is_warm_ ? options_.passes_warm : options_.passes_cold);
  is_warm_ = true;
  for (std::size_t d = 0; d < listed_.size(); ++d) rate_[listed_[d]] = rates_[d].rate;
  return rate_;
}

}  // namespace foresail::sim
