/// \file
/// The simulator of one training step: a Program on a Cluster.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/program/cost_model.h"
#include "foresail/program/placement.h"
#include "foresail/program/profile.h"
#include "foresail/program/program.h"
#include "foresail/program/trace.h"
#include "foresail/sim/disturbance.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// Analytic: latency-bandwidth closed forms, nothing contends. Flow: max-min fair sharing on the
/// routed graph. (A packet rung is planned; it is refused.)
enum class Fidelity { Analytic, Flow };
/// Auto: data-parallel replicas that are proved alike are simulated once. Off: every replica.
enum class Fold { Auto, Off };

struct SimulatorOptions {
  Fidelity fidelity = Fidelity::Flow;
  Fold fold = Fold::Auto;
  topologies::NetworkOptions network;
  std::uint64_t seed = 1;
  Duration host_per_kernel{};  ///< models::Stack's, see PassCost
  Jitter jitter;
  std::vector<Fault> faults;
  std::vector<Traffic> traffic;
  bool keeps_all_links = false;               ///< StepOutcome::all_links
  const program::Profile* profile = nullptr;  ///< measured costs, for CPU hosts; not owned
};

/// A step that shares the cluster with others. The program and placement must outlive the run.
struct Job {
  const program::Program* program = nullptr;
  const program::Placement* placement = nullptr;
  Duration at{};         ///< when its step starts
  bool repeats = false;  ///< starts anew when its step is complete
};

/// A pipe of the network after the step: what it carried, and how loaded it was.
struct LinkLoad {
  std::string name;
  Bytes carried;
  double utilisation = 0;  ///< of its capacity over the step
  int sharers_max = 0;     ///< flows on it while it limited one of them; 0: never
  Duration limiting{};     ///< during which it slowed a flow
};

/// Flows that met on a link and slowed each other.
struct Collision {
  std::string link;
  int flows = 0;                   ///< at the worst moment
  SimTime when{};                  ///< of the worst moment
  Duration limiting{};             ///< during which the link slowed a flow
  std::vector<std::string> names;  ///< of the first flows of that moment
};

/// One simulated unit: the ranks of one tensor (and context) parallel group, at one stage of one
/// replica. When folded, `replicas` stand for it.
struct Unit {
  int stage = 0;
  int replica = 0;
  int replicas = 1;
  std::vector<RankId> ranks;
};

/// The answer. Times of unit u's ops stand at [u][op].
struct StepOutcome {
  Duration iteration{};
  std::vector<Unit> units;
  struct OpTime {
    SimTime start{}, end{};
  };
  std::vector<std::vector<OpTime>> op_times;
  /// Kernel intervals of each kernel list, from the start of its pass (unscaled).
  std::vector<std::vector<OpTime>> kernel_times;
  /// Most utilised first: at most 8 between switches, then at most 8 of NICs and inside nodes.
  std::vector<LinkLoad> links;
  std::vector<LinkLoad> all_links;  ///< in the same order; if SimulatorOptions::keeps_all_links
  /// Links between switches where flows collided, longest limiting first: at most 8.
  std::vector<Collision> collisions;
  int collided_links = 0;    ///< of all links between switches that carried anything
  int loaded_links = 0;      ///< links between switches that carried anything
  int stalls = 0;            ///< flows that waited for a retry (faults)
  Duration longest_stall{};  ///< of them
  std::vector<int> rounds;   ///< of the other jobs: steps completed meanwhile
  /// Why the step failed: times hold only until then. Empty if it is complete.
  std::string failure;
  std::string fold_note;  ///< what was folded, or why not
  std::uint64_t events = 0;
  std::uint64_t solves = 0;        ///< max-min solves
  std::uint64_t solved_flows = 0;  ///< flows that they touched
};

/// Which ranks a Trace shows.
struct TraceRanks {
  enum class Kind {
    Class,
    All,
    List
  } kind = Kind::Class;  ///< Class: one per stage, and the slowest
  std::vector<RankId> list;
};

class Simulator final : public program::CostModel {
 public:
  /// `cluster` must outlive the simulator.
  Simulator(const topologies::Cluster& cluster, const SimulatorOptions& options);
  ~Simulator() override;

  /// Throws Error{InvalidInput} if the placement names devices that the cluster lacks.
  StepOutcome run(const program::Program& program, const program::Placement& placement) const;
  /// The outcome of the first job while the others run beside it. Requires at least one.
  StepOutcome run(std::span<const Job> jobs) const;

  Duration kernel(const Kernel& kernel, int nodes) const override;
  Duration collective(Collective kind, Bytes bytes,
                      std::span<const DeviceId> devices) const override;
  Duration message(Bytes bytes, DeviceId from, DeviceId to) const override;
  Duration step(const program::Program& program,
                const program::Placement& placement) const override;

 private:
  const topologies::Cluster& cluster_;
  SimulatorOptions options_;
};

/// Spans of the chosen ranks, kernels included; digests, version and fidelity are the caller's to
/// fill in.
program::Trace make_trace(const program::Program& program, const StepOutcome& outcome,
                          const TraceRanks& ranks);

}  // namespace foresail::sim

namespace foresail {
template <>
inline constexpr auto kNames<sim::Fidelity> = std::to_array<Named<sim::Fidelity>>(
    {{sim::Fidelity::Analytic, "analytic"}, {sim::Fidelity::Flow, "flow"}});
template <>
inline constexpr auto kNames<sim::Fold> =
    std::to_array<Named<sim::Fold>>({{sim::Fold::Auto, "auto"}, {sim::Fold::Off, "off"}});
}  // namespace foresail
