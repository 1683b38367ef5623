#include "foresail/sim/network.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "path_latency.h"
#include "pfc_rule.h"

namespace foresail::sim {
namespace {

using topologies::Algorithm;
using topologies::Protocol;

// Of the bandwidth that links give a tree (NCCL: src/graph/tuning.cc).
constexpr double kTreeBandwidth = 0.92;
// Collectives up to this size are all latency: they load no link.
constexpr std::int64_t kLatencyOnlyBytes = 65536;
// A message of NCCL's: one step of a ring by Simple.
constexpr double kMessageInsideUs = 3.4, kMessageBetweenUs = 14;

Duration microseconds(double value) {
  return duration_from_seconds(value * 1e-6);
}

// Bytes on the wire per byte of data: LL sends a flag with each 4 bytes, LL128 8 in 128.
double wire_factor(Protocol protocol) {
  if (protocol == Protocol::Ll) return 2;
  return protocol == Protocol::Ll128 ? 128.0 / 120 : 1;
}

}  // namespace

NetworkPace training_pace(const topologies::DeviceSpec& device) {
  const topologies::CostConstants& constants = device.constants;
  NetworkPace pace;
  pace.efficiency.nvlink = constants.nvlink;
  pace.efficiency.nic = constants.nic;
  pace.fitted = StepLatency{constants.collective_base_us, constants.collective_step_us,
                            constants.network_step_us};
  return pace;
}

NetworkPace nccl_pace(const topologies::DeviceSpec& device) {
  NetworkPace pace;
  const bool has_nvlink = device.nvlink > Bandwidth{};
  pace.efficiency.nvlink =
      has_nvlink ? nvlink_fraction(device.nccl.generation) : device.constants.nvlink;
  pace.efficiency.nic = kNicFraction;
  return pace;
}

Network::Network(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
                 const NetworkPace& pace, std::uint64_t seed)
    : cluster_(cluster),
      options_(options),
      pace_(pace),
      fluid_(FluidOptions{.tolerance = options.tolerance}),
      paths_(cluster, options_, pace_.efficiency, seed, fluid_),
      routes_(cluster, options_, paths_) {
  FORESAIL_EXPECT(options.qps_per_connection >= 1);
  if (options.sharing == topologies::Sharing::Pfc) {
    topologies::check_sharing(options);
    fluid_.set_rule(std::make_unique<PfcRule>(paths_, fluid_));
  }
  for (const auto& [link, fraction] : pace_.slow_links) {
    FORESAIL_EXPECT(fraction > 0);
    FORESAIL_EXPECT(fraction <= 1);
    slowdown_[paths_.pipe_of(link).value] = 1 / fraction;
  }
}

PipeId Network::add_resource(double capacity) {
  return fluid_.add_pipe(capacity);
}

// Whether the fitted latencies hold: the user left the choice to NCCL.
bool Network::is_fitted() const {
  const topologies::NcclOptions& nccl = options_.nccl;
  return pace_.fitted && nccl.algorithm == Algorithm::Auto && nccl.protocol == Protocol::Auto &&
         nccl.channels == 0;
}

Network::Channels Network::make_channels(const std::vector<Load>& loads,
                                         std::span<const double> amounts) {
  Channels channels;
  std::map<std::uint32_t, double> total;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    Load load = loads[i];
    for (auto& [pipe, weight] : load.pipes) {
      const auto slow = slowdown_.find(pipe);
      if (slow != slowdown_.end()) {
        weight *= slow->second;
        for (Way& way : load.ways) {
          for (RouteEntry& entry : way) {
            if (entry.pipe.value == pipe) entry.weight *= slow->second;
          }
        }
      }
      total[pipe] += weight * (amounts.empty() ? 1 : amounts[i]);
    }
    channels.routes.push_back(paths_.make_route(load));
    channels.hops = std::max(channels.hops, loads[i].hops);
  }
  for (const auto& [pipe, weight] : total) {
    // NCCL chooses when it starts, on a healthy fabric.
    channels.pace = std::max(channels.pace, weight / paths_.healthy_rate(PipeId{pipe}));
  }
  return channels;
}

