#include "foresail/sim/network.h"

#include <algorithm>
#include <cmath>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::sim {
namespace {

constexpr double kTreeBandwidth = 0.92;
// Collectives up to this size are all latency: they load no link.
constexpr std::int64_t kLatencyOnlyBytes = 65536;

}  // namespace

Network::Network(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
                 const LineEfficiency& efficiency, std::uint64_t seed)
    : cluster_(cluster),
      options_(options),
      efficiency_(efficiency),
      paths_(cluster, options_, efficiency, seed, fluid_) {
  FORESAIL_EXPECT(options.qps_per_connection >= 1);
}

PipeId Network::add_resource(double capacity) {
  return fluid_.add_pipe(capacity);
}

TransferPlan Network::message(DeviceId from, DeviceId to, Bytes bytes) {
  FORESAIL_EXPECT(from != to);
  MessageRoutes& known = messages_[{from.value, to.value}];
  if (known.routes.empty()) {
    const bool is_hashed = options_.routing == topologies::Routing::Ecmp &&
                           cluster_.node_of(from) != cluster_.node_of(to);
    const int pairs = is_hashed ? options_.qps_per_connection : 1;
    const std::uint64_t base = mix64((std::uint64_t{from.value} << 32u) | to.value) << 8u;
    Load load;
    for (int q = 0; q < pairs; ++q) {
      const double weight = options_.split_data ? 1.0 / pairs : 1.0;
      paths_.add(from, to, base + static_cast<std::uint64_t>(q), weight, load);
      known.hops = std::max(known.hops, load.hops);
      if (options_.split_data && q + 1 < pairs) continue;
      known.routes.push_back(paths_.make_route(load));
      load = {};
    }
  }
  const topologies::CostConstants& constants = cluster_.device().constants;
  TransferPlan plan;
  plan.routes = known.routes;
  plan.amount = static_cast<double>(bytes.count()) / static_cast<double>(known.routes.size());
  plan.hops = known.hops;
  plan.latency = known.hops == 0 ? duration_from_seconds(constants.collective_step_us * 1e-6)
                                 : duration_from_seconds(constants.network_step_us * 1e-6) +
                                       (known.hops + 1) * cluster_.options().fabric.link_latency;
  return plan;
}

// Channels of a group: one per member within a node, each through its own NIC.
std::vector<std::vector<DeviceId>> Network::by_node(std::span<const DeviceId> devices) const {
  std::map<int, std::vector<DeviceId>> nodes;
  for (const DeviceId device : devices) nodes[cluster_.node_of(device)].push_back(device);
  std::vector<std::vector<DeviceId>> order;
  for (auto& [node, members] : nodes) order.push_back(std::move(members));
  return order;
}

RouteId Network::ring_route(const std::vector<std::vector<DeviceId>>& nodes, std::size_t channel,
                            std::uint64_t connection, int& hops) {
  Load load;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<DeviceId>& here = nodes[i];
    const std::size_t edges = nodes.size() == 1 ? here.size() : here.size() - 1;
    for (std::size_t j = 0; j < edges; ++j) {
      paths_.add(here[(j + channel) % here.size()], here[(j + channel + 1) % here.size()],
                 connection, 1.0, load);
    }
    if (nodes.size() == 1) break;
    const std::vector<DeviceId>& next = nodes[(i + 1) % nodes.size()];
    for (int q = 0; q < options_.qps_per_connection; ++q) {
      const std::uint64_t pair =
          mix64(connection + 1) + (channel << 8u) + static_cast<std::uint64_t>(q);
      paths_.add(here[channel % here.size()], next[channel % next.size()], pair,
                 1.0 / options_.qps_per_connection, load);
    }
  }
  hops = std::max(hops, load.hops);
  return paths_.make_route(load);
}

TransferPlan Network::collective(Collective kind, Bytes bytes, std::span<const DeviceId> devices,
                                 std::uint64_t connection) {
  const auto ranks = static_cast<double>(devices.size());
  FORESAIL_EXPECT(devices.size() > 1);
  FORESAIL_EXPECT(kind != Collective::AllToAll);
  const std::vector<std::vector<DeviceId>> nodes = by_node(devices);
  std::size_t channels = nodes.size() == 1 ? 1 : devices.size();
  std::size_t widest = 1;
  for (const auto& members : nodes) {
    if (nodes.size() > 1) channels = std::min(channels, members.size());
    widest = std::max(widest, members.size());
  }
  const topologies::CostConstants& constants = cluster_.device().constants;
  const auto count = static_cast<double>(nodes.size());
  const double rounds = kind == Collective::AllReduce ? 2 : 1;
  const double between = rounds * (count - 1);
  const double inside = rounds * (ranks - 1) - between;
  const double share = kind == Collective::Broadcast ? 1.0 : rounds * (ranks - 1) / ranks;
  const auto payload = static_cast<double>(bytes.count()) / static_cast<double>(channels);
  TransferPlan ring;
  ring.amount = share * payload;
  ring.latency = duration_from_seconds(1e-6 * (constants.collective_base_us +
                                               inside * constants.collective_step_us +
                                               between * constants.network_step_us));
  // The double binary tree: log2(nodes) hops up and down, 92 % of the ring's bandwidth (NCCL).
  TransferPlan tree = ring;
  tree.amount = 2 * payload / kTreeBandwidth;
  tree.latency = duration_from_seconds(
      1e-6 * (constants.collective_base_us +
              2 * (static_cast<double>(widest - 1) * constants.collective_step_us +
                   std::ceil(std::log2(count)) * constants.network_step_us)));
  const bool may_be_tree = kind == Collective::AllReduce;
  if (bytes.count() <= kLatencyOnlyBytes) {
    TransferPlan small = may_be_tree && tree.latency < ring.latency ? tree : ring;
    small.latency += duration_from_seconds(small.amount / slowest_edge(nodes.size() > 1));
    small.amount = 0;
    return small;
  }
  auto& [routes, hops] = rings_[connection];
  for (std::size_t c = 0; routes.size() < channels; ++c) {
    routes.push_back(ring_route(nodes, c, connection, hops));
  }
  ring.routes = tree.routes = routes;
  ring.hops = tree.hops = hops;
  return may_be_tree && alone(tree) < alone(ring) ? tree : ring;
}

double Network::slowest_edge(bool is_between_nodes) const {
  if (is_between_nodes) {
    return cluster_.node().nic_bandwidth.bytes_per_second() * efficiency_.nic;
  }
  const Bandwidth inside = cluster_.device().nvlink > Bandwidth{}
                               ? cluster_.device().nvlink
                               : cluster_.device().memory_bandwidth;
  return inside.bytes_per_second() * efficiency_.nvlink;
}

Duration Network::alone(const TransferPlan& plan) const {
  double longest = 0;
  for (const RouteId route : plan.routes) {
    longest = std::max(longest, plan.amount / fluid_.full_rate(route));
  }
  return plan.latency + duration_from_seconds(longest);
}

}  // namespace foresail::sim
