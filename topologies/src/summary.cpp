#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/topologies/cluster.h"

namespace foresail::topologies {
namespace {

/// Sums over the switches of one tier; ports of the switch that has the most.
struct Tier {
  int switches = 0;
  int ports_down = 0;
  int ports_up = 0;
  Bandwidth port_down;
  Bandwidth port_up;
  Bandwidth down;
  Bandwidth up;
};

constexpr std::array<const char*, 3> kTierNames = {"leaf", "spine", "core"};

Bandwidth operator+(Bandwidth a, Bandwidth b) {
  return Bandwidth::bps(a.bits_per_second() + b.bits_per_second());
}

std::vector<Tier> tiers_of(const Cluster& cluster) {
  std::vector<Tier> tiers;
  std::uint32_t id = 0;
  for (const Vertex& vertex : cluster.vertices()) {
    const VertexId at{id++};
    if (vertex.kind != VertexKind::Switch) continue;
    if (static_cast<std::size_t>(vertex.tier) > tiers.size()) tiers.emplace_back();
    Tier& tier = tiers[static_cast<std::size_t>(vertex.tier) - 1];
    ++tier.switches;
    int down = 0;
    int up = 0;
    for (const LinkId id_out : cluster.out_links(at)) {
      const Link& link = cluster.links()[id_out];
      const bool is_up = cluster.vertices()[link.to].tier > vertex.tier;
      ++(is_up ? up : down);
      Bandwidth& sum = is_up ? tier.up : tier.down;
      sum = sum + link.bandwidth;
      (is_up ? tier.port_up : tier.port_down) = link.bandwidth;
    }
    tier.ports_down = std::max(tier.ports_down, down);
    tier.ports_up = std::max(tier.ports_up, up);
  }
  return tiers;
}

/// Bandwidth below the tier over that above it, as specified for a full switch; 0 at the top.
double oversubscription(const Tier& tier) {
  if (tier.ports_up == 0) return 0;
  return static_cast<double>(tier.ports_down) * tier.port_down.bytes_per_second() /
         (static_cast<double>(tier.ports_up) * tier.port_up.bytes_per_second());
}

/// Farthest devices: the first of the first node, and of the last node the one on the same rail
/// and the last one.
struct FarPair {
  DeviceId same_rail;
  DeviceId last;
};

FarPair far_pair(const Cluster& cluster) {
  const int devices = cluster.device_count();
  return {DeviceId{static_cast<std::uint32_t>(devices - cluster.node().devices)},
          DeviceId{static_cast<std::uint32_t>(devices - 1)}};
}

Document route_document(const RouteCount& count) {
  return {{"hops", count.hops}, {"paths", count.paths}};
}

std::string gigabytes(Bandwidth value) {
  return fmt::format("{:.0f} GB/s", value.bytes_per_second() / 1e9);
}

std::string device_line(const Cluster& cluster) {
  const DeviceSpec& device = cluster.device();
  std::string line = fmt::format("device   {}: {} (16-bit)", device.name, to_text(device.peak_16));
  if (device.peak_8 > FlopRate()) line += fmt::format(", {} (fp8)", to_text(device.peak_8));
  line += fmt::format(", {} (fp32), {} at {}", to_text(device.peak_32), to_text(device.memory),
                      gigabytes(device.memory_bandwidth));
  if (device.nvlink > Bandwidth()) line += fmt::format(", NVLink {}", gigabytes(device.nvlink));
  return line + "\n";
}

std::string node_line(const Cluster& cluster) {
  const NodeSpec& node = cluster.node();
  std::string line = fmt::format("node     {} devices", node.devices);
  if (node.nics > 0) {
    line += fmt::format(", {} NICs of {}", node.nics, to_text(node.nic_bandwidth));
  }
  if (node.cores > 0) line += fmt::format(", {} cores, {}", node.cores, to_text(node.memory));
  return line + "\n";
}

std::string fabric_lines(const Cluster& cluster) {
  std::string text =
      fmt::format("{:<8} {:>8} {:>18} {:>18} {:>11} {:>11} {:>16}\n", "tier", "switches",
                  "ports down", "ports up", "down", "up", "oversubscription");
  const std::vector<Tier> tiers = tiers_of(cluster);
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    const Tier& tier = tiers[t];
    const bool is_top = tier.ports_up == 0;
    text +=
        fmt::format("{:<8} {:>8} {:>18} {:>18} {:>11} {:>11} {:>16}\n", kTierNames[t],
                    tier.switches, fmt::format("{} x {}", tier.ports_down, to_text(tier.port_down)),
                    is_top ? "-" : fmt::format("{} x {}", tier.ports_up, to_text(tier.port_up)),
                    to_text(tier.down), is_top ? "-" : to_text(tier.up),
                    is_top ? "-" : fmt::format("{:.2f}:1", oversubscription(tier)));
  }
  text += fmt::format("bisection bandwidth (one direction): {}\n",
                      to_text(bisection_bandwidth(cluster)));
  return text;
}

std::string route_line(const Cluster& cluster, const char* label, DeviceId to) {
  const RouteCount count = count_routes(cluster, DeviceId{0}, to);
  return fmt::format("{}, {} -> {}: {} hops, {} equal-cost paths\n", label,
                     cluster.vertices()[cluster.nic_vertex(DeviceId{0})].name(),
                     cluster.vertices()[cluster.nic_vertex(to)].name(), count.hops, count.paths);
}

bool has_other_nic(const Cluster& cluster, DeviceId device) {
  return cluster.node().nics > 0 && cluster.nic_vertex(device) != cluster.nic_vertex(DeviceId{0});
}

}  // namespace