TransferPlan Network::message(DeviceId from, DeviceId to, Bytes bytes) {
  FORESAIL_EXPECT(from != to);
  const bool is_between = cluster_.node_of(from) != cluster_.node_of(to);
  Channels& known = messages_[{from.value, to.value}];
  if (known.routes.empty()) {
    const bool is_hashed = options_.routing == topologies::Routing::Ecmp && is_between;
    const int pairs = is_hashed ? options_.qps_per_connection : 1;
    const std::uint64_t base = mix64((std::uint64_t{from.value} << 32u) | to.value) << 8u;
    std::vector<Load> loads(1);
    for (int q = 0; q < pairs; ++q) {
      if (!options_.split_data && q > 0) loads.emplace_back();
      const double weight = options_.split_data ? 1.0 / pairs : 1.0;
      paths_.add(from, to, base + static_cast<std::uint64_t>(q), weight, loads.back());
    }
    known = make_channels(loads, {});
  }
  TransferPlan plan;
  plan.routes = known.routes;
  plan.amount = static_cast<double>(bytes.count()) / static_cast<double>(known.routes.size());
  plan.hops = known.hops;
  plan.link_seconds = plan.amount * known.pace;
  if (pace_.fitted) {
    plan.latency =
        microseconds(known.hops == 0 ? pace_.fitted->inside : pace_.fitted->between_nodes);
  } else {
    const double nic = 2e6 * to_seconds(cluster_.node().nic_latency);
    plan.latency = microseconds(cluster_.device().nccl.latency_factor *
                                (is_between ? kMessageBetweenUs + nic : kMessageInsideUs));
  }
  if (known.hops > 0 && pace_.fitted) {
    plan.latency += (known.hops + 1) * cluster_.options().fabric.link_latency;
  } else if (is_between) {
    const Duration way = path_latency(cluster_, from, to).value_or(kTabledPath);
    plan.latency += std::max(Duration{}, way - kTabledPath);
  }
  return plan;
}

CollectiveGroup Network::group_of(std::span<const DeviceId> devices,
                                  std::uint64_t connection) const {
  // Nodes in the order of the ranks, as NCCL has them: it knows no switches.
  std::map<int, std::size_t> position;
  CollectiveGroup group;
  for (const DeviceId device : devices) {
    const auto [at, is_new] = position.emplace(cluster_.node_of(device), group.nodes.size());
    if (is_new) group.nodes.emplace_back();
    group.nodes[at->second].push_back(device);
  }
  group.connection = connection;
  return group;
}

// The GPUs of a node whose NICs carry the channels: NICs in turn, spread evenly; on one node all
// channels run the same way, so that one stands for them.
void Network::lay_heads(CollectiveGroup& group, int channels) const {
  group.heads.clear();
  if (group.nodes.size() == 1) {
    group.heads.push_back(0);
    return;
  }
  std::vector<std::vector<int>> by_nic;  // positions that use one NIC
  std::map<std::uint32_t, std::size_t> index;
  for (int m = 0; m < static_cast<int>(group.narrowest()); ++m) {
    if (std::ranges::find(pace_.missing_nics, m) != pace_.missing_nics.end()) continue;
    const std::uint32_t nic =
        cluster_.nic_vertex(group.nodes.front()[static_cast<std::size_t>(m)]).value;
    const auto [entry, is_new] = index.try_emplace(nic, by_nic.size());
    if (is_new) by_nic.emplace_back();
    by_nic[entry->second].push_back(m);
  }
  if (by_nic.empty()) {
    throw Error(ErrorCode::InvalidInput, "no NIC is left to the group's channels");
  }
  const std::size_t nics = by_nic.size();
  const auto count = static_cast<std::size_t>(channels);
  for (std::size_t c = 0; c < count; ++c) {
    const std::size_t nic = count < nics ? c * nics / count : c % nics;
    const std::vector<int>& members = by_nic[nic];
    group.heads.push_back(members[(c / nics) % members.size()]);
  }
}

