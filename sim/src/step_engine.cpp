#include "step_engine.h"

#include <algorithm>
#include <limits>
#include <set>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "prefetch.h"

namespace foresail::sim {
namespace {

using program::Axis;
using program::CommunicatorId;
using program::Op;
using program::OpKind;

// Below this a transfer is all latency and shares nothing.
constexpr double kSharedBytes = 65536;

int nodes_of(const program::Placement& placement, const topologies::Cluster& cluster) {
  std::set<int> nodes;
  for (const DeviceId device : placement.device_of) nodes.insert(cluster.node_of(device));
  return static_cast<int>(nodes.size());
}

// Gradients and parameters, which share the device with the passes.
bool is_beside_passes(Lane lane) {
  return lane == Lane::Dp || lane == Lane::Replica;
}

}  // namespace

StepEngine::StepEngine(const Context& context, Network& network, StepEvents& events, Units units,
                       Launcher launcher)
    : context_(context),
      network_(network),
      units_(std::move(units)),
      coupling_(context.program, units_.slot_of),
      compute_(ComputeCost(context.cluster.device(), context.options.profile,
                           host_share(context.cluster.node()))
                   .on_slowest_of(nodes_of(context.placement, context.cluster))),
      speed_(units_, context.placement, context.cluster, context.options),
      events_(events),
      launcher_(std::move(launcher)) {
  message_routes_.resize(units_.units.size());
  prepare_lanes();
  prepare_kernels();
  prepare_cores();
}

void StepEngine::start() {
  FORESAIL_EXPECT(is_complete());
  start_ = end_ = events_.now();
  states_.assign(units_.units.size(), {});
  times_.assign(units_.units.size(), {});
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const auto stage = static_cast<std::size_t>(units_.units[u].stage);
    times_[u].resize(context_.program.stages[stage].ops.size());
    states_[u].times = times_[u].data();
    states_[u].first_done = ops_left_;
    ops_left_ += times_[u].size();
  }
  is_done_.assign(ops_left_, false);
  for (std::uint32_t u = 0; u < units_.units.size(); ++u) advance(u);
}

const Op& StepEngine::op(OpRef ref) const {
  const auto stage = static_cast<std::size_t>(units_.units[ref.unit].stage);
  return context_.program.stages[stage].ops[program::OpId{ref.op}];
}

bool StepEngine::is_ready(OpRef ref) const {
  const UnitState& state = states_[ref.unit];
  for (const program::OpId before : op(ref).after) {
    if (!is_done_[state.first_done + before.value]) return false;
  }
  return true;
}

bool StepEngine::is_computing(std::uint32_t unit) const {
  return states_[unit].is_busy[index_of(Lane::Compute)];
}

void StepEngine::advance(std::uint32_t unit) {
  for (int lane = 0; lane < kLaneCount; ++lane) try_start(unit, static_cast<Lane>(lane));
}

void StepEngine::try_start(std::uint32_t unit, Lane lane) {
  UnitState& state = states_[unit];
  const std::size_t l = index_of(lane);
  if (state.is_busy[l]) return;
  const auto stage = static_cast<std::size_t>(units_.units[unit].stage);
  const std::vector<std::uint32_t>& ops = lane_ops_[stage][l];
  if (state.head[l] >= ops.size()) return;
  const OpRef ref{unit, ops[state.head[l]]};
  if (!is_ready(ref)) return;
  switch (op(ref).kind) {
    case OpKind::Compute:
      mark_started(ref);
      start_compute(ref);
      break;
    case OpKind::Host:
      mark_started(ref);
      schedule(events_.now(), EventKind::OpDone, ref.unit, ref.op);
      break;
    case OpKind::Send:
    case OpKind::Recv:
      try_message(ref);
      break;
    case OpKind::Collective:
      mark_started(ref);
      gather(ref);
      break;
  }
}

void StepEngine::mark_started(OpRef ref) {
  states_[ref.unit].is_busy[index_of(op(ref).lane)] = true;
  states_[ref.unit].times[ref.op].start = events_.now();
}

