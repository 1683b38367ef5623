#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "foresail/base/quantity.h"
#include "foresail/topologies/cluster.h"
#include "tiers.h"

namespace foresail::topologies {
namespace {

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

Document route_document(const Cluster& cluster, DeviceId to) {
  const RouteCount count = count_routes(cluster, DeviceId{0}, to);
  return {{"hops", count.hops},
          {"paths", count.paths},
          {"disjoint_paths", disjoint_paths(cluster, DeviceId{0}, to)}};
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
  std::string line =
      fmt::format("node     {} {}", node.devices, node.devices == 1 ? "device" : "devices");
  if (node.nics > 0) {
    line += fmt::format(", {} {} of {}", node.nics, node.nics == 1 ? "NIC" : "NICs",
                        to_text(node.nic_bandwidth));
  }
  if (!node.pcie.empty()) {
    line += fmt::format(", {} PCIe switches of {}", node.pcie.switches.size(),
                        gigabytes(node.pcie.bandwidth));
  }
  if (node.cores > 0) line += fmt::format(", {} cores, {}", node.cores, to_text(node.memory));
  return line + "\n";
}

std::int64_t fastest(const Ports& ports) {
  return ports.empty() ? 0 : ports.begin()->first.bits_per_second();
}

/// What the tiers below do not say; nothing for a Clos as planned.
std::string fabric_line(const Cluster::Options& options) {
  const FabricSpec& fabric = options.fabric;
  std::string text;
  if (fabric.kind == FabricKind::Dragonfly) {
    text = fmt::format("fabric   dragonfly: {} groups of {} routers with {} NICs\n",
                       fabric.dragonfly.groups, fabric.dragonfly.routers_per_group,
                       fabric.dragonfly.nics_per_router);
  } else if (fabric.kind == FabricKind::Torus) {
    text = fmt::format("fabric   torus: {}\n", fmt::join(fabric.torus.dimensions, " x "));
  } else if (fabric.kind == FabricKind::Graph) {
    text = fmt::format("fabric   graph: {} switches\n", fabric.graph.switches.size());
  } else if (fabric.nic_ports > 1) {
    text = fmt::format("fabric   {} ports per NIC, {} {}\n", fabric.nic_ports, fabric.planes,
                       fabric.planes == 1 ? "plane" : "planes");
  }
  if (options.wiring.empty()) return text;
  return text + fmt::format("wiring   {} {} from the plan\n", options.wiring.size(),
                            options.wiring.size() == 1 ? "change" : "changes");
}

std::string ports_text(const Ports& ports) {
  std::string text;
  for (const auto& [bandwidth, number] : ports) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : " + ", number, to_text(bandwidth));
  }
  return text.empty() ? "-" : text;
}

/// Columns as wide as their widest text; the first to the left, the others to the right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("{:<{}}", row[0], std::max<std::size_t>(widths[0], 8));
    for (std::size_t c = 1; c < row.size(); ++c) text += fmt::format("  {:>{}}", row[c], widths[c]);
    text += "\n";
  }
  return text;
}

std::string tier_table(const std::vector<Tier>& tiers) {
  const auto has = [&](Ports Tier::*ports) {
    return std::ranges::any_of(tiers, [&](const Tier& tier) { return !(tier.*ports).empty(); });
  };
  const bool has_across = has(&Tier::ports_across);
  const bool has_up = has(&Tier::ports_up) || !has_across;
  std::vector<std::vector<std::string>> rows = {{"tier", "switches", "ports down", "down"}};
  const auto add = [](std::vector<std::string>& row, std::initializer_list<std::string> more) {
    row.insert(row.end(), more);
  };
  if (has_up) add(rows[0], {"ports up", "up", "oversubscription"});
  if (has_across) add(rows[0], {"ports across", "across"});
  for (const Tier& tier : tiers) {
    const bool is_top = tier.ports_up.empty();
    const bool is_apart = tier.ports_across.empty();
    std::vector<std::string> row = {tier.name, std::to_string(tier.switches),
                                    ports_text(tier.ports_down), to_text(tier.down)};
    if (has_up) {
      add(row, {ports_text(tier.ports_up), is_top ? "-" : to_text(tier.up),
                is_top ? "-" : fmt::format("{:.2f}:1", oversubscription(tier))});
    }
    if (has_across)
      add(row, {ports_text(tier.ports_across), is_apart ? "-" : to_text(tier.across)});
    rows.push_back(std::move(row));
  }
  return table(rows);
}

