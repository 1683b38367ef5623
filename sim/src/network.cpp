#include "foresail/sim/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/ecmp.h"

namespace foresail::sim {
namespace {

using topologies::Cluster;
using topologies::Link;
using topologies::Vertex;
using topologies::VertexKind;

// 4096 of 4096 + 82 bytes on the wire (facts: RoCEv2 headers, preamble and gap).
constexpr double kSwitchEfficiency = 0.98;
constexpr std::uint32_t kFirstQpn = 0x11;
constexpr double kTreeBandwidth = 0.92;
// Collectives up to this size are all latency: they load no link.
constexpr std::int64_t kLatencyOnlyBytes = 65536;

enum class Direction { LeafUp, LeafDown, PodUp, PodDown };

bool is_switch(const Cluster& cluster, VertexId vertex) {
  return cluster.vertices()[vertex].kind == VertexKind::Switch;
}

// Links from `at` to switches of a higher tier.
std::vector<LinkId> up_links(const Cluster& cluster, VertexId at) {
  std::vector<LinkId> up;
  const int tier = cluster.vertices()[at].tier;
  for (const LinkId link : cluster.out_links(at)) {
    const VertexId to = cluster.links()[link].to;
    if (is_switch(cluster, to) && cluster.vertices()[to].tier > tier) up.push_back(link);
  }
  return up;
}

// The switches above `at`, each once, in order.
std::vector<VertexId> parents(const Cluster& cluster, VertexId at) {
  std::vector<VertexId> above;
  for (const LinkId link : up_links(cluster, at)) above.push_back(cluster.links()[link].to);
  std::ranges::sort(above);
  const auto repeated = std::ranges::unique(above);
  above.erase(repeated.begin(), repeated.end());
  return above;
}

std::vector<LinkId> links_between(const Cluster& cluster, const std::vector<VertexId>& from,
                                  VertexId to) {
  std::vector<LinkId> found;
  for (const VertexId vertex : from) {
    for (const LinkId link : cluster.out_links(vertex)) {
      if (cluster.links()[link].to == to) found.push_back(link);
    }
  }
  return found;
}

// Links that leave (or, downwards, enter) the aggregation tier of the pod of `leaf`.
std::vector<LinkId> pod_links(const Cluster& cluster, VertexId leaf, Direction direction) {
  std::vector<LinkId> links;
  for (const VertexId aggregation : parents(cluster, leaf)) {
    const std::vector<LinkId> more =
        direction == Direction::PodUp
            ? up_links(cluster, aggregation)
            : links_between(cluster, parents(cluster, aggregation), aggregation);
    links.insert(links.end(), more.begin(), more.end());
  }
  return links;
}

}  // namespace

Network::Network(const Cluster& cluster, const topologies::NetworkOptions& options,
                 std::uint64_t seed)
    : cluster_(cluster), options_(options), seed_(seed), pipe_of_link_(cluster.links().size(), -1) {
  FORESAIL_EXPECT(options.qps_per_connection >= 1);
  if (cluster.options().fabric.tiers == 0) {
    is_non_blocking_ = true;
    return;
  }
  const auto& spec = cluster.options();
  const double down = spec.device.constants.nic * spec.node.nic_bandwidth.bytes_per_second() *
                      spec.fabric.nodes_per_leaf * spec.node.nics / spec.fabric.rails;
  const double up = kSwitchEfficiency * spec.fabric.uplink_bandwidth.bytes_per_second() *
                    spec.fabric.leaf_uplinks;
  bool is_enough = spec.fabric.tiers == 1 || up >= down;
  if (spec.fabric.tiers == 3) {
    const double pod_down = down * spec.fabric.leaves_per_pod;
    const double pod_up = kSwitchEfficiency * spec.fabric.uplink_bandwidth.bytes_per_second() *
                          spec.fabric.leaf_uplinks * spec.fabric.aggregation_uplinks;
    is_enough = is_enough && pod_up >= pod_down;
  }
  is_non_blocking_ = options.routing == topologies::Routing::Spray && is_enough;
}

PipeId Network::add_resource(double capacity) {
  return fluid_.add_pipe(capacity);
}

PipeId Network::pipe_of(LinkId link) {
  std::int32_t& known = pipe_of_link_[link.value];
  if (known >= 0) return PipeId{static_cast<std::uint32_t>(known)};
  const Link& cable = cluster_.links()[link];
  const auto kind = [&](VertexId v) { return cluster_.vertices()[v].kind; };
  const auto touches = [&](VertexKind wanted) {
    return kind(cable.from) == wanted || kind(cable.to) == wanted;
  };
  const topologies::CostConstants& constants = cluster_.device().constants;
  double efficiency = kSwitchEfficiency;
  if (touches(VertexKind::Nic)) efficiency = constants.nic;
  if (touches(VertexKind::NvSwitch) || touches(VertexKind::Host)) efficiency = constants.nvlink;
  const PipeId pipe = fluid_.add_pipe(cable.bandwidth.bytes_per_second() * efficiency);
  known = static_cast<std::int32_t>(pipe.value);
  link_of_pipe_.resize(pipe.value + 1, LinkId{~0u});
  link_of_pipe_[pipe.value] = link;
  return pipe;
}

PipeId Network::bundle(VertexId side, const std::vector<LinkId>& links, const std::string& name) {
  double capacity = 0;
  for (const LinkId link : links) capacity += cluster_.links()[link].bandwidth.bytes_per_second();
  const PipeId pipe = fluid_.add_pipe(capacity * kSwitchEfficiency);
  bundle_names_[pipe.value] =
      fmt::format("{} {} ({} links)", cluster_.vertices()[side].name(), name, links.size());
  return pipe;
}

std::string Network::pipe_name(PipeId pipe) const {
  if (const auto named = bundle_names_.find(pipe.value); named != bundle_names_.end()) {
    return named->second;
  }
  if (pipe.value < link_of_pipe_.size() && link_of_pipe_[pipe.value].value != ~0u) {
    return cluster_.link_name(link_of_pipe_[pipe.value]);
  }
  return {};
}

bool Network::is_between_switches(PipeId pipe) const {
  if (bundle_names_.contains(pipe.value)) return true;
  if (pipe.value >= link_of_pipe_.size() || link_of_pipe_[pipe.value].value == ~0u) return false;
  const Link& cable = cluster_.links()[link_of_pipe_[pipe.value]];
  return is_switch(cluster_, cable.from) && is_switch(cluster_, cable.to);
}

std::uint32_t Network::seed_of(VertexId at) const {
  const Rng rng(seed_);
  switch (options_.hash_seeds) {
    case topologies::HashSeeds::PerSwitch:
      return static_cast<std::uint32_t>(rng.stream("ecmp.switch", at.value).next());
    case topologies::HashSeeds::PerTier: {
      const int tier = cluster_.vertices()[at].tier;
      return static_cast<std::uint32_t>(
          rng.stream("ecmp.tier", static_cast<std::uint64_t>(tier)).next());
    }
    case topologies::HashSeeds::One:
      return static_cast<std::uint32_t>(rng.stream("ecmp.all").next());
  }
  return 0;
}

// Queue pair numbers count up per NIC in the order in which connections are made.
std::uint32_t Network::queue_pair(VertexId nic, std::uint64_t connection, bool is_sender) {
  const std::uint64_t side = (connection << 1u) | (is_sender ? 1u : 0u);
  const auto [entry, is_new] = qpns_.try_emplace({nic.value, side}, 0);
  if (is_new) entry->second = kFirstQpn + next_qpn_[nic.value]++;
  return entry->second;
}

void Network::add_fabric_hashed(DeviceId from, DeviceId to, std::uint64_t connection, double weight,
                                std::map<std::uint32_t, double>& load, int& hops) {
  const VertexId source = cluster_.nic_vertex(from);
  const VertexId destination = cluster_.nic_vertex(to);
  FiveTuple tuple{source.value, destination.value, 0};
  tuple.source_port = roce_source_port(queue_pair(source, connection, true),
                                       queue_pair(destination, connection, false));
  int switches = 0;
  for (VertexId at = source; at != destination;) {
    const std::span<const LinkId> next = cluster_.next_hops(at, destination);
    FORESAIL_EXPECT(!next.empty());
    std::size_t choice = 0;
    if (next.size() > 1) choice = hash_tuple(options_.hash, tuple, seed_of(at)) % next.size();
    load[pipe_of(next[choice]).value] += weight;
    at = cluster_.links()[next[choice]].to;
    switches += is_switch(cluster_, at) ? 1 : 0;
  }
  hops = std::max(hops, switches);
}

void Network::add_fabric_sprayed(DeviceId from, DeviceId to, double weight,
                                 std::map<std::uint32_t, double>& load, int& hops) {
  const VertexId source = cluster_.nic_vertex(from);
  const VertexId destination = cluster_.nic_vertex(to);
  const auto bundled = [&](VertexId side, Direction direction, const char* name, auto&& links) {
    const std::pair<std::uint32_t, int> key{side.value, static_cast<int>(direction)};
    auto found = bundles_.find(key);
    if (found == bundles_.end()) {
      found = bundles_.emplace(key, bundle(side, links(), name)).first;
    }
    load[found->second.value] += weight;
  };
  const LinkId out = cluster_.next_hops(source, destination)[0];
  const VertexId leaf = cluster_.links()[out].to;
  load[pipe_of(out).value] += weight;
  const LinkId down = cluster_.next_hops(destination, source)[0];
  const VertexId far_leaf = cluster_.links()[down].to;
  for (const LinkId link : cluster_.out_links(far_leaf)) {
    if (cluster_.links()[link].to == destination) load[pipe_of(link).value] += weight;
  }
  int switches = 1;
  if (leaf != far_leaf) {
    bundled(leaf, Direction::LeafUp, "up", [&] { return up_links(cluster_, leaf); });
    bundled(far_leaf, Direction::LeafDown, "down",
            [&] { return links_between(cluster_, parents(cluster_, far_leaf), far_leaf); });
    switches = 3;
    const VertexId pod = parents(cluster_, leaf).front();
    const VertexId far_pod = parents(cluster_, far_leaf).front();
    const auto next = cluster_.next_hops(pod, destination);
    if (cluster_.links()[next[0]].to != far_leaf) {
      bundled(pod, Direction::PodUp, "pod up",
              [&] { return pod_links(cluster_, leaf, Direction::PodUp); });
      bundled(far_pod, Direction::PodDown, "pod down",
              [&] { return pod_links(cluster_, far_leaf, Direction::PodDown); });
      switches = 5;
    }
  }
  hops = std::max(hops, switches);
}

void Network::add_edge(DeviceId from, DeviceId to, std::uint64_t connection, double weight,
                       std::map<std::uint32_t, double>& load, int& hops) {
  if (cluster_.node_of(from) == cluster_.node_of(to)) {
    for (const LinkId link : cluster_.intra_node_path(from, to)) {
      load[pipe_of(link).value] += weight;
    }
  } else if (options_.routing == topologies::Routing::Spray) {
    add_fabric_sprayed(from, to, weight, load, hops);
  } else {
    add_fabric_hashed(from, to, connection, weight, load, hops);
  }
}

RouteId Network::make_route(const std::map<std::uint32_t, double>& load) {
  std::vector<RouteEntry> entries;
  for (const auto& [pipe, weight] : load) entries.push_back({PipeId{pipe}, weight});
  return fluid_.add_route(entries);
}

TransferPlan Network::message(DeviceId from, DeviceId to, Bytes bytes) {
  FORESAIL_EXPECT(from != to);
  MessageRoutes& known = messages_[{from.value, to.value}];
  if (known.routes.empty()) {
    const bool is_hashed = options_.routing == topologies::Routing::Ecmp &&
                           cluster_.node_of(from) != cluster_.node_of(to);
    const int pairs = is_hashed ? options_.qps_per_connection : 1;
    const std::uint64_t base = mix64((std::uint64_t{from.value} << 32u) | to.value) << 8u;
    std::map<std::uint32_t, double> load;
    for (int q = 0; q < pairs; ++q) {
      const double weight = options_.split_data ? 1.0 / pairs : 1.0;
      add_edge(from, to, base + static_cast<std::uint64_t>(q), weight, load, known.hops);
      if (options_.split_data && q + 1 < pairs) continue;
      known.routes.push_back(make_route(load));
      load.clear();
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
  std::map<std::uint32_t, double> load;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<DeviceId>& here = nodes[i];
    const std::size_t edges = nodes.size() == 1 ? here.size() : here.size() - 1;
    for (std::size_t j = 0; j < edges; ++j) {
      add_edge(here[(j + channel) % here.size()], here[(j + channel + 1) % here.size()], connection,
               1.0, load, hops);
    }
    if (nodes.size() == 1) break;
    const std::vector<DeviceId>& next = nodes[(i + 1) % nodes.size()];
    for (int q = 0; q < options_.qps_per_connection; ++q) {
      const std::uint64_t pair =
          mix64(connection + 1) + (channel << 8u) + static_cast<std::uint64_t>(q);
      add_edge(here[channel % here.size()], next[channel % next.size()], pair,
               1.0 / options_.qps_per_connection, load, hops);
    }
  }
  return make_route(load);
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

int Network::hops(DeviceId from, DeviceId to) const {
  if (cluster_.node_of(from) == cluster_.node_of(to)) return 0;
  const VertexId destination = cluster_.nic_vertex(to);
  int switches = 0;
  for (VertexId at = cluster_.nic_vertex(from); at != destination;) {
    at = cluster_.links()[cluster_.next_hops(at, destination)[0]].to;
    switches += is_switch(cluster_, at) ? 1 : 0;
  }
  return switches;
}

double Network::slowest_edge(bool is_between_nodes) const {
  const topologies::CostConstants& constants = cluster_.device().constants;
  if (is_between_nodes) return cluster_.node().nic_bandwidth.bytes_per_second() * constants.nic;
  const Bandwidth inside = cluster_.device().nvlink > Bandwidth{}
                               ? cluster_.device().nvlink
                               : cluster_.device().memory_bandwidth;
  return inside.bytes_per_second() * constants.nvlink;
}

Duration Network::alone(const TransferPlan& plan) const {
  double longest = 0;
  for (const RouteId route : plan.routes) {
    longest = std::max(longest, plan.amount / fluid_.full_rate(route));
  }
  return plan.latency + duration_from_seconds(longest);
}

}  // namespace foresail::sim