void StepEngine::start_compute(OpRef ref) {
  const UnitState& state = states_[ref.unit];
  Duration span = passes_[op(ref).kernels.value].duration;
  const bool is_on_device = op(ref).lane == Lane::Compute;
  if (is_on_device && state.transfers_active > 0) {
    span = duration_from_seconds(to_seconds(span) *
                                 context_.cluster.device().constants.overlap_slowdown);
  }
  span = speed_.jittered(ref.unit, ref.op, span);
  if (core_routes_.empty() || span.count() == 0) {
    schedule(speed_.end_of(ref.unit, events_.now(), span), EventKind::OpDone, ref.unit, ref.op);
    return;
  }
  span = speed_.end_of(ref.unit, events_.now(), span) - events_.now();
  const std::uint32_t id = new_transfer(std::span(&ref, 1), Duration{});
  transfers_[id].flows_left = 1;
  network_.fluid().start(core_routes_[ref.unit], to_seconds(span), flow_tag(context_.job, id),
                         events_.now());
}

// Starts a message if both ends have it at the head of their pp lanes.
void StepEngine::try_message(OpRef ref) {
  const Op& mine = op(ref);
  const auto slot = ref.unit / static_cast<std::uint32_t>(units_.stages);
  const auto peer =
      static_cast<std::uint32_t>(units_.index(static_cast<int>(slot), mine.peer_stage));
  const std::size_t l = index_of(Lane::Pp);
  const UnitState& other = states_[peer];
  const auto peer_stage = static_cast<std::size_t>(mine.peer_stage);
  const std::vector<std::uint32_t>& ops = lane_ops_[peer_stage][l];
  if (other.is_busy[l] || other.head[l] >= ops.size()) return;
  const OpRef theirs{peer, ops[other.head[l]]};
  const Op& match = op(theirs);
  const bool is_pair = (mine.kind == OpKind::Send && match.kind == OpKind::Recv) ||
                       (mine.kind == OpKind::Recv && match.kind == OpKind::Send);
  if (!is_pair || match.peer_stage != units_.units[ref.unit].stage || !is_ready(theirs)) {
    return;
  }
  FORESAIL_EXPECT(match.payload == mine.payload);
  FORESAIL_EXPECT(match.microbatch == mine.microbatch);
  FORESAIL_EXPECT(match.bytes == mine.bytes);
  mark_started(ref);
  mark_started(theirs);
  if (mine.kind == OpKind::Send) {
    start_message(ref, theirs);
  } else {
    start_message(theirs, ref);
  }
}

void StepEngine::start_message(OpRef sender, OpRef receiver) {
  const Unit& from = units_.units[sender.unit];
  const Unit& to = units_.units[receiver.unit];
  const Op& send = op(sender);
  const std::array<OpRef, 2> ends{sender, receiver};
  const Duration measured = host_transfer("send", 2, send.bytes);
  if (measured.count() >= 0) {
    const std::uint32_t id = new_transfer(ends, measured);
    schedule(events_.now() + measured, EventKind::TransferDone, id);
    return;
  }
  const bool is_next = to.stage == (from.stage + 1) % units_.stages;
  MessageRoutes& known = message_routes_[sender.unit][is_next ? 0 : 1];
  if (known.routes.empty()) {
    for (std::size_t i = 0; i < from.ranks.size(); ++i) {
      const TransferPlan plan =
          network_.message(context_.placement.device_of[from.ranks[i]],
                           context_.placement.device_of[to.ranks[i]], Bytes(1));
      known.routes.insert(known.routes.end(), plan.routes.begin(), plan.routes.end());
      known.latency = std::max(known.latency, plan.latency);
      known.share = plan.amount;
    }
  }
  const std::uint32_t id = new_transfer(ends, known.latency);
  launch(id, known.routes, known.share * static_cast<double>(send.bytes.count()));
}

StepEngine::GroupKey StepEngine::group_of(OpRef ref) const {
  const Op& each = op(ref);
  const auto& communicator = context_.program.communicators[each.communicator.value];
  const Unit& unit = units_.units[ref.unit];
  const bool over_replicas = communicator.axes.has(Axis::Dp);
  const bool over_stages = communicator.axes.has(Axis::Pp);
  const std::uint32_t slot = ref.unit / static_cast<std::uint32_t>(units_.stages);
  std::uint32_t replica_key = over_replicas ? 0xffffu : slot;
  if (coupling_.is_cut(each.communicator)) {
    replica_key = coupling_.first(each.communicator, slot);
  }
  const std::uint32_t stage_key = over_stages ? 0xffffu : static_cast<std::uint32_t>(unit.stage);
  return {each.communicator.value, (replica_key << 16u) | stage_key};
}

