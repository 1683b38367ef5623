#include "step_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

constexpr Duration kLongestStep = std::chrono::hours(24 * 30);

void refuse_contention_in_closed_forms(const SimulatorOptions& options) {
  if (options.fidelity != Fidelity::Analytic) return;
  const bool has_link_fault = std::ranges::any_of(
      options.faults, [](const Fault& fault) { return fault.kind != FaultKind::GpuSlow; });
  if (has_link_fault || !options.traffic.empty()) {
    throw Error(ErrorCode::Unsupported,
                "faults of links and traffic of others need --fidelity flow: closed forms know no "
                "contention");
  }
}

}  // namespace

StepLoop::StepLoop(const topologies::Cluster& cluster, const SimulatorOptions& options,
                   Network& network, std::span<const Job> jobs)
    : options_(options), network_(network), faults_(cluster, options, network, events_) {
  FORESAIL_EXPECT(!jobs.empty());
  refuse_contention_in_closed_forms(options);
  FORESAIL_EXPECT(jobs.size() + options.traffic.size() <=
                  std::numeric_limits<std::uint16_t>::max());
  for (const Job& job : jobs) {
    const auto number = static_cast<std::uint16_t>(engines_.size());
    const StepEngine::Context context{*job.program, *job.placement, cluster, options, number};
    Units units = make_units(*job.program, *job.placement, cluster, options, network, jobs.size());
    engines_.push_back(std::make_unique<StepEngine>(
        context, network_, events_, std::move(units),
        [this, number](const StepEngine::Launch& flows) { launch(number, flows); }));
    repeats_.push_back(job.repeats);
    rounds_.push_back(0);
    events_.schedule_at(SimTime{} + job.at, {EventKind::JobStart, number});
  }
  for (const Traffic& traffic : options.traffic) {
    const auto source = static_cast<std::uint16_t>(engines_.size() + traffic_.size());
    traffic_.emplace_back(traffic, source, options.seed, network_);
    events_.schedule_at(SimTime{} + traffic.at, {EventKind::TrafficStart, source});
  }
}

void StepLoop::launch(std::uint16_t job, const StepEngine::Launch& flows) {
  faults_.launch(flow_tag(job, flows.transfer), flows.routes, flows.amount);
}

void StepLoop::flow_ended(std::uint64_t tag) {
  const auto job = static_cast<std::uint16_t>(tag >> 32u);
  if (job < engines_.size()) {
    engines_[job]->flow_done(static_cast<std::uint32_t>(tag));
    return;
  }
  Background& traffic = traffic_[job - engines_.size()];
  if (traffic.flow_ended()) {
    events_.schedule_at(events_.now() + traffic.pause(), {EventKind::TrafficStart, job});
  }
}

void StepLoop::dispatch(const StepEvent& event) {
  switch (event.kind) {
    case EventKind::OpDone:
      engines_[event.job]->op_done(event.a, event.b);
      break;
    case EventKind::TransferDone:
      engines_[event.job]->transfer_done(event.a);
      break;
    case EventKind::FlowDone:
      engines_[event.job]->flow_done(event.a);
      break;
    case EventKind::JobStart:
      engines_[event.job]->start();
      return;
    case EventKind::TrafficStart:
      traffic_[event.job - engines_.size()].start(events_.now());
      return;
    case EventKind::FaultChange:
      faults_.change();
      return;
    case EventKind::Reroute:
      faults_.reroute();
      return;
    case EventKind::Retry:
      faults_.retry(event.a);
      return;
  }
  const StepEngine& engine = *engines_[event.job];
  const bool ends = event.kind != EventKind::FlowDone && engine.is_complete();
  if (!ends || event.job == 0) return;
  ++rounds_[event.job];
  if (repeats_[event.job]) {
    events_.schedule_at(events_.now(), {EventKind::JobStart, event.job});
  }
}

void StepLoop::prefetch_ahead() const {
  const auto is_of_job = [this](const StepEvent& event) { return event.job < engines_.size(); };
  events_.foresee(
      [&](const StepEvent& event) {
        if (is_of_job(event)) engines_[event.job]->prefetch_next(event);
      },
      [&](const StepEvent& event) {
        if (is_of_job(event)) engines_[event.job]->prefetch_soon(event);
      });
}

bool StepLoop::is_over() const {
  const StepEngine& asked = *engines_.front();
  return !faults_.failure().empty() || (asked.has_started() && asked.is_complete());
}

void StepLoop::run() {
  FluidNetwork& fluid = network_.fluid();
  while (!is_over()) {
    fluid.settle(events_.now());
    const std::optional<SimTime> event = events_.next_time();
    const std::optional<SimTime> flow = fluid.next_finish();
    FORESAIL_EXPECT(event || flow);  // else the Program deadlocks
    const SimTime now = !flow ? *event : !event ? *flow : std::min(*event, *flow);
    if (now > SimTime{} + kLongestStep) {
      throw Error(ErrorCode::InvalidInput,
                  "the step would take more than 30 days: is a bandwidth or speed mistyped?");
    }
    bool is_moving = true;
    while (is_moving) {
      is_moving = false;
      while (events_.next_time() == std::optional<SimTime>(now)) {
        const StepEvent next = events_.take_next();
        prefetch_ahead();
        dispatch(next);
        is_moving = true;
      }
      events_.advance_to(now);
      while (fluid.next_finish() == std::optional<SimTime>(now)) {
        flow_ended(fluid.finish_next());
        is_moving = true;
      }
    }
  }
}

StepOutcome StepLoop::take_outcome() {
  if (!faults_.failure().empty()) {
    StepOutcome failed;
    failed.failure = faults_.failure();
    failed.iteration = events_.now() - SimTime{};
    return failed;
  }
  StepOutcome outcome = engines_.front()->take_outcome();
  outcome.events = events_.taken();
  outcome.stalls = faults_.stalls();
  outcome.longest_stall = faults_.longest_stall();
  for (std::size_t j = 1; j < engines_.size(); ++j) outcome.rounds.push_back(rounds_[j]);
  return outcome;
}

}  // namespace foresail::sim
