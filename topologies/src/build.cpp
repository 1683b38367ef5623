#include "build.h"

#include <fmt/format.h>

#include "clos.h"
#include "foresail/base/error.h"
#include "laws.h"
#include "wiring.h"

namespace foresail::topologies {
namespace {

/// One hop of NVLink through a switch (SimAI's figure); software is in the device's constants.
constexpr Duration kNvlinkLatency = std::chrono::nanoseconds(500);
/// PCIe and NIC of one end. With 450 ns per hop an InfiniBand message within a leaf takes 2.8 us
/// and one across leaves 3.7 us, as tabled in "Insights into DeepSeek-V3" (ISCA 2025).
constexpr Duration kNicLatency = std::chrono::nanoseconds(950);
/// Part of it that is one hop of PCIe. Assumed.
constexpr Duration kPcieLatency = std::chrono::nanoseconds(150);

void add_node_vertices(const Cluster::Options& options, const NodeShape& shape, int n,
                       GraphParts& parts) {
  const NodeSpec& node = options.node;
  const VertexKind centre = shape.has_nvlink ? VertexKind::NvSwitch : VertexKind::Host;
  const auto add = [&](VertexKind kind, int index) {
    parts.vertices.push_back({kind, n, index, 0});
  };
  for (int d = 0; d < node.devices; ++d) add(VertexKind::Device, d);
  add(centre, 0);
  for (int i = 0; i < node.nics; ++i) add(VertexKind::Nic, i);
  for (std::size_t s = 0; s < node.pcie.switches.size(); ++s) {
    add(VertexKind::Pcie, static_cast<int>(s));
  }
  if (shape.has_pcie && shape.has_nvlink) add(VertexKind::Host, 0);
}

void connect_pcie(const NodeSpec& node, const NodeShape& shape, std::int64_t first,
                  GraphParts& parts) {
  const std::int64_t pcie = first + shape.first_pcie;
  const Bandwidth slot = node.pcie.bandwidth;
  for (int d = 0; d < node.devices; ++d) {
    parts.connect(first + d, pcie + shape.pcie_of_device[static_cast<std::size_t>(d)], slot,
                  kPcieLatency);
  }
  for (int i = 0; i < node.nics; ++i) {
    parts.connect(first + shape.first_nic + i,
                  pcie + shape.pcie_of_nic[static_cast<std::size_t>(i)], slot,
                  kNicLatency - kPcieLatency);
  }
  for (std::size_t s = 0; s < node.pcie.switches.size(); ++s) {
    parts.connect(pcie + static_cast<std::int64_t>(s), first + shape.host, slot, kPcieLatency);
  }
}

void connect_node(const Cluster::Options& options, const NodeShape& shape, std::int64_t n,
                  GraphParts& parts) {
  const NodeSpec& node = options.node;
  const std::int64_t first = n * shape.size;
  const Bandwidth inside =
      shape.has_nvlink ? options.device.nvlink : options.device.memory_bandwidth;
  if (shape.has_nvlink || !shape.has_pcie) {
    for (int d = 0; d < node.devices; ++d) {
      parts.connect(first + d, first + shape.centre, inside, kNvlinkLatency);
    }
  }
  if (shape.has_pcie) {
    connect_pcie(node, shape, first, parts);
  } else if (node.nics > 0) {
    for (int d = 0; d < node.devices; ++d) {
      const int nic = shape.nic_of_device[static_cast<std::size_t>(d)];
      parts.connect(first + d, first + shape.first_nic + nic, node.nic_bandwidth, kNicLatency);
    }
  }
}

/// The switches of a folded Clos.
class ClosBuilder {
 public:
  ClosBuilder(const Cluster::Options& options, const NodeShape& node, GraphParts& parts)
      : options_(options), node_(node), shape_(clos_shape(options)), parts_(parts) {}

  void add_switches() {
    first_leaf_ = static_cast<std::int64_t>(parts_.vertices.size());
    first_spine_ = first_leaf_ + shape_.leaves;
    first_core_ = first_spine_ + shape_.spines();
    add_tier(shape_.leaves, 1);
    add_tier(shape_.spines(), 2);
    add_tier(shape_.cores(), 3);
  }
  void connect_leaves();
  void connect_spines();
  void connect_cores();