std::size_t StepEngine::group_size(OpRef ref) const {
  const CommunicatorId id = op(ref).communicator;
  const auto& communicator = context_.program.communicators[id.value];
  if (coupling_.is_cut(id)) {
    return coupling_.count(id, ref.unit / static_cast<std::size_t>(units_.stages));
  }
  std::size_t stages = 1;
  if (communicator.axes.has(Axis::Pp)) {
    stages = communicator.stages.empty() ? static_cast<std::size_t>(units_.stages)
                                         : communicator.stages.size();
  }
  const auto replicas = static_cast<std::size_t>(units_.replicas());
  return stages * (communicator.axes.has(Axis::Dp) ? replicas : 1);
}

void StepEngine::gather(OpRef ref) {
  const GroupKey key = group_of(ref);
  Gathering& gathering = gatherings_[key];
  gathering.ready.push_back(ref);
  if (gathering.ready.size() < group_size(ref)) return;
  const Gathering complete = std::move(gathering);
  gatherings_.erase(key);
  start_collective(complete);
}

void StepEngine::start_collective(const Gathering& gathering) {
  const OpRef first = gathering.ready.front();
  const Op& each = op(first);
  const auto& communicator = context_.program.communicators[each.communicator.value];
  // One ring per combination of the coordinates that the communicator does not span, within the
  // units that take part: seen from the ranks of the first unit, each group once.
  std::vector<std::vector<DeviceId>> rings;
  std::vector<RankId> seen;
  const auto add_rings = [&](std::uint32_t unit) {
    for (const RankId rank : units_.units[unit].ranks) {
      const std::vector<RankId> members = context_.program.members(each.communicator, rank);
      if (std::ranges::find(seen, members.front()) != seen.end()) continue;
      seen.push_back(members.front());
      std::vector<DeviceId> devices;
      for (const RankId member : members) devices.push_back(context_.placement.device_of[member]);
      rings.push_back(std::move(devices));
    }
  };
  add_rings(first.unit);
  // Groups of experts span a part of the replicas, and in a folded step units of several parts may
  // stand for each other's members: all of them start when all replicas are there.
  if (communicator.grid == program::GridKind::Expert || coupling_.is_cut(each.communicator)) {
    for (const OpRef ref : gathering.ready) add_rings(ref.unit);
  }
  const Duration measured = host_transfer(std::string(to_string(each.collective)),
                                          static_cast<int>(rings.front().size()), each.bytes);
  const bool beside_compute =
      communicator.axes.has(Axis::Dp) && each.bytes.count() > 8 && is_computing(first.unit);
  for (const OpRef ref : gathering.ready) {
    if (is_beside_passes(op(ref).lane)) ++states_[ref.unit].transfers_active;
  }
  if (measured.count() >= 0) {
    const std::uint32_t id = new_transfer(gathering.ready, measured);
    schedule(events_.now() + measured, EventKind::TransferDone, id);
    return;
  }
  std::vector<TransferPlan> plans;
  Duration latency{};
  for (std::size_t i = 0; i < rings.size(); ++i) {
    const std::uint64_t key = (std::uint64_t{each.communicator.value} << 40u) | seen[i].value;
    plans.push_back(network_.collective(each.collective, each.bytes, rings[i], mix64(key)));
    latency = std::max(latency, plans.back().latency);
  }
  const std::uint32_t id = new_transfer(gathering.ready, latency);
  const double scale =
      beside_compute ? 1 + context_.cluster.device().constants.overlap_inefficiency : 1;
  for (const TransferPlan& plan : plans) launch(id, plan, scale);
  if (transfers_[id].flows_left == 0) {
    schedule(events_.now() + latency, EventKind::TransferDone, id);
  }
}

std::uint32_t StepEngine::new_transfer(std::span<const OpRef> ops, Duration latency) {
  std::uint32_t id = 0;
  if (free_transfers_.empty()) {
    id = static_cast<std::uint32_t>(transfers_.size());
    transfers_.emplace_back();
  } else {
    id = free_transfers_.back();
    free_transfers_.pop_back();
  }
  Transfer& made = transfers_[id];
  const bool is_small = ops.size() <= made.ends.size();
  made.end_count = is_small ? static_cast<std::uint32_t>(ops.size()) : 0;
  if (is_small) {
    std::ranges::copy(ops, made.ends.begin());
  } else {
    made.group.assign(ops.begin(), ops.end());
  }
  made.latency = latency;
  made.flows_left = 0;
  return id;
}