NcclShape Network::shape_of(const CollectiveGroup& group) const {
  const topologies::DeviceSpec& device = cluster_.device();
  const topologies::NodeSpec& node = cluster_.node();
  NcclShape shape;
  shape.generation = device.nccl.generation;
  shape.cpu = node.cpu_vendor;
  shape.ranks = static_cast<int>(group.ranks());
  shape.nodes = static_cast<int>(group.nodes.size());
  shape.has_nvlink = device.nvlink > Bandwidth{};
  shape.nvlink = slowest_edge(false) / 1e9;
  shape.gpudirect = options_.nccl.gpudirect;
  shape.channels = options_.nccl.channels;
  if (shape.nodes == 1) return shape;
  std::set<std::uint32_t> nics;
  for (std::size_t m = 0; m < group.narrowest(); ++m) {
    const auto position = static_cast<int>(m);
    if (std::ranges::find(pace_.missing_nics, position) != pace_.missing_nics.end()) continue;
    nics.insert(cluster_.nic_vertex(group.nodes.front()[m]).value);
  }
  shape.nics = std::max(1, static_cast<int>(nics.size()));
  shape.nic = slowest_edge(true) / 1e9;
  shape.nic_latency_us = to_seconds(node.nic_latency) * 1e6;
  if (node.nccl_latency) shape.told_latency_us = to_seconds(*node.nccl_latency) * 1e6;
  return shape;
}

NcclShape Network::shape(std::span<const DeviceId> devices) const {
  return shape_of(group_of(devices, 0));
}

const Network::Channels& Network::channels_of(Algorithm algorithm, Collective kind,
                                              const CollectiveGroup& group) {
  const bool depends_on_kind = algorithm == Algorithm::Nvls || algorithm == Algorithm::Hierarchical;
  const ChannelKey key{group.connection, algorithm, depends_on_kind ? kind : Collective::AllReduce,
                       static_cast<int>(group.heads.size())};
  const auto [entry, is_new] = channels_.try_emplace(key);
  if (!is_new) return entry->second;
  std::vector<Load> loads;
  switch (algorithm) {
    case Algorithm::Tree:
      loads = routes_.tree(group);
      break;
    case Algorithm::Nvls:
      loads = routes_.nvls(group, kind);
      break;
    case Algorithm::NvlsTree:
      loads = routes_.nvls_tree(group);
      break;
    case Algorithm::Hierarchical:
      loads = routes_.hierarchical(group, kind);
      break;
    case Algorithm::Pat:
      loads = routes_.pat(group);
      break;
    case Algorithm::Auto:
    case Algorithm::Ring:
    case Algorithm::Pairwise:
      loads = routes_.ring(group);
      break;
  }
  entry->second = make_channels(loads, {});
  return entry->second;
}

// Bytes per flow of an algorithm (CollectiveRoutes says what a flow's amount is).
TransferPlan Network::volume(Collective kind, Algorithm algorithm, Bytes bytes,
                             CollectiveGroup& group) {
  const auto size = static_cast<double>(bytes.count());
  const auto ranks = static_cast<double>(group.ranks());
  const auto flows = static_cast<double>(group.heads.size());
  const double rounds = kind == Collective::AllReduce ? 2 : 1;
  TransferPlan plan;
  plan.algorithm = algorithm;
  switch (algorithm) {
    case Algorithm::Tree:
    case Algorithm::NvlsTree:
      plan.amount = size / (2 * flows);
      break;
    case Algorithm::Nvls:
    case Algorithm::Pat:
      plan.amount = size;
      break;
    case Algorithm::Hierarchical:
      plan.amount = size / flows;
      break;
    case Algorithm::Auto:
    case Algorithm::Ring:
    case Algorithm::Pairwise: {
      const double share = kind == Collective::Broadcast ? 1.0 : rounds * (ranks - 1) / ranks;
      plan.amount = share * (size / flows);
      break;
    }
  }
  return plan;
}

