#include "clos.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

constexpr int kCountMax = 1 << 16;  // products of all counts stay below 2^63

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Ports of bandwidth `port` that `cables` take: a slow cable shares a port evenly with others, one
/// faster than a port takes several.
std::int64_t ports_for(std::int64_t cables, Bandwidth cable, Bandwidth port) {
  const std::int64_t split =
      std::max<std::int64_t>(1, port.bits_per_second() / cable.bits_per_second());
  const std::int64_t each = ceil_div(cable.bits_per_second(), port.bits_per_second());
  return ceil_div(cables, split) * each;
}

/// Cables of a switch and the ports that it has for them.
struct PortNeed {
  std::int64_t below = 0;  ///< switches under it, each with the same number of cables
  Bandwidth cable{};       ///< of those
  std::int64_t above = 0;  ///< ports taken by its own uplinks
  Bandwidth port{};
  std::int64_t ports = 0;
};

/// The fewest switches over which `uplinks` spread evenly so that each has enough ports; one per
/// uplink if nothing less will do.
std::int64_t fewest_switches(std::int64_t uplinks, const PortNeed& need) {
  for (std::int64_t count = 1; count < uplinks; ++count) {
    if (uplinks % count != 0) continue;
    const std::int64_t down = ports_for(need.below * (uplinks / count), need.cable, need.port);
    if (down + need.above <= need.ports) return count;
  }
  return uplinks;
}

std::int64_t leaves_per_group(const FabricSpec& fabric) {
  return std::int64_t{fabric.rails} * fabric.nic_ports;
}

Bandwidth port_bandwidth(const Cluster::Options& o) {
  return Bandwidth::bps(o.node.nic_bandwidth.bits_per_second() / o.fabric.nic_ports);
}

std::int64_t core_ports(const FabricSpec& fabric, std::int64_t links) {
  return ports_for(links, fabric.aggregation_bandwidth(), fabric.uplink_bandwidth);
}

using Law = std::optional<std::string>;

Law port_count_law(const FabricSpec& fabric) {
  if (fabric.nic_ports < 1 || fabric.nic_ports > 8) {
    return fmt::format("fabric.nic_ports {} is not in 1..8", fabric.nic_ports);
  }
  if (fabric.planes != 1 && fabric.planes != fabric.nic_ports) {
    return fmt::format("fabric.planes {} is neither 1 nor nic_ports {}", fabric.planes,
                       fabric.nic_ports);
  }
  if (fabric.planes > 1 && fabric.tiers == 1) {
    return fmt::format("fabric.planes {} with one tier, which has no aggregation switches",
                       fabric.planes);
  }
  if (fabric.tiers == 3 && fabric.leaves_per_pod % fabric.nic_ports != 0) {
    return fmt::format("fabric.leaves_per_pod {} is not a multiple of nic_ports {}",
                       fabric.leaves_per_pod, fabric.nic_ports);
  }
  return std::nullopt;
}

Law one_tier_law(const Cluster::Options& o) {
  const FabricSpec& fabric = o.fabric;
  if (fabric.leaf_uplinks != 0) return "leaf_uplinks need a second tier";
  if (fabric.rails > 1) {
    return fmt::format("rails {} with one tier: NICs of different rails could never meet",
                       fabric.rails);
  }
  if (o.nodes > fabric.nodes_per_leaf) {
    return fmt::format("{} nodes, but the only leaf has nodes_per_leaf {}", o.nodes,
                       fabric.nodes_per_leaf);
  }
  return std::nullopt;
}

