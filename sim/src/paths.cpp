#include "foresail/sim/paths.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/ecmp.h"

namespace foresail::sim {
namespace {

using topologies::Cluster;
using topologies::Link;
using topologies::Vertex;
using topologies::VertexKind;

constexpr std::uint32_t kFirstQpn = 0x11;

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

Paths::Paths(const Cluster& cluster, const topologies::NetworkOptions& options,
             const LineEfficiency& efficiency, std::uint64_t seed, FluidNetwork& fluid)
    : cluster_(cluster),
      options_(options),
      efficiency_(efficiency),
      seed_(seed),
      fluid_(fluid),
      pipe_of_link_(cluster.links().size(), -1) {
  FORESAIL_EXPECT(options.qps_per_connection >= 1);
  if (cluster.options().fabric.tiers == 0) {
    is_non_blocking_ = true;
    return;
  }
  const auto& spec = cluster.options();
  const double down = efficiency.nic * spec.node.nic_bandwidth.bytes_per_second() *
                      spec.fabric.nodes_per_leaf * spec.node.nics / spec.fabric.rails;
  const double up = efficiency.fabric * spec.fabric.uplink_bandwidth.bytes_per_second() *
                    spec.fabric.leaf_uplinks;
  bool is_enough = spec.fabric.tiers == 1 || up >= down;
  if (spec.fabric.tiers == 3) {
    const double pod_down = down * spec.fabric.leaves_per_pod;
    const double pod_up = efficiency.fabric * spec.fabric.uplink_bandwidth.bytes_per_second() *
                          spec.fabric.leaf_uplinks * spec.fabric.aggregation_uplinks;
    is_enough = is_enough && pod_up >= pod_down;
  }
  is_non_blocking_ = options.routing == topologies::Routing::Spray && is_enough;
}

PipeId Paths::pipe_of(LinkId link) {
  std::int32_t& known = pipe_of_link_[link.value];
  if (known >= 0) return PipeId{static_cast<std::uint32_t>(known)};
  const Link& cable = cluster_.links()[link];
  const auto kind = [&](VertexId v) { return cluster_.vertices()[v].kind; };
  const auto touches = [&](VertexKind wanted) {
    return kind(cable.from) == wanted || kind(cable.to) == wanted;
  };
  double efficiency = efficiency_.fabric;
  if (touches(VertexKind::Nic)) efficiency = efficiency_.nic;
  if (touches(VertexKind::NvSwitch) || touches(VertexKind::Host)) efficiency = efficiency_.nvlink;
  const PipeId pipe = fluid_.add_pipe(cable.bandwidth.bytes_per_second() * efficiency);
  known = static_cast<std::int32_t>(pipe.value);
  link_of_pipe_.resize(pipe.value + 1, LinkId{~0u});
  link_of_pipe_[pipe.value] = link;
  return pipe;
}

PipeId Paths::bundle(VertexId side, const std::vector<LinkId>& links, const std::string& name) {
  double capacity = 0;
  for (const LinkId link : links) capacity += cluster_.links()[link].bandwidth.bytes_per_second();
  const PipeId pipe = fluid_.add_pipe(capacity * efficiency_.fabric);
  bundle_names_[pipe.value] =
      fmt::format("{} {} ({} links)", cluster_.vertices()[side].name(), name, links.size());
  return pipe;
}

std::string Paths::pipe_name(PipeId pipe) const {
  if (const auto named = bundle_names_.find(pipe.value); named != bundle_names_.end()) {
    return named->second;
  }
  if (pipe.value < link_of_pipe_.size() && link_of_pipe_[pipe.value].value != ~0u) {
    return cluster_.link_name(link_of_pipe_[pipe.value]);
  }
  return {};
}

bool Paths::is_between_switches(PipeId pipe) const {
  if (bundle_names_.contains(pipe.value)) return true;
  if (pipe.value >= link_of_pipe_.size() || link_of_pipe_[pipe.value].value == ~0u) return false;
  const Link& cable = cluster_.links()[link_of_pipe_[pipe.value]];
  return is_switch(cluster_, cable.from) && is_switch(cluster_, cable.to);
}

std::uint32_t Paths::seed_of(VertexId at) const {
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
std::uint32_t Paths::queue_pair(VertexId nic, std::uint64_t connection, bool is_sender) {
  const std::uint64_t side = (connection << 1u) | (is_sender ? 1u : 0u);
  const auto [entry, is_new] = qpns_.try_emplace({nic.value, side}, 0);
  if (is_new) entry->second = kFirstQpn + next_qpn_[nic.value]++;
  return entry->second;
}

void Paths::add_hashed(DeviceId from, DeviceId to, std::uint64_t connection, double weight,
                       Load& load) {
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
    load.pipes[pipe_of(next[choice]).value] += weight;
    at = cluster_.links()[next[choice]].to;
    switches += is_switch(cluster_, at) ? 1 : 0;
  }
  load.hops = std::max(load.hops, switches);
}

void Paths::add_sprayed(DeviceId from, DeviceId to, double weight, Load& load) {
  const VertexId source = cluster_.nic_vertex(from);
  const VertexId destination = cluster_.nic_vertex(to);
  const auto bundled = [&](VertexId side, Direction direction, const char* name, auto&& links) {
    const std::pair<std::uint32_t, int> key{side.value, static_cast<int>(direction)};
    auto found = bundles_.find(key);
    if (found == bundles_.end()) {
      found = bundles_.emplace(key, bundle(side, links(), name)).first;
    }
    load.pipes[found->second.value] += weight;
  };
  const LinkId out = cluster_.next_hops(source, destination)[0];
  const VertexId leaf = cluster_.links()[out].to;
  load.pipes[pipe_of(out).value] += weight;
  const LinkId down = cluster_.next_hops(destination, source)[0];
  const VertexId far_leaf = cluster_.links()[down].to;
  for (const LinkId link : cluster_.out_links(far_leaf)) {
    if (cluster_.links()[link].to == destination) load.pipes[pipe_of(link).value] += weight;
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
  load.hops = std::max(load.hops, switches);
}

void Paths::add(DeviceId from, DeviceId to, std::uint64_t connection, double weight, Load& load) {
  if (cluster_.node_of(from) == cluster_.node_of(to)) {
    for (const LinkId link : cluster_.intra_node_path(from, to)) {
      load.pipes[pipe_of(link).value] += weight;
    }
  } else if (options_.routing == topologies::Routing::Spray) {
    add_sprayed(from, to, weight, load);
  } else {
    add_hashed(from, to, connection, weight, load);
  }
}

int Paths::hops(DeviceId from, DeviceId to) const {
  if (cluster_.node_of(from) == cluster_.node_of(to)) return 0;
  const VertexId destination = cluster_.nic_vertex(to);
  int switches = 0;
  for (VertexId at = cluster_.nic_vertex(from); at != destination;) {
    at = cluster_.links()[cluster_.next_hops(at, destination)[0]].to;
    switches += is_switch(cluster_, at) ? 1 : 0;
  }
  return switches;
}

}  // namespace foresail::sim