// Ring or tree by Simple, whichever is faster alone, with the fitted latencies.
TransferPlan Network::fitted_collective(Collective kind, Bytes bytes, CollectiveGroup& group) {
  lay_heads(group, static_cast<int>(group.narrowest()));
  const auto ranks = static_cast<double>(group.ranks());
  const auto count = static_cast<double>(group.nodes.size());
  const StepLatency& steps = *pace_.fitted;
  const double rounds = kind == Collective::AllReduce ? 2 : 1;
  const double between = rounds * (count - 1);
  const double inside = rounds * (ranks - 1) - between;
  std::size_t widest = 1;
  for (const auto& members : group.nodes) widest = std::max(widest, members.size());
  TransferPlan ring = volume(kind, Algorithm::Ring, bytes, group);
  ring.latency = microseconds(steps.base + inside * steps.inside + between * steps.between_nodes);
  TransferPlan tree = volume(kind, Algorithm::Tree, bytes, group);
  tree.latency = microseconds(steps.base + 2 * (static_cast<double>(widest - 1) * steps.inside +
                                                std::ceil(std::log2(count)) * steps.between_nodes));
  const bool may_be_tree = kind == Collective::AllReduce;
  ring.protocol = tree.protocol = Protocol::Simple;
  ring.channels = tree.channels = static_cast<int>(group.heads.size());
  if (bytes.count() <= kLatencyOnlyBytes) {
    TransferPlan small = may_be_tree && tree.latency < ring.latency ? tree : ring;
    const double flows = small.algorithm == Algorithm::Tree ? 4 / kTreeBandwidth : 1;
    small.latency +=
        duration_from_seconds(flows * small.amount / slowest_edge(group.nodes.size() > 1));
    small.amount = 0;
    return small;
  }
  const auto fill_in = [&](TransferPlan& plan) {
    const Channels& channels = channels_of(plan.algorithm, kind, group);
    plan.routes = channels.routes;
    plan.hops = channels.hops;
    plan.link_seconds = plan.amount * channels.pace;
  };
  fill_in(ring);
  if (!may_be_tree || tree.latency >= ring.latency) return ring;
  // A tree may need half of what a ring does of the busiest link (two nodes), never less: routes
  // are made only for a tree that can win.
  const double least = 0.5 * ring.link_seconds / kTreeBandwidth;
  if (to_seconds(tree.latency) + least >= to_seconds(alone(ring))) return ring;
  fill_in(tree);
  tree.copies = duration_from_seconds(tree.link_seconds * (1 / kTreeBandwidth - 1));
  tree.latency += tree.copies;
  return alone(tree) < alone(ring) ? tree : ring;
}

// What cables and switches add to NCCL's steps. Not in training steps, whose replicas are folded by
// the hops of their messages alone.
Duration Network::delay_of(const NcclCost& cost, const CollectiveGroup& group) {
  if (pace_.fitted || cost.steps_between <= 0) return {};
  const auto [known, is_new] = step_delays_.try_emplace(group.connection);
  if (is_new) known->second = step_delay(cluster_, group);
  const bool is_ring =
      cost.algorithm == Algorithm::Ring || cost.algorithm == Algorithm::Hierarchical;
  const Duration step = is_ring ? known->second.ring : known->second.slowest;
  return std::llround(cost.steps_between) * step;
}

// NCCL connects each ring that its search found twice (src/graph/connect.cc, ncclTopoPostset), with
// queue pairs of its own; both trees of a channel are such a pair already. It matters where queue
// pairs are hashed. Channels that the user counts are connections.
void Network::connect_rings_twice(CollectiveGroup& group) const {
  if (options_.routing != topologies::Routing::Ecmp || options_.nccl.channels > 0) return;
  if (group.nodes.size() == 1) return;
  const std::vector<int> found = group.heads;
  group.heads.insert(group.heads.end(), found.begin(), found.end());
}

