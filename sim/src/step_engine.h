/// \file
/// One step of one job: every unit's lanes in order, messages and collectives over the network.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "coupling.h"
#include "foresail/program/placement.h"
#include "foresail/program/program.h"
#include "foresail/sim/compute_cost.h"
#include "foresail/sim/network.h"
#include "foresail/sim/simulator.h"
#include "step_event.h"
#include "unit_speed.h"
#include "units.h"

namespace foresail::sim {

constexpr std::size_t index_of(Lane lane) {
  return static_cast<std::size_t>(lane);
}

class StepEngine {
 public:
  struct Context {
    const program::Program& program;
    const program::Placement& placement;
    const topologies::Cluster& cluster;
    const SimulatorOptions& options;
    std::uint16_t job = 0;  ///< in the tags of flows and in events
  };
  /// A flow that the loop is to start for the engine: it may meet a link that is down.
  struct Launch {
    std::uint32_t transfer;
    double amount;
    std::span<const RouteId> routes;
  };
  using Launcher = std::function<void(const Launch&)>;

  /// `events` and `network` must outlive the engine.
  StepEngine(const Context& context, Network& network, StepEvents& events, Units units,
             Launcher launcher);

  /// Starts the step at the clock's now; again, once it is complete.
  void start();
  void op_done(std::uint32_t unit, std::uint32_t op);
  /// One flow of a transfer has ended.
  void flow_done(std::uint32_t transfer);
  /// The last byte of a transfer has arrived.
  void transfer_done(std::uint32_t transfer);

  /// For an event that comes soon, then again for one that comes next: memory that it will need.
  void prefetch_soon(const StepEvent& event) const;
  void prefetch_next(const StepEvent& event) const;

  bool has_started() const { return !states_.empty(); }
  bool is_complete() const { return ops_left_ == 0; }
  /// Requires a complete step, which is over then: its times move into the outcome.
  StepOutcome take_outcome();

 private:
  /// Of a size and place that an event costs one cache line.
  struct alignas(64) UnitState {
    std::array<std::uint32_t, kLaneCount> head{};
    std::array<bool, kLaneCount> is_busy{};
    int transfers_active = 0;              ///< on the dp and replica lanes
    StepOutcome::OpTime* times = nullptr;  ///< of its ops, in times_
    std::size_t first_done = 0;            ///< of its ops, in is_done_
  };
  struct OpRef {
    std::uint32_t unit, op;
  };
  /// Bytes on the way (or core-seconds on a host's cores) for one or more ops.
  struct Transfer {
    std::array<OpRef, 2> ends{};  ///< one or two ops ...
    std::uint32_t end_count = 0;
    std::uint32_t flows_left = 0;
    Duration latency{};
    std::vector<OpRef> group;  ///< ... or all of these
    std::span<const OpRef> ops() const {
      return end_count > 0 ? std::span(ends).first(end_count) : std::span(group);
    }
  };
  /// Of all ranks of a unit to their peers, each carrying `share` of a rank's bytes.
  struct MessageRoutes {
    std::vector<RouteId> routes;
    Duration latency{};
    double share = 1;
  };
  struct Gathering {
    std::vector<OpRef> ready;
    std::size_t expected = 0;
  };
  using GroupKey = std::pair<std::uint32_t, std::uint32_t>;  // communicator, group

  void schedule(SimTime when, EventKind kind, std::uint32_t a, std::uint32_t b = 0) {
    events_.schedule_at(when, {kind, context_.job, a, b});
  }
  void prepare_lanes();
  void prepare_kernels();
  void prepare_cores();
  Duration host_transfer(const std::string& kind, int ranks, Bytes bytes) const;
  Duration collective_time(Collective kind, Bytes bytes, std::span<const DeviceId> devices);
  std::vector<DeviceId> devices_of(program::CommunicatorId communicator, RankId rank) const;
  std::vector<std::vector<DeviceId>> groups_of(program::CommunicatorId communicator,
                                               int stage) const;
  Duration exchange_time(program::CommunicatorId communicator, int stage, const Kernel& kernel);
  Duration kernel_time(const Kernel& kernel, int stage, RankId rank);

  const program::Op& op(OpRef ref) const;
  bool is_ready(OpRef ref) const;
  void advance(std::uint32_t unit);
  void try_start(std::uint32_t unit, Lane lane);
  void start_compute(OpRef ref);
  void try_message(OpRef ref);
  void start_message(OpRef sender, OpRef receiver);
  void gather(OpRef ref);
  void start_collective(const Gathering& gathering);
  std::uint32_t new_transfer(std::span<const OpRef> ops, Duration latency);
  void launch(std::uint32_t transfer, std::span<const RouteId> routes, double amount);
  void launch(std::uint32_t transfer, const TransferPlan& plan, double scale);
  void mark_started(OpRef ref);
  void finish_op(OpRef ref);
  GroupKey group_of(OpRef ref) const;
  std::size_t group_size(OpRef ref) const;
  bool is_computing(std::uint32_t unit) const;

  Context context_;
  Network& network_;
  Units units_;
  Coupling coupling_;
  ComputeCost compute_;
  UnitSpeed speed_;
  StepEvents& events_;
  Launcher launcher_;
  std::vector<UnitState> states_;
  std::vector<std::vector<StepOutcome::OpTime>> times_;                       // by unit
  std::vector<bool> is_done_;                                                 // all units' ops
  std::vector<std::array<std::vector<std::uint32_t>, kLaneCount>> lane_ops_;  // by stage
  std::vector<PassTimeline> passes_;                                          // by kernel list
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> free_transfers_;
  std::map<GroupKey, Gathering> gatherings_;
  std::vector<std::array<MessageRoutes, 2>> message_routes_;  // [unit][to next, to previous]
  /// Of experts' exchanges, by communicator, stage, kind and bytes.
  std::map<std::tuple<std::uint32_t, int, Collective, std::int64_t>, Duration> exchange_times_;
  std::vector<RouteId> core_routes_;  // by unit; empty on GPUs
  std::size_t ops_left_ = 0;
  SimTime start_{}, end_{};
};

}  // namespace foresail::sim
