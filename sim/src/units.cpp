#include "units.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "coupling.h"
#include "fault_targets.h"
#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

using program::Axis;
using program::Placement;
using program::Program;
using topologies::Cluster;

constexpr auto kDp = static_cast<std::size_t>(Axis::Dp);
constexpr auto kPp = static_cast<std::size_t>(Axis::Pp);

Unit make_unit(const Program& program, int stage, int replica) {
  Unit unit{stage, replica, 1, {}};
  program::Coordinates at{};
  at[kDp] = replica;
  at[kPp] = stage;
  unit.ranks = program.grid.group(program.grid.rank(at), {Axis::Tp, Axis::Cp, Axis::Ep});
  return unit;
}

// Empty if no NIC and no host's cores are used by two replicas.
std::string shared_between_replicas(const Program& program, const Placement& placement,
                                    const Cluster& cluster) {
  std::map<std::uint32_t, int> owner;
  const bool is_cpu = cluster.device().kind == topologies::DeviceKind::Cpu;
  for (int r = 0; r < program.grid.world_size(); ++r) {
    const RankId rank{static_cast<std::uint32_t>(r)};
    const DeviceId device = placement.device_of[rank];
    const int replica = program.grid.coordinates(rank)[kDp];
    std::uint32_t resource = 0;
    if (is_cpu) {
      resource = static_cast<std::uint32_t>(cluster.node_of(device));
    } else if (cluster.node().nics > 0) {
      resource = cluster.nic_vertex(device).value;
    } else {
      continue;
    }
    const auto [entry, is_new] = owner.emplace(resource, replica);
    if (!is_new && entry->second != replica) {
      return is_cpu ? fmt::format("replicas {} and {} share the cores of a host", entry->second,
                                  replica)
                    : fmt::format("replicas {} and {} share {}", entry->second, replica,
                                  cluster.vertices()[VertexId{resource}].name());
    }
  }
  return {};
}

// Switches crossed by every message of one replica, stage by stage, rank by rank.
std::vector<int> message_hops(const Program& program, const Placement& placement, int replica,
                              const Network& network) {
  std::vector<int> hops;
  const int stages = program.grid.size(Axis::Pp);
  for (int stage = 0; stage < stages && stages > 1; ++stage) {
    const Unit from = make_unit(program, stage, replica);
    // The mirror image matters to schedules that sum gradients with it.
    const bool is_mirrored = program.stage_map == program::StageMap::Mirrored;
    const int mirror = is_mirrored ? stages - 1 - stage : stage;
    for (const int peer : {(stage + 1) % stages, (stage + stages - 1) % stages, mirror}) {
      if (peer == stage) continue;
      const Unit to = make_unit(program, peer, replica);
      for (std::size_t i = 0; i < from.ranks.size(); ++i) {
        hops.push_back(network.paths().hops(placement.device_of[from.ranks[i]],
                                            placement.device_of[to.ranks[i]]));
      }
    }
  }
  return hops;
}

// Switches between neighbours in the groups that hold copies of the replica's experts: replicas
// whose experts lie farther apart are not alike.
void add_expert_hops(const Program& program, const Placement& placement, int replica,
                     const Network& network, std::vector<int>& hops) {
  for (std::uint32_t c = 0; c < program.communicators.size(); ++c) {
    const program::Communicator& communicator = program.communicators[c];
    const bool spans = communicator.axes.has(Axis::Dp);
    if (communicator.grid == program::GridKind::Dense || !spans) continue;
    for (int stage = 0; stage < program.grid.size(Axis::Pp); ++stage) {
      for (const RankId rank : make_unit(program, stage, replica).ranks) {
        const auto members = program.members(program::CommunicatorId{c}, rank);
        for (std::size_t i = 1; i < members.size(); ++i) {
          hops.push_back(network.paths().hops(placement.device_of[members[i - 1]],
                                              placement.device_of[members[i]]));
        }
      }
    }
  }
}

std::string why_not_folded(const Program& program, const Placement& placement,
                           const Cluster& cluster, const SimulatorOptions& options,
                           const Network& network, std::size_t jobs) {
  if (options.fold == Fold::Off) return "--fold off";
  if (options.jitter.sigma > 0) return "every node has jitter of its own";
  if (options.fidelity == Fidelity::Analytic) return {};
  if (jobs > 1 || !options.traffic.empty()) return "others share the fabric";
  const auto is_of_link = [](const Fault& fault) { return fault.kind != FaultKind::GpuSlow; };
  const auto fault = std::ranges::find_if(options.faults, is_of_link);
  if (fault != options.faults.end()) {
    return fmt::format("{} of {}", to_string(fault->kind), fault->target);
  }
  const bool has_fabric = cluster.options().fabric.has_fabric() && cluster.options().nodes > 1;
  if (has_fabric && network.options().routing == topologies::Routing::Ecmp) {
    return "hashed routes differ between replicas (routing: ecmp)";
  }
  if (has_fabric && !network.paths().is_non_blocking()) return "the fabric is oversubscribed";
  return shared_between_replicas(program, placement, cluster);
}

