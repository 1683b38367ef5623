#include "clos.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

constexpr std::int64_t kLinksMax = std::int64_t{1} << 23;
constexpr int kNodesMax = 1 << 17;
constexpr int kCountMax = 1 << 16;  // products of all counts stay below 2^63

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// The fewest switches over which `uplinks` spread evenly so that each, with `below` switches under
/// it and `above` uplinks of its own, has enough ports; one per uplink if nothing less will do.
std::int64_t fewest_switches(std::int64_t uplinks, std::int64_t below, std::int64_t above,
                             std::int64_t ports) {
  for (std::int64_t count = 1; count < uplinks; ++count) {
    if (uplinks % count == 0 && below * (uplinks / count) + above <= ports) return count;
  }
  return uplinks;
}

using Law = std::optional<std::string>;

Law node_law(const Cluster::Options& o) {
  const NodeSpec& node = o.node;
  if (o.nodes < 1 || o.nodes > kNodesMax) {
    return fmt::format("nodes {} is not in 1..{}", o.nodes, kNodesMax);
  }
  if (node.devices < 1 || node.devices > 1024) {
    return fmt::format("node.devices {} is not in 1..1024", node.devices);
  }
  if (node.nics < 0 || node.nics > node.devices) {
    return fmt::format(
        "node.nics {} is not in 0..devices {}: a device drives one NIC, so give the NICs of one "
        "device as one with the sum of their bandwidths",
        node.nics, node.devices);
  }
  if (node.nics > 0 && node.nic_bandwidth <= Bandwidth()) return "node.nic_bandwidth is missing";
  if (o.device.kind == DeviceKind::Cpu) {
    if (node.cores < 1) return "a CPU host needs node.cores";
    if (node.memory <= Bytes()) return "a CPU host needs node.memory";
  } else {
    if (node.cores != 0) return fmt::format("node.cores {} is for CPU hosts only", node.cores);
    if (node.memory != Bytes()) return "node.memory is for CPU hosts only";
    if (node.devices > 1 && o.device.nvlink <= Bandwidth()) {
      return fmt::format(
          "{} GPUs share a node, but device {} states no nvlink (bandwidth between "
          "them in one direction)",
          node.devices, o.device.name);
    }
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
  if (fabric.tiers == 1) {
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
  const Bandwidth port = fabric.tiers > 1 ? fabric.uplink_bandwidth : o.node.nic_bandwidth;
  const std::int64_t nics = ceil_div(o.node.nics, fabric.rails);
  const std::int64_t down = fabric.nodes_per_leaf * nics;
  // Slow NICs split a port evenly; a NIC faster than a port takes several.
  const std::int64_t split =
      std::max<std::int64_t>(1, port.bits_per_second() / o.node.nic_bandwidth.bits_per_second());
  const std::int64_t each =
      ceil_div(o.node.nic_bandwidth.bits_per_second(), port.bits_per_second());
  const std::int64_t up = fabric.tiers > 1 ? fabric.leaf_uplinks : 0;
  const std::int64_t ports = ceil_div(down, split) * each + up;
  if (ports <= fabric.switch_ports) return std::nullopt;
  return fmt::format(
      "a leaf has nodes_per_leaf {} * {} NICs of {} and {} uplinks: {} ports of {}, but a switch "
      "has {}",
      fabric.nodes_per_leaf, nics, to_text(o.node.nic_bandwidth), up, ports, to_text(port),
      fabric.switch_ports);
}

Law port_law(const Cluster::Options& o, const ClosShape& shape) {
  const FabricSpec& fabric = o.fabric;
  if (fabric.switch_ports == 0 || fabric.tiers == 0) return std::nullopt;
  if (Law law = leaf_port_law(o)) return law;
  if (fabric.tiers == 2 && shape.leaves * shape.leaf_parallel > fabric.switch_ports) {
    return fmt::format("{} nodes need {} leaves below each spine, but a switch has {} ports",
                       o.nodes, shape.leaves, fabric.switch_ports);
  }
  if (fabric.tiers < 3) return std::nullopt;
  const std::int64_t ports =
      fabric.leaves_per_pod * shape.leaf_parallel + fabric.aggregation_uplinks;
  if (ports > fabric.switch_ports) {
    return fmt::format(
        "an aggregation switch has leaves_per_pod {} * {} links and aggregation_uplinks {}: {} "
        "ports, but a switch has {}",
        fabric.leaves_per_pod, shape.leaf_parallel, fabric.aggregation_uplinks, ports,
        fabric.switch_ports);
  }
  if (shape.pods * shape.spine_parallel > fabric.switch_ports) {
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
  shape.leaves = shape.groups * fabric.rails;
  shape.pods = 1;
  if (fabric.tiers == 1 || shape.leaves == 1) return shape;
  if (fabric.tiers == 2) {
    shape.spines_per_pod =
        fewest_switches(fabric.leaf_uplinks, shape.leaves, 0, fabric.switch_ports);
    shape.leaf_parallel = fabric.leaf_uplinks / shape.spines_per_pod;
    return shape;
  }
  shape.spines_per_pod = fewest_switches(fabric.leaf_uplinks, fabric.leaves_per_pod,
                                         fabric.aggregation_uplinks, fabric.switch_ports);
  shape.leaf_parallel = fabric.leaf_uplinks / shape.spines_per_pod;
  if (fabric.pod_order == PodOrder::Rail) {
    shape.pods_per_rail = ceil_div(shape.groups, fabric.leaves_per_pod);
    shape.pods = fabric.rails * shape.pods_per_rail;
  } else {
    shape.pods = ceil_div(shape.leaves, fabric.leaves_per_pod);
  }
  if (shape.pods == 1) return shape;
  shape.cores_per_plane =
      fewest_switches(fabric.aggregation_uplinks, shape.pods, 0, fabric.switch_ports);
  shape.spine_parallel = fabric.aggregation_uplinks / shape.cores_per_plane;
  return shape;
}

std::int64_t pod_of(std::int64_t leaf, const FabricSpec& fabric, const ClosShape& shape) {
  if (fabric.tiers < 3) return 0;
  if (fabric.pod_order == PodOrder::Group) return leaf / fabric.leaves_per_pod;
  const std::int64_t group = leaf / fabric.rails;
  const std::int64_t rail = leaf % fabric.rails;
  return rail * shape.pods_per_rail + group / fabric.leaves_per_pod;
}

std::int64_t vertex_count(const Cluster::Options& options, const ClosShape& shape) {
  const std::int64_t per_node = options.node.devices + 1 + options.node.nics;
  return options.nodes * per_node + shape.leaves + shape.spines() + shape.cores();
}

std::int64_t link_count(const Cluster::Options& options, const ClosShape& shape) {
  const NodeSpec& node = options.node;
  const std::int64_t cables_per_node =
      node.devices + (node.nics > 0 ? node.devices + node.nics : 0);
  return 2 * (options.nodes * cables_per_node +
              shape.leaves * shape.spines_per_pod * shape.leaf_parallel +
              shape.spines() * shape.cores_per_plane * shape.spine_parallel);
}

Law broken_law(const Cluster::Options& options) {
  if (Law law = node_law(options)) return law;
  if (Law law = fabric_law(options)) return law;
  const FabricSpec& fabric = options.fabric;
  for (const int count : {fabric.nodes_per_leaf, fabric.leaf_uplinks, fabric.leaves_per_pod,
                          fabric.aggregation_uplinks, fabric.switch_ports}) {
    if (count < 0 || count > kCountMax) {
      return fmt::format("a fabric count of {} is not in 0..{}", count, kCountMax);
    }
  }
  const ClosShape shape = clos_shape(options);
  if (Law law = port_law(options, shape)) return law;
  const std::int64_t links = link_count(options, shape);
  if (links > kLinksMax) {
    return fmt::format("{} nodes make {} links; more than {} are not supported", options.nodes,
                       links, kLinksMax);
  }
  return std::nullopt;
}

}  // namespace foresail::topologies