 private:
  void add_tier(std::int64_t count, int tier) {
    for (int i = 0; i < count; ++i) parts_.vertices.push_back({VertexKind::Switch, -1, i, tier});
  }

  const Cluster::Options& options_;
  const NodeShape& node_;
  const ClosShape shape_;
  GraphParts& parts_;
  std::int64_t first_leaf_ = 0;
  std::int64_t first_spine_ = 0;
  std::int64_t first_core_ = 0;
};

void ClosBuilder::connect_leaves() {
  const NodeSpec& node = options_.node;
  const FabricSpec& fabric = options_.fabric;
  const std::int64_t ports = fabric.nic_ports;
  const Bandwidth port = Bandwidth::bps(node.nic_bandwidth.bits_per_second() / ports);
  for (std::int64_t n = 0; n < options_.nodes; ++n) {
    const std::int64_t group = n / fabric.nodes_per_leaf;
    for (int i = 0; i < node.nics; ++i) {
      const std::int64_t rail = i * fabric.rails / node.nics;
      const std::int64_t leaf = first_leaf_ + (group * fabric.rails + rail) * ports;
      for (std::int64_t p = 0; p < ports; ++p) {
        parts_.connect(nic_position(node_, n, i), leaf + p, port, fabric.link_latency);
      }
    }
  }
}

void ClosBuilder::connect_spines() {
  const FabricSpec& fabric = options_.fabric;
  for (std::int64_t leaf = 0; leaf < shape_.leaves; ++leaf) {
    const std::int64_t first = first_spine_ + pod_of(leaf, fabric, shape_) * shape_.spines_per_pod +
                               plane_of(leaf, fabric) * shape_.spines_per_plane;
    for (std::int64_t uplink = 0; uplink < shape_.spines_per_plane * shape_.leaf_parallel;
         ++uplink) {
      parts_.connect(first_leaf_ + leaf, first + uplink / shape_.leaf_parallel,
                     fabric.uplink_bandwidth, fabric.link_latency);
    }
  }
}

void ClosBuilder::connect_cores() {
  const FabricSpec& fabric = options_.fabric;
  for (std::int64_t spine = 0; spine < shape_.spines(); ++spine) {
    const std::int64_t first = spine % shape_.spines_per_pod * shape_.cores_per_spine;
    const std::int64_t uplinks = shape_.cores_per_spine * shape_.spine_parallel;
    for (std::int64_t uplink = 0; uplink < uplinks; ++uplink) {
      parts_.connect(first_spine_ + spine, first_core_ + first + uplink / shape_.spine_parallel,
                     fabric.aggregation_bandwidth(), fabric.link_latency);
    }
  }
}

}  // namespace

void GraphParts::connect(std::int64_t from, std::int64_t to, Bandwidth bandwidth,
                         Duration latency) {
  const VertexId a{static_cast<std::uint32_t>(from)};
  const VertexId b{static_cast<std::uint32_t>(to)};
  links.push_back({a, b, bandwidth, latency});
  links.push_back({b, a, bandwidth, latency});
}

GraphParts build_graph(const Cluster::Options& options, const NodeShape& shape) {
  GraphParts parts;
  parts.vertices.reserve(
      static_cast<std::size_t>(options.nodes * shape.size + switch_count(options)));
  parts.links.reserve(static_cast<std::size_t>(link_count(options)));
  for (int n = 0; n < options.nodes; ++n) add_node_vertices(options, shape, n, parts);
  for (int n = 0; n < options.nodes; ++n) connect_node(options, shape, n, parts);
  if (options.fabric.kind == FabricKind::Clos) {
    ClosBuilder clos(options, shape, parts);
    clos.add_switches();
    clos.connect_leaves();
    clos.connect_spines();
    clos.connect_cores();
  } else {
    add_direct_fabric(options, shape, parts);
  }
  if (const auto fault = apply_wiring(options, shape, parts)) {
    throw Error(ErrorCode::InvalidInput, fmt::format("cluster {}: wiring[{}]: {}", options.name,
                                                     fault->change, fault->message));
  }
  return parts;
}

}  // namespace foresail::topologies
