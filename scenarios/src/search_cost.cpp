#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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

/// Keeps as many networks as threads ask at a time, so that routes are made once for each. Which
/// one answers does not matter.
class SearchCost final : public program::CostModel {
 public:
  SearchCost(const planner::Plan& base, const topologies::Cluster& cluster)
      : options_(search_options(base)),
        cluster_(cluster),
        simulator_(cluster, options_),
        compute_(cluster.device(), nullptr, sim::host_share(cluster.node())) {}

  Duration kernel(const Kernel& kernel, int nodes) const override {
    return compute_.on_slowest_of(nodes).kernel(kernel);
  }

  Duration collective(Collective kind, Bytes bytes,
                      std::span<const DeviceId> devices) const override {
    if (devices.size() < 2) return Duration{};
    std::uint64_t key = mix64(devices.size());
    for (const DeviceId device : devices) key = mix64(key ^ device.value);
    const Borrowed borrowed(*this);
    return borrowed.network->alone(borrowed.network->collective(kind, bytes, devices, key));
  }

  Duration message(Bytes bytes, DeviceId from, DeviceId to) const override {
    if (from == to) return Duration{};
    const Borrowed borrowed(*this);
    return borrowed.network->alone(borrowed.network->message(from, to, bytes));
  }

  Duration step(const program::Program& program,
                const program::Placement& placement) const override {
    return simulator_.step(program, placement);
  }

 private:
  /// A network that no other thread has, for as long as this lives.
  struct Borrowed {
    explicit Borrowed(const SearchCost& from) : owner(from), network(from.borrow()) {}
    ~Borrowed() { owner.give_back(std::move(network)); }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    const SearchCost& owner;
    std::unique_ptr<sim::Network> network;
  };

  std::unique_ptr<sim::Network> borrow() const {
    {
      const std::lock_guard lock(guard_);
      if (!networks_.empty()) {
        std::unique_ptr<sim::Network> last = std::move(networks_.back());
        networks_.pop_back();
        return last;
      }
    }
    return std::make_unique<sim::Network>(cluster_, options_.network,
                                          sim::training_pace(cluster_.device()), options_.seed);
  }

  void give_back(std::unique_ptr<sim::Network> network) const {
    const std::lock_guard lock(guard_);
    networks_.push_back(std::move(network));
  }

  sim::SimulatorOptions options_;
  const topologies::Cluster& cluster_;
  sim::Simulator simulator_;
  sim::ComputeCost compute_;
  mutable std::mutex guard_;
  mutable std::vector<std::unique_ptr<sim::Network>> networks_;  // not in use
};

}  // namespace

std::unique_ptr<program::CostModel> search_cost(const planner::Plan& base,
                                                const topologies::Cluster& cluster) {
  return std::make_unique<SearchCost>(base, cluster);
}

}  // namespace foresail::scenarios
