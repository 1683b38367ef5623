#include "foresail/sim/paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/ecmp.h"
#include "foresail/topologies/routes.h"

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
  const topologies::FabricSpec& fabric = cluster.options().fabric;
  if (!fabric.has_fabric()) {
    is_non_blocking_ = true;
    return;
  }
  const bool is_plain_clos = fabric.kind == topologies::FabricKind::Clos && fabric.nic_ports == 1 &&
                             cluster.options().wiring.empty();
  has_bundles_ = is_plain_clos && (options.routing == topologies::Routing::Spray ||
                                   options.routing == topologies::Routing::Adaptive);
  is_non_blocking_ = has_bundles_ && has_full_bisection();
}

// A Clos whose uplinks carry all that its NICs can send.
bool Paths::has_full_bisection() const {
  const topologies::Cluster::Options& spec = cluster_.options();
  const topologies::FabricSpec& fabric = spec.fabric;
  const double down = efficiency_.nic * spec.node.nic_bandwidth.bytes_per_second() *
                      fabric.nodes_per_leaf * spec.node.nics / fabric.rails;
  const double up =
      efficiency_.fabric * fabric.uplink_bandwidth.bytes_per_second() * fabric.leaf_uplinks;
  if (fabric.tiers == 1) return true;
  if (up < down) return false;
  if (fabric.tiers == 2) return true;
  const double pod_up = efficiency_.fabric * fabric.aggregation_bandwidth().bytes_per_second() *
                        fabric.leaf_uplinks * fabric.aggregation_uplinks;
  return pod_up >= down * fabric.leaves_per_pod;
}

double Paths::healthy_rate(LinkId link) const {
  const Link& cable = cluster_.links()[link];
  const auto touches = [&](VertexKind wanted) {
    return cluster_.vertices()[cable.from].kind == wanted ||
           cluster_.vertices()[cable.to].kind == wanted;
  };
  double efficiency = efficiency_.fabric;
  if (touches(VertexKind::Nic)) efficiency = efficiency_.nic;
  if (touches(VertexKind::NvSwitch) || touches(VertexKind::Host)) efficiency = efficiency_.nvlink;
  if (touches(VertexKind::Pcie)) efficiency = 1;  // stated as a copy achieves it
  return cable.bandwidth.bytes_per_second() * efficiency;
}

double Paths::line_rate(LinkId link) const {
  const auto changed = factors_.find(link.value);
  return healthy_rate(link) * (changed == factors_.end() ? 1 : changed->second);
}

double Paths::healthy_rate(PipeId pipe) const {
  if (pipe.value < link_of_pipe_.size() && link_of_pipe_[pipe.value].value != ~0u) {
    return healthy_rate(link_of_pipe_[pipe.value]);
  }
  const auto bundled = bundle_links_.find(pipe.value);
  if (bundled == bundle_links_.end()) return fluid_.capacity(pipe);
  double sum = 0;
  for (const LinkId link : bundled->second) sum += healthy_rate(link);
  return sum;
}

PipeId Paths::pipe_of(LinkId link) {
  std::int32_t& known = pipe_of_link_[link.value];
  if (known >= 0) return PipeId{static_cast<std::uint32_t>(known)};
  const double rate = line_rate(link);
  const PipeId pipe = fluid_.add_pipe(rate > 0 ? rate : 1);
  if (rate <= 0) fluid_.set_capacity(pipe, 0, changed_);
  known = static_cast<std::int32_t>(pipe.value);
  link_of_pipe_.resize(pipe.value + 1, LinkId{~0u});
  link_of_pipe_[pipe.value] = link;
  return pipe;
}

// Evenly sprayed flows go at the pace of the slowest link that is up; adaptive ones fill them all.
double Paths::bundle_rate(const std::vector<LinkId>& links) const {
  double sum = 0;
  double slowest = std::numeric_limits<double>::infinity();
  std::size_t up = 0;
  for (const LinkId link : links) {
    const double rate = line_rate(link);
    if (rate <= 0) continue;
    ++up;
    sum += rate;
    slowest = std::min(slowest, rate);
  }
  if (up == 0) return 0;
  return options_.routing == topologies::Routing::Adaptive ? sum
                                                           : slowest * static_cast<double>(up);
}

