#include "foresail/sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/kernel_cost.h"
#include "foresail/sim/network.h"
#include "step_loop.h"

namespace foresail::sim {
namespace {

constexpr std::size_t kLinksShown = 8;  // of each kind

topologies::NetworkOptions effective(const SimulatorOptions& options) {
  topologies::NetworkOptions network = options.network;
  if (options.fidelity == Fidelity::Analytic) {  // nothing is shared
    network.routing = topologies::Routing::Spray;
    network.sharing = topologies::Sharing::MaxMin;
  }
  return network;
}

struct Loads {
  std::vector<LinkLoad> switches, edges;  // most utilised first
};

Loads loads_of(const Network& network, Duration iteration) {
  const SimTime end = SimTime{} + iteration;
  Loads loads;
  const FluidNetwork& fluid = network.fluid();
  for (std::uint32_t p = 0; p < fluid.pipe_count(); ++p) {
    const PipeId pipe{p};
    const double carried = fluid.carried(pipe, end);
    if (carried <= 0) continue;
    LinkLoad load;
    load.name = network.paths().pipe_name(pipe);
    if (load.name.empty()) continue;
    const double possible = fluid.capacity(pipe) * to_seconds(iteration);
    load.carried = Bytes(static_cast<std::int64_t>(carried));
    load.utilisation = possible > 0 ? carried / possible : 0;  // a link that is down at the end
    load.sharers_max = fluid.sharers_max(pipe);
    load.limiting = fluid.limiting_time(pipe, end);
    (network.paths().is_between_switches(pipe) ? loads.switches : loads.edges)
        .push_back(std::move(load));
  }
  for (std::vector<LinkLoad>* each : {&loads.switches, &loads.edges}) {
    std::ranges::stable_sort(*each, [](const LinkLoad& a, const LinkLoad& b) {
      return a.utilisation != b.utilisation ? a.utilisation > b.utilisation : a.name < b.name;
    });
  }
  return loads;
}

void add_links(const Network& network, bool keeps_all, StepOutcome& outcome) {
  const Loads loads = loads_of(network, outcome.iteration);
  for (const std::vector<LinkLoad>* each : {&loads.switches, &loads.edges}) {
    const std::size_t shown = std::min(each->size(), kLinksShown);
    outcome.links.insert(outcome.links.end(), each->begin(),
                         each->begin() + static_cast<std::ptrdiff_t>(shown));
    if (keeps_all) {
      outcome.all_links.insert(outcome.all_links.end(), each->begin(), each->end());
    }
  }
}

// Links between switches that slowed flows, the longest first.
void name_collisions(Network& network, StepOutcome& outcome) {
  const FluidNetwork& fluid = network.fluid();
  const SimTime end = SimTime{} + outcome.iteration;
  std::vector<std::pair<PipeId, Duration>> limiting;
  for (std::uint32_t p = 0; p < fluid.pipe_count(); ++p) {
    const PipeId pipe{p};
    if (!network.paths().is_between_switches(pipe) || fluid.carried(pipe, end) <= 0) continue;
    ++outcome.loaded_links;
    if (fluid.sharers_max(pipe) < 2) continue;
    ++outcome.collided_links;
    limiting.emplace_back(pipe, fluid.limiting_time(pipe, end));
  }
  std::ranges::stable_sort(limiting,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  if (limiting.size() > kLinksShown) limiting.resize(kLinksShown);
  for (const auto& [pipe, time] : limiting) {
    const Contention& worst = fluid.worst_moment(pipe);
    Collision collision{network.paths().pipe_name(pipe), worst.sharers, worst.when, time, {}};
    for (const RouteId route : worst.routes) {
      collision.names.push_back(network.paths().describe(route, pipe));
    }
    outcome.collisions.push_back(std::move(collision));
  }
}

void check_placements(std::span<const Job> jobs, const topologies::Cluster& cluster) {
  FORESAIL_EXPECT(!jobs.empty());
  for (const Job& job : jobs) {
    const int world = job.program->grid.world_size();
    const auto& device_of = job.placement->device_of;
    if (device_of.size() != static_cast<std::size_t>(world)) {
      throw Error(
          ErrorCode::InvalidInput,
          fmt::format("the placement has {} ranks, but the program {}", device_of.size(), world));
    }
    for (const DeviceId device : device_of) {
      if (device.value >= static_cast<std::uint32_t>(cluster.device_count())) {
        throw Error(ErrorCode::InvalidInput, fmt::format("the placement uses device {}, but the "
                                                         "cluster has {}",
                                                         device.value, cluster.device_count()));
      }
    }
  }
}

}  // namespace

Simulator::Simulator(const topologies::Cluster& cluster, const SimulatorOptions& options)
    : cluster_(cluster), options_(options) {}

Simulator::~Simulator() = default;

StepOutcome Simulator::run(const program::Program& program,
                           const program::Placement& placement) const {
  const Job job{&program, &placement};
  return run(std::span(&job, 1));
}

StepOutcome Simulator::run(std::span<const Job> jobs) const {
  check_placements(jobs, cluster_);
  Network network(cluster_, effective(options_), training_pace(cluster_.device()), options_.seed);
  StepLoop loop(cluster_, options_, network, jobs);
  loop.run();
  StepOutcome outcome = loop.take_outcome();
  add_links(network, options_.keeps_all_links, outcome);
  name_collisions(network, outcome);
  return outcome;
}

Duration Simulator::kernel(const Kernel& kernel, int nodes) const {
  return ComputeCost(cluster_.device(), options_.profile, host_share(cluster_.node()))
      .on_slowest_of(nodes)
      .kernel(kernel);
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
