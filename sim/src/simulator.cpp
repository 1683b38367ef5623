#include "foresail/sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/kernel_cost.h"
#include "foresail/sim/network.h"
#include "step_engine.h"
#include "units.h"

namespace foresail::sim {
namespace {

constexpr std::size_t kLinksShown = 8;  // of each kind

topologies::NetworkOptions effective(const SimulatorOptions& options) {
  topologies::NetworkOptions network = options.network;
  if (options.fidelity == Fidelity::Analytic) network.routing = topologies::Routing::Spray;
  return network;
}

// The most utilised links between switches first, then those of NICs and inside nodes.
std::vector<LinkLoad> most_loaded(const Network& network, Duration iteration) {
  std::vector<LinkLoad> switches;
  std::vector<LinkLoad> edges;
  const FluidNetwork& fluid = network.fluid();
  for (std::uint32_t p = 0; p < fluid.pipe_count(); ++p) {
    const PipeId pipe{p};
    if (fluid.carried(pipe) <= 0) continue;
    LinkLoad load;
    load.name = network.paths().pipe_name(pipe);
    if (load.name.empty()) continue;
    load.carried = Bytes(static_cast<std::int64_t>(fluid.carried(pipe)));
    load.utilisation = fluid.carried(pipe) / (fluid.capacity(pipe) * to_seconds(iteration));
    load.sharers_max = fluid.sharers_max(pipe);
    (network.paths().is_between_switches(pipe) ? switches : edges).push_back(std::move(load));
  }
  for (std::vector<LinkLoad>* loads : {&switches, &edges}) {
    std::ranges::stable_sort(*loads, [](const LinkLoad& a, const LinkLoad& b) {
      return a.utilisation != b.utilisation ? a.utilisation > b.utilisation : a.name < b.name;
    });
    if (loads->size() > kLinksShown) loads->resize(kLinksShown);
  }
  switches.insert(switches.end(), edges.begin(), edges.end());
  return switches;
}

}  // namespace

Simulator::Simulator(const topologies::Cluster& cluster, const SimulatorOptions& options)
    : cluster_(cluster), options_(options) {}

Simulator::~Simulator() = default;

StepOutcome Simulator::run(const program::Program& program,
                           const program::Placement& placement) const {
  const int world = program.grid.world_size();
  if (placement.device_of.size() != static_cast<std::size_t>(world)) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("the placement has {} ranks, but the program {}",
                            placement.device_of.size(), world));
  }
  for (const DeviceId device : placement.device_of) {
    if (device.value >= static_cast<std::uint32_t>(cluster_.device_count())) {
      throw Error(ErrorCode::InvalidInput, fmt::format("the placement uses device {}, but the "
                                                       "cluster has {}",
                                                       device.value, cluster_.device_count()));
    }
  }
  Network network(cluster_, effective(options_), training_pace(cluster_.device()), options_.seed);
  Units units = make_units(program, placement, cluster_, options_, network);
  StepEngine engine({program, placement, cluster_, options_}, network, std::move(units));
  engine.run();
  StepOutcome outcome = engine.outcome();
  outcome.links = most_loaded(network, outcome.iteration);
  return outcome;
}

Duration Simulator::kernel(const Kernel& kernel, DeviceId) const {
  return ComputeCost(cluster_.device(), options_.profile).kernel(kernel);
}

Duration Simulator::collective(Collective kind, Bytes bytes,
                               std::span<const DeviceId> devices) const {
  if (devices.size() < 2) return Duration{};
  Network network(cluster_, effective(options_), training_pace(cluster_.device()), options_.seed);
  return network.alone(network.collective(kind, bytes, devices, 1));
}

Duration Simulator::message(Bytes bytes, DeviceId from, DeviceId to) const {
  if (from == to) return Duration{};
  Network network(cluster_, effective(options_), training_pace(cluster_.device()), options_.seed);
  return network.alone(network.message(from, to, bytes));
}

Duration Simulator::step(const program::Program& program,
                         const program::Placement& placement) const {
  return run(program, placement).iteration;
}

}  // namespace foresail::sim
