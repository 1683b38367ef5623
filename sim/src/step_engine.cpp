#include "step_engine.h"

#include <algorithm>
#include <limits>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::sim {
namespace {

using program::Axis;
using program::CommunicatorId;
using program::Op;
using program::OpKind;

// Below this a transfer is all latency and shares nothing.
constexpr double kSharedBytes = 65536;

constexpr std::size_t index_of(Lane lane) {
  return static_cast<std::size_t>(lane);
}

}  // namespace

StepEngine::StepEngine(const Context& context, Network& network, Units units)
    : context_(context),
      network_(network),
      units_(std::move(units)),
      compute_(context.cluster.device(), context.options.profile) {
  states_.resize(units_.units.size());
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const auto stage = static_cast<std::size_t>(units_.units[u].stage);
    const std::size_t ops = context_.program.stages[stage].ops.size();
    states_[u].times.resize(ops);
    states_[u].is_done.assign(ops, false);
  }
  message_routes_.resize(units_.units.size());
  prepare_lanes();
  prepare_kernels();
  prepare_cores();
}

void StepEngine::prepare_lanes() {
  lane_ops_.resize(context_.program.stages.size());
  for (std::size_t s = 0; s < lane_ops_.size(); ++s) {
    std::uint32_t id = 0;
    for (const Op& each : context_.program.stages[s].ops) {
      lane_ops_[s][index_of(each.lane)].push_back(id++);
    }
  }
}

std::vector<DeviceId> StepEngine::devices_of(CommunicatorId communicator, RankId rank) const {
  std::vector<DeviceId> devices;
  for (const RankId member : context_.program.members(communicator, rank)) {
    devices.push_back(context_.placement.device_of[member]);
  }
  return devices;
}

// A measured time of this host, interpolated between measured sizes; negative if none fits.
Duration StepEngine::host_transfer(const std::string& kind, int ranks, Bytes bytes) const {
  const program::Profile* profile = context_.options.profile;
  if (profile == nullptr) return Duration(-1);
  const program::TransferTiming* below = nullptr;
  const program::TransferTiming* above = nullptr;
  for (const program::TransferTiming& timing : profile->transfers) {
    if (timing.kind != kind || timing.ranks != ranks) continue;
    if (timing.bytes <= bytes && (below == nullptr || timing.bytes > below->bytes)) {
      below = &timing;
    }
    if (timing.bytes >= bytes && (above == nullptr || timing.bytes < above->bytes)) {
      above = &timing;
    }
  }
  if (below == nullptr && above == nullptr) return Duration(-1);
  if (below == nullptr) return above->time;
  const auto wanted = static_cast<double>(bytes.count());
  if (above == nullptr) {  // beyond the largest measured size: in proportion
    return duration_from_seconds(to_seconds(below->time) * wanted /
                                 static_cast<double>(below->bytes.count()));
  }
  const auto low = static_cast<double>(below->bytes.count());
  const auto high = static_cast<double>(above->bytes.count());
  const double at = high > low ? (wanted - low) / (high - low) : 0;
  return duration_from_seconds(to_seconds(below->time) * (1 - at) + to_seconds(above->time) * at);
}

Duration StepEngine::collective_time(Collective kind, Bytes bytes,
                                     std::span<const DeviceId> devices) {
  const Duration measured =
      host_transfer(std::string(to_string(kind)), static_cast<int>(devices.size()), bytes);
  if (measured.count() >= 0) return measured;
  std::uint64_t key = 0x7470;
  for (const DeviceId device : devices) key = mix64(key ^ device.value);
  return network_.alone(network_.collective(kind, bytes, devices, key));
}

// Collectives inside a pass are timed on the group of the stage's first simulated unit.
void StepEngine::prepare_kernels() {
  const program::Program& program = context_.program;
  passes_.resize(program.kernel_lists.size());
  std::vector<bool> is_known(passes_.size(), false);
  const PassCost cost(compute_, context_.options.host_per_kernel);
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    const RankId rank = units_.units[units_.index(0, static_cast<int>(s))].ranks.front();
    for (const Op& each : program.stages[s].ops) {
      if (each.kind != OpKind::Compute || is_known[each.kernels.value]) continue;
      is_known[each.kernels.value] = true;
      const std::vector<Kernel>& kernels = program.kernel_lists[each.kernels.value].kernels;
      std::vector<Duration> times(kernels.size());
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        if (kernels[i].kind != KernelKind::Collective) continue;
        for (std::uint32_t c = 0; c < program.communicators.size(); ++c) {
          if (program.communicators[c].name != to_string(kernels[i].lane)) continue;
          const std::vector<DeviceId> devices = devices_of(CommunicatorId{c}, rank);
          if (devices.size() < 2) continue;
          times[i] = collective_time(kernels[i].collective, kernels[i].bytes, devices);
        }
      }
      passes_[each.kernels.value] = cost.timeline(kernels, times);
      if (context_.options.profile != nullptr) {
        passes_[each.kernels.value].duration += context_.options.profile->op_overhead;
      }
    }
  }
}

