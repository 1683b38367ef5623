#include "laws.h"

#include <fmt/format.h>

#include <set>

#include "clos.h"
#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

constexpr std::int64_t kLinksMax = std::int64_t{1} << 23;
constexpr int kNodesMax = 1 << 17;
constexpr int kSizeMax = 1 << 16;
constexpr int kTierMax = 16;

using Law = std::optional<std::string>;

/// Every index of 0..count-1 once among the switches.
Law placed_law(const PcieSpec& pcie, std::vector<int> PcieSwitch::*part, const char* noun,
               int count) {
  std::set<int> seen;
  for (const PcieSwitch& item : pcie.switches) {
    for (const int index : item.*part) {
      if (index < 0 || index >= count) {
        return fmt::format("node.pcie places {} {}, but the node has {}", noun, index, count);
      }
      if (!seen.insert(index).second) {
        return fmt::format("node.pcie places {} {} twice", noun, index);
      }
    }
  }
  for (int index = 0; index < count; ++index) {
    if (!seen.contains(index)) {
      return fmt::format("node.pcie places no {} {} of {}", noun, index, count);
    }
  }
  return std::nullopt;
}

Law pcie_law(const NodeSpec& node) {
  if (node.pcie.empty()) return std::nullopt;
  if (node.pcie.bandwidth <= Bandwidth()) return "node.pcie.bandwidth is missing";
  if (Law law = placed_law(node.pcie, &PcieSwitch::devices, "device", node.devices)) return law;
  return placed_law(node.pcie, &PcieSwitch::nics, "nic", node.nics);
}

Law gpu_law(const Cluster::Options& o) {
  const NodeSpec& node = o.node;
  if (node.cores != 0) return fmt::format("node.cores {} is for CPU hosts only", node.cores);
  if (node.memory != Bytes()) return "node.memory is for CPU hosts only";
  if (node.devices > 1 && o.device.nvlink <= Bandwidth() && node.pcie.empty()) {
    return fmt::format(
        "{} GPUs share a node, but device {} states no nvlink (bandwidth between them in one "
        "direction) and the node no pcie",
        node.devices, o.device.name);
  }
  return std::nullopt;
}

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
  if (Law law = pcie_law(node)) return law;
  if (o.device.kind != DeviceKind::Cpu) return gpu_law(o);
  if (!node.pcie.empty()) return "node.pcie is for nodes of GPUs";
  if (!node.host.empty()) return "node.host is for nodes of GPUs";
  if (node.cores < 1) return "a CPU host needs node.cores";
  if (node.memory <= Bytes()) return "a CPU host needs node.memory";
  return std::nullopt;
}

Law in_range(const char* key, int value, int low) {
  if (value >= low && value <= kSizeMax) return std::nullopt;
  return fmt::format("fabric.{} {} is not in {}..{}", key, value, low, kSizeMax);
}

Law dragonfly_law(const Cluster::Options& o) {
  const DragonflySpec& spec = o.fabric.dragonfly;
  if (Law law = in_range("nics_per_router", spec.nics_per_router, 1)) return law;
  if (Law law = in_range("routers_per_group", spec.routers_per_group, 1)) return law;
  if (Law law = in_range("groups", spec.groups, 1)) return law;
  if (Law law = in_range("global_links", spec.global_links, spec.groups > 1 ? 1 : 0)) return law;
  const std::int64_t global = std::int64_t{spec.routers_per_group} * spec.global_links;
  if (spec.groups > global + 1) {
    return fmt::format(
        "fabric.groups {} are more than routers_per_group {} * global_links {} + 1 = {}: not every "
        "two groups could be joined",
        spec.groups, spec.routers_per_group, spec.global_links, global + 1);
  }
  if (spec.routers_per_group > 1 && spec.local_bandwidth <= Bandwidth()) {
    return "fabric.local_bandwidth is missing";
  }
  if (spec.groups > 1 && spec.global_bandwidth <= Bandwidth()) {
    return "fabric.global_bandwidth is missing";
  }
  const std::int64_t places =
      std::int64_t{spec.nics_per_router} * spec.routers_per_group * spec.groups;
  if (std::int64_t{o.nodes} * o.node.nics > places) {
    return fmt::format(
        "nodes {} * nics {} = {} NICs, but nics_per_router {} * routers_per_group {} * groups {} = "
        "{} places",
        o.nodes, o.node.nics, std::int64_t{o.nodes} * o.node.nics, spec.nics_per_router,
        spec.routers_per_group, spec.groups, places);
  }
  return std::nullopt;
}

Law torus_law(const Cluster::Options& o) {
  const TorusSpec& spec = o.fabric.torus;
  if (spec.dimensions.empty() || spec.dimensions.size() > 3) {
    return fmt::format("fabric.dimensions has {} entries, not 1..3", spec.dimensions.size());
  }
  std::int64_t routers = 1;
  std::string product;
  for (const int size : spec.dimensions) {
    if (Law law = in_range("dimensions", size, 1)) return law;
    routers *= size;
    product += fmt::format("{}{}", product.empty() ? "" : " * ", size);
  }
  if (routers > kNodesMax) {
    return fmt::format("fabric.dimensions make {} = {} routers; more than {} are not supported",
                       product, routers, kNodesMax);
  }
  if (routers > 1 && spec.bandwidth <= Bandwidth()) return "fabric.bandwidth is missing";
  if (o.nodes > routers) {
    return fmt::format("{} nodes, but fabric.dimensions make {} = {} routers", o.nodes, product,
                       routers);
  }
  return std::nullopt;
}

std::string text_of(const CableEnd& end) {
  return end.switch_name.empty() ? fmt::format("node{}.nic{}", end.node, end.nic) : end.switch_name;
}

