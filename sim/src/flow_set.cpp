#include "foresail/sim/flow_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void check(const FlowSet& set) {
  for (std::size_t l = 0; l < set.links.size(); ++l) {
    if (set.links[l].bandwidth > Bandwidth{}) continue;
    throw Error(ErrorCode::InvalidInput, fmt::format("links[{}]: no bandwidth", l));
  }
  for (std::size_t f = 0; f < set.flows.size(); ++f) {
    const PointToPointFlow& flow = set.flows[f];
    if (flow.links.empty()) {
      throw Error(ErrorCode::InvalidInput, fmt::format("flows[{}]: no links", f));
    }
    if (flow.bytes <= Bytes{}) {
      throw Error(ErrorCode::InvalidInput, fmt::format("flows[{}]: no bytes", f));
    }
    for (const std::uint32_t link : flow.links) {
      if (link < set.links.size()) continue;
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("flows[{}]: link {} of {}", f, link, set.links.size()));
    }
  }
}

double usable(const FlowLink& link, const FlowSetOptions& options) {
  return link.bandwidth.bytes_per_second() * options.efficiency;
}

// Flows in the order of their starts.
std::vector<std::uint32_t> by_start(const FlowSet& set) {
  std::vector<std::uint32_t> order(set.flows.size());
  for (std::uint32_t f = 0; f < order.size(); ++f) order[f] = f;
  std::ranges::stable_sort(order, {}, [&](std::uint32_t f) { return set.flows[f].start; });
  return order;
}

std::vector<Duration> transfer_max_min(const FlowSet& set, const FlowSetOptions& options,
                                       std::uint64_t& solves) {
  FluidNetwork network(options.fluid);
  for (const FlowLink& link : set.links) network.add_pipe(usable(link, options));
  std::vector<RouteId> routes;
  for (const PointToPointFlow& flow : set.flows) {
    std::vector<std::uint32_t> links = flow.links;
    std::ranges::sort(links);
    std::vector<RouteEntry> entries;
    for (const std::uint32_t link : links) {
      if (!entries.empty() && entries.back().pipe.value == link) {
        entries.back().weight += 1;
      } else {
        entries.push_back({PipeId{link}, 1});
      }
    }
    RouteOptions wanted;
    wanted.share = flow.share;
    wanted.cap = kNever;
    for (const RouteEntry& entry : entries) {
      const double alone = network.capacity(entry.pipe) / entry.weight;
      wanted.cap = std::min(wanted.cap, alone * options.lone_efficiency);
    }
    routes.push_back(network.add_route(entries, wanted));
  }
  std::vector<Duration> taken(set.flows.size());
  const std::vector<std::uint32_t> order = by_start(set);
  std::size_t next = 0;
  for (std::optional<SimTime> end; next < order.size() || (end = network.next_finish());) {
    const bool is_start = next < order.size() && (!end || set.flows[order[next]].start <= *end);
    const SimTime now = is_start ? set.flows[order[next]].start : *end;
    for (; next < order.size() && set.flows[order[next]].start == now; ++next) {
      const std::uint32_t f = order[next];
      const auto bytes = static_cast<double>(wire_bytes(set.flows[f], options).count());
      network.start(routes[f], bytes, f, now);
    }
    while (!is_start && network.next_finish() == std::optional<SimTime>(now)) {
      const std::uint64_t f = network.finish_next();
      taken[f] = now - set.flows[f].start;
    }
    network.settle(now);
    end = network.next_finish();
  }
  solves = network.solves();
  return taken;
}

// Rates are constant between events, and solved anew, from the last ones, at each.
class PfcRun {
 public:
  PfcRun(const FlowSet& set, const FlowSetOptions& options)
      : set_(set), rates_(capacities(set, options), paths(set), options.pfc) {
    for (const PointToPointFlow& flow : set.flows) {
      left_.push_back(static_cast<double>(wire_bytes(flow, options).count()));
    }
    least_ = left_;
    for (double& bytes : least_) bytes *= kDone;
    taken_.resize(set.flows.size());
  }

  std::vector<Duration> run(std::uint64_t& solves) {
    const std::vector<std::uint32_t> order = by_start(set_);
    double now = 0;
    for (std::size_t next = 0; next < order.size() || !active_.empty();) {
      const double start = next < order.size() ? start_of(order[next]) : kNever;
      if (active_.empty()) now = start;
      const double end = now + until_next_end();
      const bool is_moving = std::isfinite(std::min(start, end));
      FORESAIL_EXPECT(is_moving);
      advance(std::min(start, end) - now);
      now = std::min(start, end);
      while (next < order.size() && start_of(order[next]) <= now) begin(order[next++]);
      finish_done(now);
      rate_ = rates_.solve();
      ++solves;
    }
    return taken_;
  }

