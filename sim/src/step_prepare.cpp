#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "step_engine.h"

namespace foresail::sim {
namespace {

using program::CommunicatorId;
using program::Op;
using program::OpKind;

std::uint64_t connection_of(std::span<const DeviceId> devices) {
  std::uint64_t key = 0x7470;
  for (const DeviceId device : devices) key = mix64(key ^ device.value);
  return key;
}

}  // namespace

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
  return network_.alone(network_.collective(kind, bytes, devices, connection_of(devices)));
}

// Of the groups of all ranks of a stage, each once.
std::vector<std::vector<DeviceId>> StepEngine::groups_of(CommunicatorId communicator,
                                                         int stage) const {
  const program::Program& program = context_.program;
  std::vector<std::vector<DeviceId>> groups;
  std::vector<bool> is_seen(static_cast<std::size_t>(program.grid.world_size()));
  for (std::uint32_t r = 0; r < is_seen.size(); ++r) {
    const auto at = program.grid.coordinates(RankId{r});
    if (at[static_cast<std::size_t>(program::Axis::Pp)] != stage || is_seen[r]) continue;
    for (const RankId member : program.members(communicator, RankId{r})) {
      is_seen[member.value] = true;
    }
    groups.push_back(devices_of(communicator, RankId{r}));
  }
  return groups;
}

// Experts' groups span replicas, and all groups of a stage exchange at the same time: alone they
// end with the slowest; at `flow` they also share links.
Duration StepEngine::exchange_time(CommunicatorId communicator, int stage, const Kernel& kernel) {
  const auto [known, is_new] = exchange_times_.try_emplace(
      {communicator.value, stage, kernel.collective, kernel.bytes.count()});
  if (!is_new) return known->second;
  const bool shares = context_.options.fidelity == Fidelity::Flow;
  std::vector<TransferPlan> plans;
  for (const std::vector<DeviceId>& devices : groups_of(communicator, stage)) {
    const Duration measured = host_transfer(std::string(to_string(kernel.collective)),
                                            static_cast<int>(devices.size()), kernel.bytes);
    if (measured.count() >= 0) {
      known->second = std::max(known->second, measured);
      continue;
    }
    plans.push_back(
        network_.collective(kernel.collective, kernel.bytes, devices, connection_of(devices)));
    if (!shares) known->second = std::max(known->second, network_.alone(plans.back()));
  }
  if (shares && !plans.empty()) {
    known->second = std::max(known->second, network_.together(plans));
  }
  return known->second;
}

Duration StepEngine::kernel_time(const Kernel& kernel, int stage, RankId rank) {
  const program::Program& program = context_.program;
  for (std::uint32_t c = 0; c < program.communicators.size(); ++c) {
    if (program.communicators[c].name != program::communicator_of(kernel)) continue;
    const CommunicatorId id{c};
    if (program.communicators[c].grid == program::GridKind::Expert) {
      return exchange_time(id, stage, kernel);
    }
    const std::vector<DeviceId> devices = devices_of(id, rank);
    if (devices.size() < 2) continue;
    return collective_time(kernel.collective, kernel.bytes, devices);
  }
  return {};
}

// Collectives inside a pass are timed on the group of the stage's first simulated unit; those of
// experts on all groups of the stage.
void StepEngine::prepare_kernels() {
  const program::Program& program = context_.program;
  passes_.resize(program.kernel_lists.size());
  std::vector<bool> is_known(passes_.size(), false);
  const PassCost cost(compute_, context_.options.host_per_kernel);
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    const int stage = static_cast<int>(s);
    const RankId rank = units_.units[units_.index(0, stage)].ranks.front();
    for (const Op& each : program.stages[s].ops) {
      if (each.kind != OpKind::Compute || is_known[each.kernels.value]) continue;
      is_known[each.kernels.value] = true;
      const std::vector<Kernel>& kernels = program.kernel_lists[each.kernels.value].kernels;
      std::vector<Duration> times(kernels.size());
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        if (kernels[i].kind != KernelKind::Collective) continue;
        times[i] = kernel_time(kernels[i], stage, rank);
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

}  // namespace foresail::sim