RouteCount count_routes(const Cluster& cluster, DeviceId from, DeviceId to) {
  const VertexId target = cluster.nic_vertex(to);
  FORESAIL_EXPECT(cluster.nic_vertex(from) != target);
  // Paths that reach each vertex after so many hops; all arrive together, for all are shortest.
  std::map<VertexId, std::int64_t> reached = {{cluster.nic_vertex(from), 1}};
  RouteCount count;
  while (!reached.contains(target)) {
    if (reached.empty()) return {};
    std::map<VertexId, std::int64_t> next;
    for (const auto& [at, paths] : reached) {
      for (const LinkId hop : cluster.next_hops(at, target)) {
        next[cluster.links()[hop].to] += paths;
      }
    }
    reached = std::move(next);
    ++count.hops;
  }
  count.paths = reached.at(target);
  return count;
}

Bandwidth bisection_bandwidth(const Cluster& cluster) {
  const Cluster::Options& options = cluster.options();
  if (options.fabric.tiers == 0) return Bandwidth();
  const std::vector<Tier> tiers = tiers_of(cluster);
  const std::int64_t per_leaf = options.fabric.nodes_per_leaf;
  const std::int64_t groups = (options.nodes + per_leaf - 1) / per_leaf;
  std::int64_t narrowest = tiers.front().down.bits_per_second();
  if (groups > 1) narrowest = std::min(narrowest, tiers[0].up.bits_per_second());
  // Rail pods hold the same rail of many groups: two halves meet below the core while they fit.
  const bool is_one_pod =
      options.fabric.tiers < 3 || tiers.size() < 3 ||
      (options.fabric.pod_order == PodOrder::Rail && groups <= options.fabric.leaves_per_pod) ||
      groups == 1;
  if (!is_one_pod) narrowest = std::min(narrowest, tiers[1].up.bits_per_second());
  return Bandwidth::bps(narrowest / 2);
}

std::string summary(const Cluster& cluster) {
  const Cluster::Options& options = cluster.options();
  std::string text = fmt::format("{}: {} devices on {} {}\n", options.name, cluster.device_count(),
                                 options.nodes, options.nodes == 1 ? "node" : "nodes");
  text += device_line(cluster) + node_line(cluster);
  if (options.fabric.tiers == 0) return text;
  text += fabric_lines(cluster);
  const FarPair far = far_pair(cluster);
  if (has_other_nic(cluster, far.same_rail)) {
    text += route_line(cluster, "same rail", far.same_rail);
  }
  if (has_other_nic(cluster, far.last)) text += route_line(cluster, "farthest", far.last);
  return text;
}

Document summary_document(const Cluster& cluster) {
  const Cluster::Options& options = cluster.options();
  Document document = {{"name", options.name},
                       {"device", options.device.name},
                       {"devices", cluster.device_count()},
                       {"nodes", options.nodes},
                       {"devices_per_node", options.node.devices},
                       {"nics_per_node", options.node.nics},
                       {"nic_bits_per_s", options.node.nic_bandwidth.bits_per_second()},
                       {"links", cluster.links().size()},
                       {"bisection_bits_per_s", bisection_bandwidth(cluster).bits_per_second()}};
  document["tiers"] = Document::array();
  const std::vector<Tier> tiers = tiers_of(cluster);
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    const Tier& tier = tiers[t];
    document["tiers"].push_back({{"name", kTierNames[t]},
                                 {"switches", tier.switches},
                                 {"ports_down", tier.ports_down},
                                 {"ports_up", tier.ports_up},
                                 {"port_down_bits_per_s", tier.port_down.bits_per_second()},
                                 {"port_up_bits_per_s", tier.port_up.bits_per_second()},
                                 {"down_bits_per_s", tier.down.bits_per_second()},
                                 {"up_bits_per_s", tier.up.bits_per_second()},
                                 {"oversubscription", oversubscription(tier)}});
  }
  const FarPair far = far_pair(cluster);
  document["routes"] = Document::object();
  if (has_other_nic(cluster, far.same_rail)) {
    document["routes"]["same_rail"] =
        route_document(count_routes(cluster, DeviceId{0}, far.same_rail));
  }
  if (has_other_nic(cluster, far.last)) {
    document["routes"]["farthest"] = route_document(count_routes(cluster, DeviceId{0}, far.last));
  }
  return document;
}

}  // namespace foresail::topologies