 private:
  static constexpr double kDone = 1e-9;  // a flow with less than this share left is complete

  static std::vector<double> capacities(const FlowSet& set, const FlowSetOptions& options) {
    std::vector<double> made;
    for (const FlowLink& link : set.links) made.push_back(usable(link, options));
    return made;
  }
  static std::vector<std::vector<std::uint32_t>> paths(const FlowSet& set) {
    std::vector<std::vector<std::uint32_t>> made;
    for (const PointToPointFlow& flow : set.flows) made.push_back(flow.links);
    return made;
  }
  double start_of(std::uint32_t flow) const {
    return to_seconds(set_.flows[flow].start - SimTime{});
  }
  double until_next_end() const {
    double least = kNever;
    for (const std::uint32_t flow : active_) {
      if (rate_[flow] > 0) least = std::min(least, left_[flow] / rate_[flow]);
    }
    return least;
  }
  void advance(double seconds) {
    for (const std::uint32_t flow : active_) left_[flow] -= rate_[flow] * seconds;
  }
  void begin(std::uint32_t flow) {
    rates_.start(flow);
    active_.push_back(flow);
  }
  void finish_done(double now) {
    std::erase_if(active_, [&](std::uint32_t flow) {
      if (left_[flow] > least_[flow]) return false;
      taken_[flow] = duration_from_seconds(now - start_of(flow));
      rates_.finish(flow);
      return true;
    });
  }

  const FlowSet& set_;
  IngressFairRates rates_;
  std::vector<double> left_, least_;  // bytes
  std::vector<Duration> taken_;
  std::vector<std::uint32_t> active_;
  std::span<const double> rate_;
};

}  // namespace

Bytes wire_bytes(const PointToPointFlow& flow, const FlowSetOptions& options) {
  const std::int64_t packet = options.packet.count();
  const std::int64_t packets = (flow.bytes.count() + packet - 1) / packet;
  return flow.bytes + packets * options.header;
}

Duration path_delay(const FlowSet& set, const PointToPointFlow& flow,
                    const FlowSetOptions& options) {
  if (options.completion == Completion::LastByteSent) return Duration{};
  const Bytes packet = std::min(flow.bytes, options.packet) + options.header;
  Duration delay{};
  for (std::size_t hop = 0; hop < flow.links.size(); ++hop) {
    const FlowLink& link = set.links[flow.links[hop]];
    delay += link.latency;
    if (hop > 0) delay += transfer_time(packet, link.bandwidth);
    if (options.completion == Completion::LastAckReceived) {
      delay += link.latency + transfer_time(options.ack, link.bandwidth);
    }
  }
  return delay;
}

FlowSetSummary complete(const FlowSet& set, const FlowSetOptions& options) {
  FORESAIL_EXPECT(options.efficiency > 0);
  FORESAIL_EXPECT(options.efficiency <= 1);
  FORESAIL_EXPECT(options.lone_efficiency > 0);
  FORESAIL_EXPECT(options.lone_efficiency <= 1);
  FORESAIL_EXPECT(options.packet > Bytes{});
  check(set);
  FlowSetSummary summary;
  summary.completion = options.sharing == topologies::Sharing::MaxMin
                           ? transfer_max_min(set, options, summary.solves)
                           : PfcRun(set, options).run(summary.solves);
  for (std::size_t f = 0; f < set.flows.size(); ++f) {
    summary.completion[f] += path_delay(set, set.flows[f], options);
  }
  return summary;
}

Duration FlowSetSummary::makespan() const {
  return completion.empty() ? Duration{} : *std::ranges::max_element(completion);
}

Duration FlowSetSummary::mean() const {
  double sum = 0;
  for (const Duration each : completion) sum += to_seconds(each);
  return completion.empty() ? Duration{}
                            : duration_from_seconds(sum / static_cast<double>(completion.size()));
}

Duration FlowSetSummary::quantile(double fraction) const {
  FORESAIL_EXPECT(fraction > 0);
  FORESAIL_EXPECT(fraction <= 1);
  if (completion.empty()) return Duration{};
  std::vector<Duration> sorted = completion;
  std::ranges::sort(sorted);
  const double rank = std::ceil(fraction * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(rank) - 1];
}

std::string FlowSetSummary::to_string() const {
  const auto micros = [](Duration span) { return to_seconds(span) * 1e6; };
  return fmt::format("{} flows: mean {:.2f} us, p50 {:.2f}, p99 {:.2f}, max {:.2f}",
                     completion.size(), micros(mean()), micros(quantile(0.5)),
                     micros(quantile(0.99)), micros(makespan()));
}

}  // namespace foresail::sim