TransferPlan Network::tuned_collective(Collective kind, Bytes bytes, CollectiveGroup& group) {
  const NcclShape shape = shape_of(group);
  const NcclCost cost = choose(kind, bytes, shape, options_.nccl);
  const topologies::NcclSpec& fitted = cluster_.device().nccl;
  const bool is_by_heads =
      cost.algorithm == Algorithm::NvlsTree || cost.algorithm == Algorithm::Hierarchical;
  const int members = static_cast<int>(group.narrowest());
  lay_heads(group, is_by_heads ? members : cost.channels);
  if (cost.algorithm == Algorithm::Ring) connect_rings_twice(group);
  TransferPlan plan = volume(kind, cost.algorithm, bytes, group);
  plan.protocol = cost.protocol;
  plan.channels = cost.channels;
  plan.amount *= wire_factor(cost.protocol);
  plan.latency = microseconds(fitted.launch_us + fitted.latency_factor * cost.latency_us) +
                 delay_of(cost, group);
  const auto size = static_cast<double>(bytes.count());
  if (bytes.count() <= kLatencyOnlyBytes) {
    plan.copies = microseconds(size / (1000 * cost.bandwidth));
    plan.amount = 0;
  } else {
    const Channels& channels = channels_of(cost.algorithm, kind, group);
    plan.routes = channels.routes;
    plan.hops = channels.hops;
    plan.link_seconds = plan.amount * channels.pace;
    const double copying = size / (1e9 * cost.copy_bandwidth);
    plan.copies = duration_from_seconds(std::max(0.0, copying - plan.link_seconds)) +
                  microseconds(cost.fill_us);
  }
  plan.latency += plan.copies;
  return plan;
}

TransferPlan Network::collective(Collective kind, Bytes bytes, std::span<const DeviceId> devices,
                                 std::uint64_t connection) {
  FORESAIL_EXPECT(devices.size() > 1);
  if (kind == Collective::AllToAll) {
    const std::size_t ranks = devices.size();
    const double each = static_cast<double>(bytes.count()) / static_cast<double>(ranks);
    return all_to_all({ranks, std::vector<double>(ranks * ranks, each)}, devices, connection);
  }
  if (kind == Collective::SendRecv) return send_recv(bytes, devices, connection);
  CollectiveGroup group = group_of(devices, connection);
  if (is_fitted()) return fitted_collective(kind, bytes, group);
  return tuned_collective(kind, bytes, group);
}

double Network::slowest_edge(bool is_between_nodes) const {
  if (is_between_nodes) {
    return cluster_.node().nic_bandwidth.bytes_per_second() * pace_.efficiency.nic;
  }
  const Bandwidth inside = cluster_.device().nvlink > Bandwidth{}
                               ? cluster_.device().nvlink
                               : cluster_.device().memory_bandwidth;
  return inside.bytes_per_second() * pace_.efficiency.nvlink;
}

Duration Network::alone(const TransferPlan& plan) const {
  return plan.latency + duration_from_seconds(plan.link_seconds);
}

Duration Network::together(std::span<const TransferPlan> plans) const {
  Duration latency{};
  double seconds = 0;
  std::map<std::uint32_t, double> loads;  // by pipe
  for (const TransferPlan& plan : plans) {
    latency = std::max(latency, plan.latency);
    seconds = std::max(seconds, plan.link_seconds);
    for (std::size_t r = 0; r < plan.routes.size(); ++r) {
      const double amount = plan.amounts.empty() ? plan.amount : plan.amounts[r];
      for (const RouteEntry& entry : fluid_.route(plan.routes[r])) {
        loads[entry.pipe.value] += entry.weight * amount;
      }
    }
  }
  for (const auto& [pipe, load] : loads) {
    seconds = std::max(seconds, load / paths_.healthy_rate(PipeId{pipe}));
  }
  return latency + duration_from_seconds(seconds);
}

}  // namespace foresail::sim