std::string bisection_lines(const Cluster& cluster) {
  const Bisection found = bisection(cluster);
  std::string text =
      fmt::format("bisection bandwidth (one direction): {}\n", to_text(found.bandwidth));
  text += "  " + found.method;
  for (const auto& [tier, bandwidth] : found.tiers) {
    const bool is_first = &bandwidth == &found.tiers.front().bandwidth;
    text += fmt::format("{} {} {}", is_first ? ":" : ",", tier, to_text(bandwidth));
  }
  return text + "\n";
}

std::string route_line(const Cluster& cluster, const char* label, DeviceId to) {
  const RouteCount count = count_routes(cluster, DeviceId{0}, to);
  const std::string ends =
      fmt::format("{}, {} -> {}", label, cluster.vertices()[cluster.nic_vertex(DeviceId{0})].name(),
                  cluster.vertices()[cluster.nic_vertex(to)].name());
  if (count.paths == 0) return ends + ": no way\n";
  const std::string text = fmt::format("{}: {} hops, {} equal-cost {}", ends, count.hops,
                                       count.paths, count.paths == 1 ? "path" : "paths");
  const int disjoint = disjoint_paths(cluster, DeviceId{0}, to);
  if (disjoint == 0) return text + "\n";
  return text + fmt::format(", {} of any length disjoint\n", disjoint);
}

bool has_other_nic(const Cluster& cluster, DeviceId device) {
  return cluster.node().nics > 0 && cluster.nic_vertex(device) != cluster.nic_vertex(DeviceId{0});
}

}  // namespace

std::string summary(const Cluster& cluster) {
  const Cluster::Options& options = cluster.options();
  std::string text = fmt::format("{}: {} devices on {} {}\n", options.name, cluster.device_count(),
                                 options.nodes, options.nodes == 1 ? "node" : "nodes");
  text += device_line(cluster) + node_line(cluster);
  if (!options.fabric.has_fabric()) return text;
  text += fabric_line(options);
  text += tier_table(tiers_of(cluster)) + bisection_lines(cluster);
  const FarPair far = far_pair(cluster);
  if (has_other_nic(cluster, far.same_rail)) {
    text += route_line(cluster, "same rail", far.same_rail);
  }
  if (has_other_nic(cluster, far.last)) text += route_line(cluster, "farthest", far.last);
  return text;
}

Document summary_document(const Cluster& cluster) {
  const Cluster::Options& options = cluster.options();
  const Bisection found = bisection(cluster);
  Document document = {{"name", options.name},
                       {"device", options.device.name},
                       {"devices", cluster.device_count()},
                       {"nodes", options.nodes},
                       {"devices_per_node", options.node.devices},
                       {"nics_per_node", options.node.nics},
                       {"nic_bits_per_s", options.node.nic_bandwidth.bits_per_second()},
                       {"fabric", std::string(to_string(options.fabric.kind))},
                       {"wiring_changes", options.wiring.size()},
                       {"links", cluster.links().size()},
                       {"bisection_bits_per_s", found.bandwidth.bits_per_second()},
                       {"bisection_method", found.method}};
  document["bisection_by_tier_bits_per_s"] = Document::object();
  for (const auto& [tier, bandwidth] : found.tiers) {
    document["bisection_by_tier_bits_per_s"][tier] = bandwidth.bits_per_second();
  }
  document["tiers"] = Document::array();
  for (const Tier& tier : tiers_of(cluster)) {
    document["tiers"].push_back({{"name", tier.name},
                                 {"switches", tier.switches},
                                 {"ports_down", count(tier.ports_down)},
                                 {"ports_up", count(tier.ports_up)},
                                 {"ports_across", count(tier.ports_across)},
                                 {"port_down_bits_per_s", fastest(tier.ports_down)},
                                 {"port_up_bits_per_s", fastest(tier.ports_up)},
                                 {"port_across_bits_per_s", fastest(tier.ports_across)},
                                 {"down_bits_per_s", tier.down.bits_per_second()},
                                 {"up_bits_per_s", tier.up.bits_per_second()},
                                 {"across_bits_per_s", tier.across.bits_per_second()},
                                 {"oversubscription", oversubscription(tier)}});
  }
  const FarPair far = far_pair(cluster);
  document["routes"] = Document::object();
  if (has_other_nic(cluster, far.same_rail)) {
    document["routes"]["same_rail"] = route_document(cluster, far.same_rail);
  }
  if (has_other_nic(cluster, far.last)) {
    document["routes"]["farthest"] = route_document(cluster, far.last);
  }
  return document;
}

}  // namespace foresail::topologies