PipeId Paths::bundle(VertexId side, const std::vector<LinkId>& links, const std::string& name) {
  const double rate = bundle_rate(links);
  const PipeId pipe = fluid_.add_pipe(rate > 0 ? rate : 1);
  if (rate <= 0) fluid_.set_capacity(pipe, 0, changed_);
  for (const LinkId link : links) bundle_of_link_.emplace(link.value, pipe);
  bundle_links_[pipe.value] = links;
  bundle_names_[pipe.value] =
      fmt::format("{} {} ({} links)", cluster_.vertices()[side].name(), name, links.size());
  return pipe;
}

std::span<const LinkId> Paths::next_hops(VertexId at, VertexId nic) const {
  return tables_ == nullptr ? cluster_.next_hops(at, nic) : tables_->next_hops(at, nic);
}

RouteId Paths::make_route(const Load& load) {
  std::vector<RouteEntry> entries;
  for (const auto& [pipe, weight] : load.pipes) entries.push_back({PipeId{pipe}, weight});
  const RouteId route = fluid_.add_route(entries);
  legs_.resize(route.value + 1);
  legs_[route.value] = load.legs;
  laid_.resize(route.value + 1);
  laid_[route.value] = tables_;
  ways_.resize(route.value + 1);
  if (options_.sharing == topologies::Sharing::Pfc) ways_[route.value] = all_ways(load);
  return route;
}

std::vector<Way> Paths::all_ways(const Load& load) const {
  std::map<std::uint32_t, double> rest = load.pipes;
  for (const Way& way : load.ways) {
    for (const RouteEntry& entry : way) rest[entry.pipe.value] -= entry.weight;
  }
  std::vector<Way> ways = load.ways;
  for (const auto& [pipe, weight] : rest) {
    if (weight > 1e-9 * load.pipes.at(pipe)) ways.push_back({{PipeId{pipe}, weight}});
  }
  return ways;
}

std::string Paths::describe(RouteId route) const {
  const std::vector<Leg>& legs = legs_[route.value];
  return legs.empty() ? std::string("a resource") : describe(legs.front());
}

std::string Paths::describe(const Leg& leg) const {
  const auto name = [&](DeviceId device) {
    const bool is_inside = cluster_.node_of(leg.from) == cluster_.node_of(leg.to);
    return cluster_
        .vertices()[is_inside ? cluster_.device_vertex(device) : cluster_.nic_vertex(device)]
        .name();
  };
  std::string text = name(leg.from) + "->" + name(leg.to);
  if (cluster_.node_of(leg.from) == cluster_.node_of(leg.to)) return text;
  const auto found = qpns_.find({cluster_.nic_vertex(leg.from).value, (leg.connection << 1u) | 1u});
  if (found != qpns_.end()) text += fmt::format(" qp {}", found->second);
  return text;
}