Law fabric_law(const Cluster::Options& o) {
  const FabricSpec& fabric = o.fabric;
  if (fabric.tiers < 0 || fabric.tiers > 3) {
    return fmt::format("fabric.tiers {} is not in 0..3", fabric.tiers);
  }
  if (fabric.tiers == 0) {
    if (o.node.nics != 0) return fmt::format("node.nics {} without a fabric", o.node.nics);
    if (o.nodes != 1) return fmt::format("{} nodes without a fabric between them", o.nodes);
    return std::nullopt;
  }
  if (o.node.nics == 0) return fmt::format("{} switch tiers, but node.nics 0", fabric.tiers);
  if (fabric.nodes_per_leaf < 1) return "fabric.nodes_per_leaf must be at least 1";
  if (fabric.rails < 1 || fabric.rails > o.node.nics) {
    return fmt::format("fabric.rails {} is not in 1..nics {}", fabric.rails, o.node.nics);
  }
  if (fabric.tiers < 3 && (fabric.leaves_per_pod != 0 || fabric.aggregation_uplinks != 0)) {
    return fmt::format("leaves_per_pod and aggregation_uplinks need three tiers, not {}",
                       fabric.tiers);
  }
  if (fabric.tiers < 3 && fabric.aggregation_uplink_bandwidth > Bandwidth()) {
    return fmt::format("aggregation_uplink_bandwidth needs three tiers, not {}", fabric.tiers);
  }
  if (Law law = port_count_law(fabric)) return law;
  if (fabric.tiers == 1) return one_tier_law(o);
  if (fabric.leaf_uplinks < 1) return fmt::format("{} tiers need leaf_uplinks", fabric.tiers);
  if (fabric.uplink_bandwidth <= Bandwidth()) return "fabric.uplink_bandwidth is missing";
  if (fabric.tiers == 3 && fabric.leaves_per_pod < 1) return "three tiers need leaves_per_pod";
  if (fabric.tiers == 3 && fabric.aggregation_uplinks < 1) {
    return "three tiers need aggregation_uplinks";
  }
  return std::nullopt;
}

Law leaf_port_law(const Cluster::Options& o) {
  const FabricSpec& fabric = o.fabric;
  const Bandwidth cable = port_bandwidth(o);
  const Bandwidth port = fabric.tiers > 1 ? fabric.uplink_bandwidth : cable;
  const std::int64_t nics = ceil_div(o.node.nics, fabric.rails);
  const std::int64_t up = fabric.tiers > 1 ? fabric.leaf_uplinks : 0;
  const std::int64_t ports = ports_for(fabric.nodes_per_leaf * nics, cable, port) + up;
  if (ports <= fabric.switch_ports) return std::nullopt;
  return fmt::format(
      "a leaf has nodes_per_leaf {} * {} {} of {} and {} uplinks: {} ports of {}, but a switch "
      "has {}",
      fabric.nodes_per_leaf, nics, fabric.nic_ports > 1 ? "NIC ports" : "NICs", to_text(cable), up,
      ports, to_text(port), fabric.switch_ports);
}

Law port_law(const Cluster::Options& o, const ClosShape& shape) {
  const FabricSpec& fabric = o.fabric;
  if (fabric.switch_ports == 0 || fabric.tiers == 0) return std::nullopt;
  if (Law law = leaf_port_law(o)) return law;
  const std::int64_t leaves = shape.leaves / fabric.planes;
  if (fabric.tiers == 2 && leaves * shape.leaf_parallel > fabric.switch_ports) {
    return fmt::format("{} nodes need {} leaves below each spine, but a switch has {} ports",
                       o.nodes, leaves, fabric.switch_ports);
  }
  if (fabric.tiers < 3) return std::nullopt;
  const std::int64_t below = fabric.leaves_per_pod / fabric.planes;
  const std::int64_t above = core_ports(fabric, fabric.aggregation_uplinks);
  const std::int64_t ports = below * shape.leaf_parallel + above;
  if (ports > fabric.switch_ports) {
    const std::string planes =
        fabric.planes > 1 ? fmt::format(" / planes {}", fabric.planes) : std::string();
    return fmt::format(
        "an aggregation switch has leaves_per_pod {}{} * {} links and aggregation_uplinks {}: {} "
        "ports, but a switch has {}",
        fabric.leaves_per_pod, planes, shape.leaf_parallel, fabric.aggregation_uplinks, ports,
        fabric.switch_ports);
  }
  if (core_ports(fabric, shape.pods * shape.spine_parallel) > fabric.switch_ports) {
    return fmt::format("{} nodes need {} pods below each core switch, but a switch has {} ports",
                       o.nodes, shape.pods, fabric.switch_ports);
  }
  return std::nullopt;
}

}  // namespace