Law cable_law(const Cluster::Options& o, const Cable& cable, const std::set<std::string>& known) {
  for (const CableEnd* end : {&cable.a, &cable.b}) {
    if (!end->switch_name.empty()) {
      if (!known.contains(end->switch_name)) {
        return fmt::format("a cable ends at {}, which is no switch of the graph", end->switch_name);
      }
    } else if (end->node < 0 || end->node >= o.nodes || end->nic < 0 || end->nic >= o.node.nics) {
      return fmt::format("a cable ends at {}, but there are {} nodes with {} NICs", text_of(*end),
                         o.nodes, o.node.nics);
    }
  }
  if (cable.a.switch_name.empty() && cable.b.switch_name.empty()) {
    return fmt::format("a cable joins {} and {} without a switch between them", text_of(cable.a),
                       text_of(cable.b));
  }
  const bool is_usable = cable.bandwidth > Bandwidth() && cable.latency >= Duration() &&
                         cable.count >= 1 && cable.count <= kSizeMax && cable.a != cable.b;
  if (is_usable) return std::nullopt;
  return fmt::format("the cable {} - {} ({} x {}) needs two ends, a bandwidth and a count",
                     text_of(cable.a), text_of(cable.b), cable.count, to_text(cable.bandwidth));
}

Law graph_law(const Cluster::Options& o) {
  const GraphSpec& graph = o.fabric.graph;
  if (graph.empty()) return "fabric.graph has no cables";
  std::set<std::string> known;
  for (const GraphSwitch& item : graph.switches) {
    if (item.name.empty()) return "fabric.graph has a switch without a name";
    if (!known.insert(item.name).second) {
      return fmt::format("fabric.graph has two switches {}", item.name);
    }
    if (item.tier < 1 || item.tier > kTierMax) {
      return fmt::format("fabric.graph: tier {} of {} is not in 1..{}", item.tier, item.name,
                         kTierMax);
    }
  }
  for (const Cable& cable : graph.cables) {
    if (Law law = cable_law(o, cable, known)) return law;
  }
  return std::nullopt;
}

Law fabric_law(const Cluster::Options& o) {
  const FabricKind kind = o.fabric.kind;
  if (kind == FabricKind::Clos) return clos_law(o);
  if (o.node.nics == 0) return fmt::format("a {} of switches, but node.nics 0", to_string(kind));
  if (o.fabric.tiers != 0) {
    return fmt::format("fabric.tiers {} is for a clos, not a {}", o.fabric.tiers, to_string(kind));
  }
  if (o.fabric.nic_ports != 1 || o.fabric.planes != 1) {
    return fmt::format("fabric.nic_ports {} and planes {} are for a clos, not a {}",
                       o.fabric.nic_ports, o.fabric.planes, to_string(kind));
  }
  if (kind == FabricKind::Dragonfly) return dragonfly_law(o);
  return kind == FabricKind::Torus ? torus_law(o) : graph_law(o);
}

std::int64_t torus_routers(const TorusSpec& spec) {
  std::int64_t routers = 1;
  for (const int size : spec.dimensions) routers *= size;
  return routers;
}

/// Cables between switches and to NICs of a fabric that is no Clos.
std::int64_t direct_cables(const Cluster::Options& o) {
  const FabricSpec& fabric = o.fabric;
  const std::int64_t nics = std::int64_t{o.nodes} * o.node.nics;
  std::int64_t cables = 0;
  if (fabric.kind == FabricKind::Graph) {
    for (const Cable& cable : fabric.graph.cables) cables += cable.count;
    return cables;
  }
  if (fabric.kind == FabricKind::Torus) {
    const auto dimensions = static_cast<std::int64_t>(fabric.torus.dimensions.size());
    return nics + torus_routers(fabric.torus) * dimensions;
  }
  const DragonflySpec& spec = fabric.dragonfly;
  const std::int64_t a = spec.routers_per_group;
  return nics + spec.groups * (a * (a - 1) + a * spec.global_links) / 2;
}

}  // namespace

std::int64_t switch_count(const Cluster::Options& options) {
  const FabricSpec& fabric = options.fabric;
  switch (fabric.kind) {
    case FabricKind::Clos: {
      const ClosShape shape = clos_shape(options);
      return shape.leaves + shape.spines() + shape.cores();
    }
    case FabricKind::Dragonfly:
      return std::int64_t{fabric.dragonfly.routers_per_group} * fabric.dragonfly.groups;
    case FabricKind::Torus:
      return torus_routers(fabric.torus);
    case FabricKind::Graph:
      return static_cast<std::int64_t>(fabric.graph.switches.size());
  }
  return 0;
}

std::int64_t link_count(const Cluster::Options& options) {
  const NodeSpec& node = options.node;
  const std::int64_t in_node = node.devices + (node.nics > 0 ? node.devices + node.nics : 0) +
                               static_cast<std::int64_t>(node.pcie.switches.size());
  const bool is_clos = options.fabric.kind == FabricKind::Clos;
  return 2 * options.nodes * in_node + (is_clos ? clos_links(options) : 2 * direct_cables(options));
}

Law broken_law(const Cluster::Options& options) {
  if (Law law = node_law(options)) return law;
  if (Law law = fabric_law(options)) return law;
  if (switch_count(options) > kLinksMax) {
    return fmt::format("the fabric has {} switches; more than {} are not supported",
                       switch_count(options), kLinksMax);
  }
  const std::int64_t links = link_count(options);
  if (links > kLinksMax) {
    return fmt::format("{} nodes make {} links; more than {} are not supported", options.nodes,
                       links, kLinksMax);
  }
  return std::nullopt;
}

}  // namespace foresail::topologies
