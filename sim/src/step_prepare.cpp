#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "step_engine.h"

namespace foresail::sim {
namespace {

using program::CommunicatorId;
using program::Op;
using program::OpKind;

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

}  // namespace foresail::sim