ClosShape clos_shape(const Cluster::Options& options) {
  const FabricSpec& fabric = options.fabric;
  ClosShape shape;
  if (fabric.tiers == 0) return shape;
  shape.groups = ceil_div(options.nodes, fabric.nodes_per_leaf);
  shape.leaves = shape.groups * leaves_per_group(fabric);
  shape.pods = 1;
  if (fabric.tiers == 1 || shape.leaves == fabric.nic_ports) return shape;
  PortNeed need{.below = fabric.tiers == 2 ? shape.leaves : fabric.leaves_per_pod,
                .cable = fabric.uplink_bandwidth,
                .above = 0,
                .port = fabric.uplink_bandwidth,
                .ports = fabric.switch_ports};
  need.below /= fabric.planes;
  if (fabric.tiers == 3) need.above = core_ports(fabric, fabric.aggregation_uplinks);
  shape.spines_per_plane = fewest_switches(fabric.leaf_uplinks, need);
  shape.spines_per_pod = shape.spines_per_plane * fabric.planes;
  shape.leaf_parallel = fabric.leaf_uplinks / shape.spines_per_plane;
  if (fabric.tiers == 2) return shape;
  if (fabric.pod_order == PodOrder::Rail) {
    shape.pods_per_rail = ceil_div(shape.groups, fabric.leaves_per_pod / fabric.nic_ports);
    shape.pods = fabric.rails * shape.pods_per_rail;
  } else {
    shape.pods = ceil_div(shape.leaves, fabric.leaves_per_pod);
  }
  if (shape.pods == 1) return shape;
  need.below = shape.pods;
  need.cable = fabric.aggregation_bandwidth();
  need.above = 0;
  shape.cores_per_spine = fewest_switches(fabric.aggregation_uplinks, need);
  shape.spine_parallel = fabric.aggregation_uplinks / shape.cores_per_spine;
  return shape;
}

std::int64_t pod_of(std::int64_t leaf, const FabricSpec& fabric, const ClosShape& shape) {
  if (fabric.tiers < 3) return 0;
  if (fabric.pod_order == PodOrder::Group) return leaf / fabric.leaves_per_pod;
  const std::int64_t group = leaf / leaves_per_group(fabric);
  const std::int64_t rail = leaf % leaves_per_group(fabric) / fabric.nic_ports;
  return rail * shape.pods_per_rail + group / (fabric.leaves_per_pod / fabric.nic_ports);
}

std::int64_t plane_of(std::int64_t leaf, const FabricSpec& fabric) {
  return fabric.planes == 1 ? 0 : leaf % fabric.nic_ports;
}

std::int64_t clos_links(const Cluster::Options& options) {
  const ClosShape shape = clos_shape(options);
  const std::int64_t nics = std::int64_t{options.nodes} * options.node.nics;
  return 2 * (nics * options.fabric.nic_ports +
              shape.leaves * shape.spines_per_plane * shape.leaf_parallel +
              shape.spines() * shape.cores_per_spine * shape.spine_parallel);
}

Law clos_law(const Cluster::Options& options) {
  if (Law law = fabric_law(options)) return law;
  const FabricSpec& fabric = options.fabric;
  for (const int count : {fabric.nodes_per_leaf, fabric.leaf_uplinks, fabric.leaves_per_pod,
                          fabric.aggregation_uplinks, fabric.switch_ports}) {
    if (count < 0 || count > kCountMax) {
      return fmt::format("a fabric count of {} is not in 0..{}", count, kCountMax);
    }
  }
  return port_law(options, clos_shape(options));
}

}  // namespace foresail::topologies