// On a CPU host the compute of all units shares the host's cores; one rank uses at most one.
void StepEngine::prepare_cores() {
  const topologies::Cluster& cluster = context_.cluster;
  if (cluster.device().kind != topologies::DeviceKind::Cpu || cluster.node().cores == 0) return;
  std::vector<PipeId> hosts;
  for (int n = 0; n < cluster.options().nodes; ++n) {
    hosts.push_back(network_.add_resource(cluster.node().cores));
  }
  for (const Unit& unit : units_.units) {
    std::map<std::uint32_t, double> demand;
    for (const RankId rank : unit.ranks) {
      const int node = cluster.node_of(context_.placement.device_of[rank]);
      demand[hosts[static_cast<std::size_t>(node)].value] += 1;
    }
    std::vector<RouteEntry> entries = {{network_.add_resource(1.0), 1.0}};
    for (const auto& [pipe, ranks] : demand) entries.push_back({PipeId{pipe}, ranks});
    core_routes_.push_back(network_.fluid().add_route(entries));
  }
}

const Op& StepEngine::op(OpRef ref) const {
  const auto stage = static_cast<std::size_t>(units_.units[ref.unit].stage);
  return context_.program.stages[stage].ops[program::OpId{ref.op}];
}

bool StepEngine::is_ready(OpRef ref) const {
  const UnitState& state = states_[ref.unit];
  for (const program::OpId before : op(ref).after) {
    if (!state.is_done[before.value]) return false;
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
      events_.schedule_at(events_.now(), {EventKind::OpDone, ref.unit, ref.op});
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
  if (state.transfers_active > 0) {
    span = duration_from_seconds(to_seconds(span) *
                                 context_.cluster.device().constants.overlap_slowdown);
  }
  if (core_routes_.empty() || span.count() == 0) {
    events_.schedule_at(events_.now() + span, {EventKind::OpDone, ref.unit, ref.op});
    return;
  }
  const std::uint32_t id = new_transfer({ref}, Duration{});
  transfers_[id].flows_left = 1;
  network_.fluid().start(core_routes_[ref.unit], to_seconds(span), id, events_.now());
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
  const Duration measured = host_transfer("send", 2, send.bytes);
  if (measured.count() >= 0) {
    const std::uint32_t id = new_transfer({sender, receiver}, measured);
    events_.schedule_at(events_.now() + measured, {EventKind::TransferDone, id, 0});
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
  const std::uint32_t id = new_transfer({sender, receiver}, known.latency);
  launch(id, known.routes, known.share * static_cast<double>(send.bytes.count()));
}

StepEngine::GroupKey StepEngine::group_of(OpRef ref) const {
  const Op& each = op(ref);
  const auto& communicator = context_.program.communicators[each.communicator.value];
  const Unit& unit = units_.units[ref.unit];
  const bool over_replicas = communicator.axes.has(Axis::Dp);
  const bool over_stages = communicator.axes.has(Axis::Pp);
  const std::uint32_t slot = ref.unit / static_cast<std::uint32_t>(units_.stages);
  const std::uint32_t replica_key = over_replicas ? 0xffffu : slot;
  const std::uint32_t stage_key = over_stages ? 0xffffu : static_cast<std::uint32_t>(unit.stage);
  return {each.communicator.value, (replica_key << 16u) | stage_key};
}

std::size_t StepEngine::group_size(OpRef ref) const {
  const auto& communicator = context_.program.communicators[op(ref).communicator.value];
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
  for (const RankId rank : units_.units[first.unit].ranks) {
    const std::vector<RankId> members = context_.program.members(each.communicator, rank);
    if (std::ranges::find(seen, members.front()) != seen.end()) continue;
    seen.push_back(members.front());
    std::vector<DeviceId> devices;
    for (const RankId member : members) devices.push_back(context_.placement.device_of[member]);
    rings.push_back(std::move(devices));
  }
  const Duration measured = host_transfer(std::string(to_string(each.collective)),
                                          static_cast<int>(rings.front().size()), each.bytes);
  const bool beside_compute =
      communicator.axes.has(Axis::Dp) && each.bytes.count() > 8 && is_computing(first.unit);
  for (const OpRef ref : gathering.ready) {
    if (op(ref).lane == Lane::Dp) ++states_[ref.unit].transfers_active;
  }
  if (measured.count() >= 0) {
    const std::uint32_t id = new_transfer(gathering.ready, measured);
    events_.schedule_at(events_.now() + measured, {EventKind::TransferDone, id, 0});
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
    events_.schedule_at(events_.now() + latency, {EventKind::TransferDone, id, 0});
  }
}

std::uint32_t StepEngine::new_transfer(std::vector<OpRef> ops, Duration latency) {
  std::uint32_t id = 0;
  if (free_transfers_.empty()) {
    id = static_cast<std::uint32_t>(transfers_.size());
    transfers_.emplace_back();
  } else {
    id = free_transfers_.back();
    free_transfers_.pop_back();
  }
  transfers_[id].ops = std::move(ops);
  transfers_[id].latency = latency;
  transfers_[id].flows_left = 0;
  return id;
}

// Adds flows of `amount` bytes on each of `routes` to a transfer.
void StepEngine::launch(std::uint32_t transfer, std::span<const RouteId> routes, double amount) {
  if (routes.empty()) return;
  if (context_.options.fidelity == Fidelity::Flow && amount >= kSharedBytes) {
    transfers_[transfer].flows_left += static_cast<std::uint32_t>(routes.size());
    network_.fluid().start_together(routes, amount, transfer, events_.now());
    return;
  }
  double slowest = std::numeric_limits<double>::infinity();
  for (const RouteId route : routes) {
    slowest = std::min(slowest, network_.fluid().full_rate(route));
  }
  ++transfers_[transfer].flows_left;
  events_.schedule_at(events_.now() + duration_from_seconds(amount / slowest),
                      {EventKind::TransferDone, transfer, 1});
}

// The same for a collective, whose flows may differ in size, `scale` times as large.
void StepEngine::launch(std::uint32_t transfer, const TransferPlan& plan, double scale) {
  if (plan.routes.empty()) return;
  if (context_.options.fidelity != Fidelity::Flow) {
    ++transfers_[transfer].flows_left;
    events_.schedule_at(events_.now() + duration_from_seconds(plan.link_seconds * scale),
                        {EventKind::TransferDone, transfer, 1});
    return;
  }
  if (plan.amounts.empty()) {
    launch(transfer, plan.routes, plan.amount * scale);
    return;
  }
  transfers_[transfer].flows_left += static_cast<std::uint32_t>(plan.routes.size());
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    network_.fluid().start(plan.routes[r], plan.amounts[r] * scale, transfer, events_.now());
  }
}

void StepEngine::finish_transfer(std::uint32_t transfer) {
  Transfer done = std::move(transfers_[transfer]);
  free_transfers_.push_back(transfer);
  for (const OpRef ref : done.ops) finish_op(ref);
  // All ends are free before anyone starts anew.
  for (const OpRef ref : done.ops) advance(ref.unit);
}

void StepEngine::finish_op(OpRef ref) {
  UnitState& state = states_[ref.unit];
  const Op& each = op(ref);
  const std::size_t l = index_of(each.lane);
  state.times[ref.op].end = events_.now();
  state.is_done[ref.op] = true;
  state.is_busy[l] = false;
  ++state.head[l];
  if (each.kind == OpKind::Collective && each.lane == Lane::Dp) --state.transfers_active;
  end_ = std::max(end_, events_.now());
}

void StepEngine::run() {
  for (std::uint32_t u = 0; u < units_.units.size(); ++u) advance(u);
  FluidNetwork& fluid = network_.fluid();
  for (;;) {
    fluid.settle(events_.now());
    const std::optional<SimTime> event = events_.next_time();
    const std::optional<SimTime> flow = fluid.next_finish();
    if (!event && !flow) break;
    const SimTime now = !flow ? *event : !event ? *flow : std::min(*event, *flow);
    bool is_moving = true;
    while (is_moving) {
      is_moving = false;
      while (events_.next_time() == std::optional<SimTime>(now)) {
        const Event next = events_.take_next();
        is_moving = true;
        if (next.kind == EventKind::OpDone) {
          finish_op({next.a, next.b});
          advance(next.a);
        } else if (next.b == 0) {
          finish_transfer(next.a);
        } else if (--transfers_[next.a].flows_left == 0) {
          events_.schedule_at(now + transfers_[next.a].latency,
                              {EventKind::TransferDone, next.a, 0});
        }
      }
      events_.advance_to(now);
      while (fluid.next_finish() == std::optional<SimTime>(now)) {
        const auto transfer = static_cast<std::uint32_t>(fluid.finish_next());
        is_moving = true;
        if (--transfers_[transfer].flows_left == 0) {
          events_.schedule_at(now + transfers_[transfer].latency,
                              {EventKind::TransferDone, transfer, 0});
        }
      }
    }
  }
  for (const UnitState& state : states_) {
    const bool is_complete = std::ranges::all_of(state.is_done, [](bool done) { return done; });
    FORESAIL_EXPECT(is_complete);
  }
}

StepOutcome StepEngine::outcome() const {
  StepOutcome result;
  result.iteration = end_ - SimTime{};
  if (context_.options.profile != nullptr) {
    result.iteration += context_.options.profile->step_overhead;
  }
  result.units = units_.units;
  for (const UnitState& state : states_) result.op_times.push_back(state.times);
  for (const PassTimeline& pass : passes_) {
    std::vector<StepOutcome::OpTime>& times = result.kernel_times.emplace_back();
    for (const PassTimeline::Interval& interval : pass.kernels) {
      times.push_back({SimTime{} + interval.start, SimTime{} + interval.end});
    }
  }
  result.fold_note = units_.note;
  result.events = events_.taken();
  result.solves = network_.fluid().solves();
  result.solved_flows = network_.fluid().solved_flows();
  return result;
}

}  // namespace foresail::sim
