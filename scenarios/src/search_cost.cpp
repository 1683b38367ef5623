#include <mutex>

#include "foresail/base/rng.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/search.h"
#include "foresail/sim/compute_cost.h"
#include "foresail/sim/network.h"

namespace foresail::scenarios {
namespace {

sim::SimulatorOptions search_options(const planner::Plan& base) {
  sim::SimulatorOptions options = simulator_options(base, {});
  options.network.routing = topologies::Routing::Spray;
  options.network.tolerance = 0;
  return options;
}

/// Keeps one network, so that routes are made once for all questions.
class SearchCost final : public program::CostModel {
 public:
  SearchCost(const planner::Plan& base, const topologies::Cluster& cluster)
      : options_(search_options(base)),
        simulator_(cluster, options_),
        compute_(cluster.device(), nullptr),
        network_(cluster, options_.network, sim::training_pace(cluster.device()), options_.seed) {}

  Duration kernel(const Kernel& kernel, DeviceId) const override { return compute_.kernel(kernel); }

  Duration collective(Collective kind, Bytes bytes,
                      std::span<const DeviceId> devices) const override {
    if (devices.size() < 2) return Duration{};
    std::uint64_t key = mix64(devices.size());
    for (const DeviceId device : devices) key = mix64(key ^ device.value);
    const std::lock_guard lock(guard_);
    return network_.alone(network_.collective(kind, bytes, devices, key));
  }

  Duration message(Bytes bytes, DeviceId from, DeviceId to) const override {
    if (from == to) return Duration{};
    const std::lock_guard lock(guard_);
    return network_.alone(network_.message(from, to, bytes));
  }

  Duration step(const program::Program& program,
                const program::Placement& placement) const override {
    return simulator_.step(program, placement);
  }

 private:
  sim::SimulatorOptions options_;
  sim::Simulator simulator_;
  sim::ComputeCost compute_;
  mutable std::mutex guard_;
  mutable sim::Network network_;  // remembers routes
};

}  // namespace

std::unique_ptr<program::CostModel> search_cost(const planner::Plan& base,
                                                const topologies::Cluster& cluster) {
  return std::make_unique<SearchCost>(base, cluster);
}

}  // namespace foresail::scenarios