// Adds flows of `amount` bytes on each of `routes` to a transfer.
void StepEngine::launch(std::uint32_t transfer, std::span<const RouteId> routes, double amount) {
  if (routes.empty()) return;
  double slowest = std::numeric_limits<double>::infinity();
  for (const RouteId route : routes) {
    slowest = std::min(slowest, network_.fluid().full_rate(route));
  }
  const bool is_fluid = context_.options.fidelity == Fidelity::Flow && amount >= kSharedBytes;
  if (is_fluid || slowest <= 0) {  // on a dead link even a small message waits
    transfers_[transfer].flows_left += static_cast<std::uint32_t>(routes.size());
    launcher_({transfer, amount, routes});
    return;
  }
  ++transfers_[transfer].flows_left;
  schedule(events_.now() + duration_from_seconds(amount / slowest), EventKind::FlowDone, transfer);
}

// The same for a collective, whose flows may differ in size, `scale` times as large.
void StepEngine::launch(std::uint32_t transfer, const TransferPlan& plan, double scale) {
  if (plan.routes.empty()) return;
  if (context_.options.fidelity != Fidelity::Flow) {
    ++transfers_[transfer].flows_left;
    schedule(events_.now() + duration_from_seconds(plan.link_seconds * scale), EventKind::FlowDone,
             transfer);
    return;
  }
  if (plan.amounts.empty()) {
    launch(transfer, plan.routes, plan.amount * scale);
    return;
  }
  transfers_[transfer].flows_left += static_cast<std::uint32_t>(plan.routes.size());
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    launcher_({transfer, plan.amounts[r] * scale, std::span(&plan.routes[r], 1)});
  }
}

void StepEngine::op_done(std::uint32_t unit, std::uint32_t op) {
  finish_op({unit, op});
  advance(unit);
}

void StepEngine::flow_done(std::uint32_t transfer) {
  if (--transfers_[transfer].flows_left > 0) return;
  schedule(events_.now() + transfers_[transfer].latency, EventKind::TransferDone, transfer);
}

void StepEngine::prefetch_soon(const StepEvent& event) const {
  if (event.kind == EventKind::OpDone) prefetch(&states_[event.a]);
  if (event.kind == EventKind::TransferDone) prefetch(&transfers_[event.a]);
}

void StepEngine::prefetch_next(const StepEvent& event) const {
  if (event.kind == EventKind::OpDone) prefetch(&states_[event.a].times[event.b]);
  if (event.kind != EventKind::TransferDone) return;
  const Transfer& transfer = transfers_[event.a];
  for (const OpRef ref : std::span(transfer.ends).first(transfer.end_count)) {
    prefetch(&states_[ref.unit]);
  }
}

void StepEngine::transfer_done(std::uint32_t transfer) {
  Transfer done = std::move(transfers_[transfer]);
  free_transfers_.push_back(transfer);
  for (const OpRef ref : std::span(done.ends).first(done.end_count)) {
    prefetch(&states_[ref.unit].times[ref.op]);
  }
  for (const OpRef ref : done.ops()) finish_op(ref);
  // All ends are free before anyone starts anew.
  for (const OpRef ref : done.ops()) advance(ref.unit);
}

void StepEngine::finish_op(OpRef ref) {
  UnitState& state = states_[ref.unit];
  const Op& each = op(ref);
  const std::size_t l = index_of(each.lane);
  state.times[ref.op].end = events_.now();
  is_done_[state.first_done + ref.op] = true;
  --ops_left_;
  state.is_busy[l] = false;
  ++state.head[l];
  if (each.kind == OpKind::Collective && is_beside_passes(each.lane)) --state.transfers_active;
  end_ = std::max(end_, events_.now());
}

StepOutcome StepEngine::take_outcome() {
  StepOutcome result;
  FORESAIL_EXPECT(is_complete());
  result.iteration = end_ - start_;
  if (context_.options.profile != nullptr) {
    result.iteration += context_.options.profile->step_overhead;
  }
  result.units = units_.units;
  for (std::vector<StepOutcome::OpTime>& times : times_) {
    for (StepOutcome::OpTime& time : times) {
      time = {SimTime{} + (time.start - start_), SimTime{} + (time.end - start_)};
    }
  }
  result.op_times = std::move(times_);
  states_.clear();
  for (const PassTimeline& pass : passes_) {
    std::vector<StepOutcome::OpTime>& times = result.kernel_times.emplace_back();
    for (const PassTimeline::Interval& interval : pass.kernels) {
      times.push_back({SimTime{} + interval.start, SimTime{} + interval.end});
    }
  }
  result.fold_note = units_.note;
  result.solves = network_.fluid().solves();
  result.solved_flows = network_.fluid().solved_flows();
  return result;
}

}  // namespace foresail::sim
