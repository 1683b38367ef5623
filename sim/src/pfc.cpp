#include "foresail/sim/pfc.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::sim {
IngressFairRates::IngressFairRates(std::vector<double> capacity,
                                   std::vector<std::vector<std::uint32_t>> paths,
                                   const PfcOptions& options)
    : capacity_(std::move(capacity)),
      paths_(std::move(paths)),
      options_(options),
      is_active_(paths_.size(), false),
      effective_(capacity_),
      carried_(capacity_.size(), 0),
      throttle_(capacity_.size(), 1),
      recoveries_(capacity_.size(), 0),
      passing_(paths_.size(), 0),
      rate_(paths_.size(), 0) {
  FORESAIL_EXPECT(options.passes_cold >= 2);
  FORESAIL_EXPECT(options.passes_warm >= 2);
  for (const double link : capacity_) FORESAIL_EXPECT(link > 0);
  for (const std::vector<std::uint32_t>& path : paths_) {
    FORESAIL_EXPECT(!path.empty());
    for (const std::uint32_t link : path) FORESAIL_EXPECT(link < capacity_.size());
  }
  order_links();
}

// Topological order of "feeds", the lowest link id first among those free to go.
void IngressFairRates::order_links() {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> feeds;
  for (const std::vector<std::uint32_t>& path : paths_) {
    for (std::size_t i = 1; i < path.size(); ++i) feeds.emplace_back(path[i - 1], path[i]);
  }
  std::ranges::sort(feeds);
  const auto repeated = std::ranges::unique(feeds);
  feeds.erase(repeated.begin(), repeated.end());
  std::vector<std::uint32_t> waits_for(capacity_.size(), 0);
  for (const auto& [from, to] : feeds) ++waits_for[to];
  for (std::uint32_t link = 0; link < capacity_.size(); ++link) {
    if (waits_for[link] == 0) order_.push_back(link);
  }
  for (std::size_t next = 0; next < order_.size(); ++next) {
    auto edge = std::ranges::lower_bound(feeds, std::pair{order_[next], 0u});
    for (; edge != feeds.end() && edge->first == order_[next]; ++edge) {
      if (--waits_for[edge->second] == 0) order_.push_back(edge->second);
    }
  }
  if (order_.size() == capacity_.size()) return;
  const auto stuck = std::ranges::find_if(waits_for, [](std::uint32_t n) { return n > 0; });
  throw Error(ErrorCode::InvalidInput,
              fmt::format("paths: link {} waits for itself through other links' buffers, so "
                          "priority flow control can deadlock",
                          stuck - waits_for.begin()));
}

void IngressFairRates::start(std::uint32_t flow) {
  FORESAIL_EXPECT(!is_active_[flow]);
  is_active_[flow] = true;
  ++active_;
  grouped_ = 0;  // group anew
}

void IngressFairRates::finish(std::uint32_t flow) {
  FORESAIL_EXPECT(is_active_[flow]);
  is_active_[flow] = false;
  rate_[flow] = 0;
  --active_;
}

// The active flows by link and previous link, links in order.
void IngressFairRates::group() {
  struct Hop {
    std::uint32_t rank, from, flow;
    auto operator<=>(const Hop&) const = default;
  };
  std::vector<std::uint32_t> rank_of(capacity_.size());
  for (std::uint32_t rank = 0; rank < order_.size(); ++rank) rank_of[order_[rank]] = rank;
  std::vector<Hop> hops;
  for (std::uint32_t flow = 0; flow < paths_.size(); ++flow) {
    if (!is_active_[flow]) continue;
    std::uint32_t from = kSource;
    for (const std::uint32_t link : paths_[flow]) {
      hops.push_back({rank_of[link], from, flow});
      from = link;
    }
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
    members_.push_back(hops[i].flow);
    ++ingresses_.back().end;
  }
  grouped_ = active_;
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
      ingress.demand += passing_[members_[m]];
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
    for (std::uint32_t m = ingress.begin; m < ingress.end; ++m) passing_[members_[m]] *= scale;
    if (ingress.from != kSource) throttle_[ingress.from] = std::min(throttle_[ingress.from], scale);
  }
}

void IngressFairRates::pass() {
  ++passes_;
  for (std::uint32_t flow = 0; flow < paths_.size(); ++flow) {
    passing_[flow] = is_active_[flow] ? capacity_[paths_[flow].front()] : 0;
  }
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

// A link at its fixed point is paused again after a few passes of recovery.
bool IngressFairRates::is_recovering() const {
  return std::ranges::any_of(egresses_, [this](const Egress& egress) {
    return recoveries_[egress.link] >= options_.passes_warm;
  });
}

std::span<const double> IngressFairRates::solve() {
  if (active_ == 0) return rate_;
  // Flows that ended stay listed, with nothing to send, until they are an eighth of the list.
  if (grouped_ == 0 || active_ * 8 <= grouped_ * 7) group();
  const int passes = is_warm_ ? options_.passes_warm : options_.passes_cold;
  if (!is_warm_) effective_ = capacity_;
  is_warm_ = true;
  for (int round = 0; round == 0 || (round < options_.rounds_max && is_recovering()); ++round) {
    std::ranges::fill(rate_, 0.0);
    for (int i = 0; i < passes; ++i) {
      pass();
      if (i < passes / 2) continue;
      for (std::uint32_t flow = 0; flow < paths_.size(); ++flow) rate_[flow] += passing_[flow];
    }
  }
  for (double& rate : rate_) rate /= passes - passes / 2;
  return rate_;
}

}  // namespace foresail::sim