std::string Paths::describe(RouteId route, PipeId pipe) {
  for (const Leg& leg : legs_[route.value]) {
    Load load;
    if (add_leg(leg, load) && load.pipes.contains(pipe.value)) return describe(leg);
  }
  return describe(route);
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

std::optional<LinkId> Paths::link_of(PipeId pipe) const {
  if (pipe.value >= link_of_pipe_.size() || link_of_pipe_[pipe.value].value == ~0u) return {};
  return link_of_pipe_[pipe.value];
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

// The port of a NIC, in turn: the first queue pair that sends leaves by the first one.
std::size_t Paths::port_of(const FiveTuple& tuple, std::uint64_t connection, std::size_t ports) {
  const auto [entry, is_new] = turns_.try_emplace({tuple.source, tuple.destination, connection}, 0);
  if (is_new) entry->second = next_turn_[tuple.source]++;
  return entry->second % ports;
}

// The choice among equal-cost links. `below` counts the choices of the tiers below (D-mod-k).
std::size_t Paths::choose(VertexId at, std::span<const LinkId> next, const FiveTuple& tuple,
                          std::uint64_t below) const {
  if (next.size() == 1) return 0;
  if (options_.routing == topologies::Routing::DModK) {
    const topologies::Vertex& nic = cluster_.vertices()[VertexId{tuple.destination}];
    // Numbered within its rail, which alone its leaves know; on the way down by the last digit.
    const int rails = std::max(1, cluster_.options().fabric.rails);
    const int per_rail = (cluster_.node().nics + rails - 1) / rails;
    const auto number = static_cast<std::uint64_t>(nic.node * per_rail + nic.index % per_rail);
    const int tier_ahead = cluster_.vertices()[cluster_.links()[next[0]].to].tier;
    const bool is_down = is_switch(cluster_, at) && cluster_.vertices()[at].tier > tier_ahead;
    return number / (is_down ? 1 : below) % next.size();
  }
  return hash_tuple(options_.hash, tuple, seed_of(at)) % next.size();
}

bool Paths::add_single_path(const Leg& leg, Load& load) {
  const VertexId source = cluster_.nic_vertex(leg.from);
  const VertexId destination = cluster_.nic_vertex(leg.to);
  FiveTuple tuple{source.value, destination.value, 0};
  const std::uint32_t remote = queue_pair(destination, leg.connection, false);
  tuple.source_port = roce_source_port(queue_pair(source, leg.connection, true), remote);
  if (options_.hash_queue_pair) tuple.queue_pair = remote;
  int switches = 0;
  std::uint64_t below = 1;
  for (VertexId at = source; at != destination;) {
    const std::span<const LinkId> next = next_hops(at, destination);
    if (next.empty()) return false;
    const bool is_in_turn = at == source && options_.lag == topologies::Lag::QueueAffinity &&
                            options_.routing == topologies::Routing::Ecmp;
    const LinkId link = next[is_in_turn ? port_of(tuple, leg.connection, next.size())
                                        : choose(at, next, tuple, below)];
    below *= next.size();
    load_link(link, leg, load);
    at = cluster_.links()[link].to;
    switches += is_switch(cluster_, at) ? 1 : 0;
  }
  load.hops = std::max(load.hops, switches);
  return true;
}

// Hop by hop over all shortest paths: evenly, or by bandwidth.
bool Paths::add_split(const Leg& leg, Load& load) {
  const VertexId destination = cluster_.nic_vertex(leg.to);
  std::map<VertexId, double> here = {{cluster_.nic_vertex(leg.from), leg.weight}};
  int switches = 0;
  while (!here.contains(destination)) {
    std::map<VertexId, double> next;
    for (const auto& [at, weight] : here) {
      const std::span<const LinkId> links = next_hops(at, destination);
      if (links.empty()) return false;
      double total = 0;
      for (const LinkId link : links) total += share_of(link);
      for (const LinkId link : links) {
        // Where all are down, evenly: the flow waits there.
        const double share =
            total > 0 ? share_of(link) / total : 1.0 / static_cast<double>(links.size());
        const double part = weight * share;
        if (part <= 0) continue;
        load.pipes[pipe_of(link).value] += part;
        next[cluster_.links()[link].to] += part;
      }
    }
    here = std::move(next);
    ++switches;
  }
  load.hops = std::max(load.hops, switches - 1);
  return true;
}

double Paths::share_of(LinkId link) const {
  return options_.routing == topologies::Routing::Adaptive ? line_rate(link) : 1;
}

bool Paths::add_sprayed(const Leg& leg, Load& load) {
  const VertexId source = cluster_.nic_vertex(leg.from);
  const VertexId destination = cluster_.nic_vertex(leg.to);
  const auto bundled = [&](VertexId side, Direction direction, const char* name, auto&& links) {
    const std::pair<std::uint32_t, int> key{side.value, static_cast<int>(direction)};
    auto found = bundles_.find(key);
    if (found == bundles_.end()) {
      found = bundles_.emplace(key, bundle(side, links(), name)).first;
    }
    load.pipes[found->second.value] += leg.weight;
  };
  const LinkId out = cluster_.next_hops(source, destination)[0];
  const VertexId leaf = cluster_.links()[out].to;
  load.pipes[pipe_of(out).value] += leg.weight;
  const LinkId down = cluster_.next_hops(destination, source)[0];
  const VertexId far_leaf = cluster_.links()[down].to;
  for (const LinkId link : cluster_.out_links(far_leaf)) {
    if (cluster_.links()[link].to == destination) load.pipes[pipe_of(link).value] += leg.weight;
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
  return true;
}

void Paths::load_link(LinkId link, const Leg& leg, Load& load) {
  const PipeId pipe = pipe_of(link);
  load.pipes[pipe.value] += leg.weight;
  way_.push_back({pipe, leg.weight});
}

// Between device and NIC. A cable of its own with GPUDirect is never the narrowest: left out.
std::size_t Paths::add_node_part(const Leg& leg, Load& load) {
  if (cluster_.node().pcie.empty() && options_.nccl.gpudirect) return 0;
  const auto direct =
      options_.nccl.gpudirect ? topologies::GpuDirect::On : topologies::GpuDirect::Off;
  for (const LinkId link : cluster_.path_to_nic(leg.from, direct)) load_link(link, leg, load);
  const std::vector<LinkId> behind = cluster_.path_from_nic(leg.to, direct);
  for (const LinkId link : behind) load_link(link, leg, load);
  return behind.size();
}

bool Paths::add_leg(const Leg& leg, Load& load) {
  way_.clear();
  if (cluster_.node_of(leg.from) == cluster_.node_of(leg.to)) {
    for (const LinkId link : cluster_.intra_node_path(leg.from, leg.to)) load_link(link, leg, load);
    if (options_.sharing == topologies::Sharing::Pfc) load.ways.push_back(way_);
    return true;
  }
  const std::size_t behind = add_node_part(leg, load);
  const auto last = static_cast<std::ptrdiff_t>(way_.size());
  const auto first = last - static_cast<std::ptrdiff_t>(behind);
  switch (options_.routing) {
    case topologies::Routing::Ecmp:
    case topologies::Routing::DModK:
      if (!add_single_path(leg, load)) return false;
      std::rotate(way_.begin() + first, way_.begin() + last, way_.end());
      if (options_.sharing == topologies::Sharing::Pfc) load.ways.push_back(way_);
      return true;
    case topologies::Routing::Spray:
    case topologies::Routing::Adaptive:
      return has_bundles_ ? add_sprayed(leg, load) : add_split(leg, load);
  }
  return false;
}

// Around what is down; where no way is left, the one it had and will have again.
bool Paths::add_way(const Leg& leg, Load& load) {
  if (tables_ == nullptr) return add_leg(leg, load);
  Load alone;
  if (!add_leg(leg, alone)) {
    alone = {};
    const auto tables = std::exchange(tables_, nullptr);
    const bool had_way = add_leg(leg, alone);
    tables_ = tables;
    if (!had_way) return false;
  }
  for (const auto& [pipe, part] : alone.pipes) load.pipes[pipe] += part;
  load.ways.insert(load.ways.end(), alone.ways.begin(), alone.ways.end());
  load.hops = std::max(load.hops, alone.hops);
  return true;
}

void Paths::add(DeviceId from, DeviceId to, std::uint64_t connection, double weight, Load& load) {
  const Leg leg{from, to, connection, weight};
  if (!add_way(leg, load)) refuse(leg);
  load.legs.push_back(leg);
}

void Paths::refuse(const Leg& leg) const {
  throw Error(ErrorCode::InvalidInput,
              fmt::format("cluster {}: no way from {} to {}", cluster_.name(),
                          cluster_.vertices()[cluster_.nic_vertex(leg.from)].name(),
                          cluster_.vertices()[cluster_.nic_vertex(leg.to)].name()));
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