// Replicas with a slow GPU, and its name.
std::map<int, std::string> slow_replicas(const Program& program, const Placement& placement,
                                         const Cluster& cluster, const SimulatorOptions& options) {
  std::map<std::uint32_t, std::string> slow;
  for (const Fault& fault : options.faults) {
    if (fault.kind != FaultKind::GpuSlow) continue;
    slow[device_named(cluster, fault.target).value] = fault.target;
  }
  std::map<int, std::string> replicas;
  if (slow.empty()) return replicas;
  for (int r = 0; r < program.grid.world_size(); ++r) {
    const RankId rank{static_cast<std::uint32_t>(r)};
    const auto found = slow.find(placement.device_of[rank].value);
    if (found != slow.end()) replicas[program.grid.coordinates(rank)[kDp]] = found->second;
  }
  return replicas;
}

// Classes that are alike in `class_of` (by replica) and in whom they share their shards with.
std::vector<int> with_partners(const Program& program, const std::vector<int>& class_of) {
  std::vector<std::vector<int>> traits(class_of.size());
  for (std::size_t r = 0; r < class_of.size(); ++r) traits[r] = {class_of[r]};
  for (const program::Communicator& communicator : program.communicators) {
    if (!is_cut_over_replicas(communicator)) continue;
    const std::vector<int> parts = replica_parts(program, communicator);
    std::map<int, std::vector<int>> members;  // classes, by part
    for (std::size_t r = 0; r < parts.size(); ++r) members[parts[r]].push_back(class_of[r]);
    for (auto& [part, classes] : members) std::ranges::sort(classes);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      traits[r].insert(traits[r].end(), members[parts[r]].begin(), members[parts[r]].end());
    }
  }
  std::map<std::vector<int>, int> known;
  std::vector<int> refined;
  for (std::vector<int>& each : traits) {
    refined.push_back(known.emplace(std::move(each), static_cast<int>(known.size())).first->second);
  }
  return refined;
}

}  // namespace

Units make_units(const Program& program, const Placement& placement, const Cluster& cluster,
                 const SimulatorOptions& options, const Network& network, std::size_t jobs) {
  const int replicas = program.grid.size(Axis::Dp);
  Units result;
  result.stages = program.grid.size(Axis::Pp);
  std::vector<int> representatives;
  std::vector<int> weights;
  const std::string reason =
      replicas == 1 ? std::string{}
                    : why_not_folded(program, placement, cluster, options, network, jobs);
  if (replicas == 1) {
    representatives = {0};
    weights = {1};
    result.note = "one replica";
  } else if (!reason.empty()) {
    for (int r = 0; r < replicas; ++r) representatives.push_back(r);
    weights.assign(representatives.size(), 1);
    result.note = fmt::format("unfolded, {} replicas: {}", replicas, reason);
  } else {
    const std::map<int, std::string> slow = slow_replicas(program, placement, cluster, options);
    std::map<std::vector<int>, int> classes;
    std::vector<int> class_of;
    for (int r = 0; r < replicas; ++r) {
      std::vector<int> traits = message_hops(program, placement, r, network);
      add_expert_hops(program, placement, r, network, traits);
      if (slow.contains(r)) traits.push_back(-1 - r);
      const auto entry = classes.emplace(std::move(traits), static_cast<int>(classes.size())).first;
      class_of.push_back(entry->second);
    }
    result.slot_of = with_partners(program, class_of);
    for (int r = 0; r < replicas; ++r) {
      const int slot = result.slot_of[static_cast<std::size_t>(r)];
      if (std::cmp_equal(slot, representatives.size())) {
        representatives.push_back(r);
        weights.push_back(0);
      }
      ++weights[static_cast<std::size_t>(slot)];
    }
    result.note = fmt::format("folded {} replicas into {} (alike in every route)", replicas,
                              representatives.size());
    for (const auto& [replica, gpu] : slow) {
      result.note += fmt::format("; replica {} stands alone: {} is slow", replica, gpu);
    }
  }
  if (result.slot_of.empty()) result.slot_of = representatives;
  for (std::size_t i = 0; i < representatives.size(); ++i) {
    for (int stage = 0; stage < result.stages; ++stage) {
      result.units.push_back(make_unit(program, stage, representatives[i]));
      result.units.back().replicas = weights[i];
    }
  }
  return result;
}

}  // namespace foresail::sim
