#include "link_faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "fault_targets.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"

namespace foresail::sim {
namespace {

// InfiniBand's unit of timeouts, and the exponent of the first adaptive retry (milliseconds; the
// exact value is firmware's: assumed).
constexpr Duration kTimeoutUnit = std::chrono::nanoseconds(4096);
constexpr int kAdaptiveFirst = 10;
// PyTorch's default for collectives of NCCL: no step outlives it.
constexpr Duration kWatchdog = std::chrono::minutes(10);

}  // namespace

LinkFaults::LinkFaults(const topologies::Cluster& cluster, const SimulatorOptions& options,
                       Network& network, StepEvents& events)
    : nccl_(options.network.nccl), network_(network), events_(events) {
  for (const Fault& fault : options.faults) {
    if (fault.kind == FaultKind::GpuSlow) continue;
    faults_.push_back({fault, links_named(cluster, fault.target)});
  }
  if (faults_.empty()) return;
  SimTime first = SimTime::max();
  for (const LinkFault& each : faults_) first = std::min(first, SimTime{} + each.fault.at);
  events_.schedule_at(first, {EventKind::FaultChange});
}

// What the fault leaves of its links' bandwidth at `now`.
double LinkFaults::factor_at(const Fault& fault, SimTime now) const {
  const SimTime from = SimTime{} + fault.at;
  const bool is_over = fault.lasts.count() > 0 && now >= from + fault.lasts;
  if (now < from || is_over) return 1;
  switch (fault.kind) {
    case FaultKind::LinkDown:
      return 0;
    case FaultKind::LinkFlap:
      return (now - from) % fault.period < fault.period / 2 ? 0 : 1;
    case FaultKind::LinkDegraded:
    case FaultKind::NicSlow:
      return fault.factor;
    case FaultKind::GpuSlow:
      break;
  }
  return 1;
}

SimTime LinkFaults::next_change(SimTime now) const {
  SimTime next = SimTime::max();
  const auto consider = [&](SimTime at) {
    if (at > now) next = std::min(next, at);
  };
  for (const LinkFault& each : faults_) {
    const Fault& fault = each.fault;
    const SimTime from = SimTime{} + fault.at;
    consider(from);
    if (fault.lasts.count() > 0) consider(from + fault.lasts);
    const bool is_active = now >= from && (fault.lasts.count() == 0 || now < from + fault.lasts);
    if (fault.kind == FaultKind::LinkFlap && is_active) {
      const Duration half = fault.period / 2;
      consider(from + ((now - from) / half + 1) * half);
    }
  }
  return next;
}

void LinkFaults::change() {
  const SimTime now = events_.now();
  std::map<std::uint32_t, double> factors;
  for (const LinkFault& each : faults_) {
    const double factor = factor_at(each.fault, now);
    for (const LinkId link : each.links) {
      const double before = factors.contains(link.value) ? factors[link.value] : 1;
      factors[link.value] = std::min(before, factor);
    }
  }
  dead_.clear();
  for (const auto& [link, factor] : factors) {
    const PipeId pipe = network_.paths().set_factor(LinkId{link}, factor, now);
    if (network_.fluid().capacity(pipe) <= 0) dead_.push_back(pipe);
  }
  std::ranges::sort(dead_);
  for (const PipeId pipe : dead_) {
    for (const FlowId flow : network_.fluid().flows_on(pipe)) {
      const FluidNetwork::Stopped stopped = network_.fluid().stop(flow, now);
      stall({stopped.tag, stopped.remaining, stopped.route, now});
    }
  }
  events_.schedule_at(now + kRerouteDelay, {EventKind::Reroute});
  const SimTime next = next_change(now);
  if (next != SimTime::max()) events_.schedule_at(next, {EventKind::FaultChange});
}

void LinkFaults::reroute() {
  network_.paths().reroute();
}

bool LinkFaults::is_dead(RouteId route) const {
  if (dead_.empty()) return false;
  const std::vector<RouteEntry> entries = network_.fluid().route(route);
  return std::ranges::any_of(entries, [&](const RouteEntry& entry) {
    return std::ranges::binary_search(dead_, entry.pipe);
  });
}

void LinkFaults::launch(std::uint64_t tag, std::span<const RouteId> routes, double amount) {
  const SimTime now = events_.now();
  if (faults_.empty()) {
    network_.fluid().start_together(routes, amount, tag, now);
    return;
  }
  std::vector<RouteId> alive;
  for (const RouteId route : routes) {
    const RouteId current = network_.paths().current(route);
    if (is_dead(current)) {
      stall({tag, amount, current, now});
    } else {
      alive.push_back(current);
    }
  }
  network_.fluid().start_together(alive, amount, tag, now);
}

Duration LinkFaults::wait_before(int attempt) const {
  const int full = nccl_.ib_timeout;
  const int exponent =
      nccl_.adaptive_retransmission ? std::min(kAdaptiveFirst + attempt, full) : full;
  return kTimeoutUnit * (std::int64_t{1} << exponent);
}

Duration LinkFaults::patience() const {
  return nccl_.ib_retry_count * (kTimeoutUnit * (std::int64_t{1} << nccl_.ib_timeout));
}

void LinkFaults::stall(const Stalled& flow) {
  if (stalls_ == 0) first_stall_ = events_.now();
  if (events_.now() - first_stall_ > kWatchdog) {
    failure_ = fmt::format("{} still meets a dead link {} after the first: a watchdog of {} aborts",
                           network_.paths().describe(flow.route),
                           to_text(events_.now() - first_stall_), to_text(kWatchdog));
  }
  ++stalls_;
  stalled_.push_back(flow);
  events_.schedule_at(events_.now() + wait_before(0),
                      {EventKind::Retry, 0, static_cast<std::uint32_t>(stalled_.size() - 1)});
}

void LinkFaults::retry(std::uint32_t index) {
  Stalled& flow = stalled_[index];
  const SimTime now = events_.now();
  longest_stall_ = std::max(longest_stall_, now - flow.since);
  const RouteId current = network_.paths().current(flow.route);
  if (!is_dead(current)) {
    const RouteId routes[] = {current};
    network_.fluid().start_together(routes, flow.amount, flow.tag, now);
    return;
  }
  if (now - flow.since >= patience()) {
    failure_ = fmt::format("{} found no way for {} and {} retries (ib_timeout {}): NCCL aborts",
                           network_.paths().describe(flow.route), to_text(now - flow.since),
                           nccl_.ib_retry_count, nccl_.ib_timeout);
    return;
  }
  ++flow.attempt;
  events_.schedule_at(now + wait_before(flow.attempt), {EventKind::Retry, 0, index});
}

}  // namespace foresail::sim
