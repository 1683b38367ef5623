/// \file
/// Where the job runs: nodes of devices and NICs on a fabric of switches.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/id.h"
#include "foresail/base/units.h"
#include "foresail/base/yaml.h"
#include "foresail/topologies/device.h"
#include "foresail/topologies/graph.h"

namespace foresail::topologies {

/// Of the hosts' processors: NCCL's tuning tables and network overhead differ.
enum class CpuVendor { Intel, Amd };

/// A host and what is in it. NIC i sits beside device floor(i * devices / nics); device d uses NIC
/// floor(d * nics / devices).
struct NodeSpec {
  int devices = 8;
  int nics = 8;             ///< 0: a single host
  Bandwidth nic_bandwidth;  ///< of one NIC, one direction
  /// Of a NIC and its transport, beyond the InfiniBand NIC that NCCL's tables assume: it adds to
  /// every step of a collective between nodes.
  Duration nic_latency{};
  CpuVendor cpu_vendor = CpuVendor::Intel;
  int cores = 0;  ///< CPU hosts: cores that the ranks share
  Bytes memory;   ///< CPU hosts: shared by the ranks
  friend bool operator==(const NodeSpec&, const NodeSpec&) = default;
};

/// Which leaves share aggregation switches: neighbouring groups of nodes with all their rails, or
/// the same rail of many groups (as in DGX SuperPODs, where a rail stays below the core longer).
enum class PodOrder { Group, Rail };

/// A folded Clos of one to three switch tiers. Tier 1 has `nodes_per_leaf` nodes below it; with
/// `rails` > 1 there are that many leaves per group and NIC i goes to leaf i * rails / nics.
struct FabricSpec {
  int tiers = 0;                ///< 0: no fabric (single host)
  int rails = 1;                ///< leaves per group of nodes (MegaScale: 8)
  int nodes_per_leaf = 1;       ///< MegaScale: 64
  int leaf_uplinks = 0;         ///< uplinks per leaf (MegaScale: 32)
  Bandwidth uplink_bandwidth;   ///< of one uplink, one direction, all tiers
  int leaves_per_pod = 0;       ///< three tiers: leaves below one set of aggregation switches
  int aggregation_uplinks = 0;  ///< three tiers: uplinks per aggregation switch
  PodOrder pod_order = PodOrder::Group;  ///< three tiers: which leaves form a pod
  /// Ports of one switch at uplink_bandwidth (slower NICs split a port); 0: any number. The top
  /// tier then has the fewest switches whose ports suffice, else one per uplink.
  int switch_ports = 0;
  Duration link_latency{};  ///< cable and switch, per hop
  friend bool operator==(const FabricSpec&, const FabricSpec&) = default;
};

struct Vertex {
  VertexKind kind = VertexKind::Switch;
  int node = -1;  ///< of devices, NVSwitches, hosts and NICs
  int index = 0;  ///< within its node; of switches: within its tier
  int tier = 0;   ///< of switches: 1 leaf, 2 aggregation (or spine of two tiers), 3 core
  /// "node12.gpu3", "node12.nvswitch", "node12.host", "node12.nic3", "leaf5", "spine17", "core2"
  std::string name() const;
};

/// One direction of a cable.
struct Link {
  VertexId from, to;
  Bandwidth bandwidth;
  Duration latency{};
};

/// The cluster as a graph. Construction is O(links); vertices and links are numbered in a fixed
/// order: nodes first (devices, NVSwitch or host, NICs), then switches by tier. A tier that no
/// route needs is not built (one pod: no core). Copies share the route tables, which may be asked
/// from several threads.
///
/// Links inside a node: device <-> NVSwitch at the NVLink bandwidth (CPU shares <-> host at memory
/// bandwidth), device <-> NIC at the NIC's bandwidth, so that PCIe is never the narrowest.
class Cluster {
 public:
  struct Options {
    std::string name;
    DeviceSpec device;
    NodeSpec node;
    FabricSpec fabric;
    int nodes = 1;
    friend bool operator==(const Options&, const Options&) = default;
  };
  /// Throws Error{InvalidInput} if the parts do not fit together (terms named).
  explicit Cluster(const Options& options);

  const Options& options() const { return options_; }
  /// Replaces the device's cost constants, on which the graph does not depend (for fitters).
  void set_constants(const CostConstants& constants) { options_.device.constants = constants; }
  const std::string& name() const { return options_.name; }
  const DeviceSpec& device() const { return options_.device; }
  const NodeSpec& node() const { return options_.node; }
  int device_count() const { return options_.nodes * options_.node.devices; }
  int node_of(DeviceId device) const;

  const IdVector<VertexId, Vertex>& vertices() const { return vertices_; }
  const IdVector<LinkId, Link>& links() const { return links_; }
  /// "leaf5->spine17"; the second of parallel links is "leaf5->spine17#1".
  std::string link_name(LinkId link) const;
  std::span<const LinkId> out_links(VertexId vertex) const;

  VertexId device_vertex(DeviceId device) const;
  VertexId nic_vertex(DeviceId device) const;  ///< the NIC that this device uses

  /// Links on the way device -> NVSwitch (or host) -> device within a node. Requires two different
  /// devices of one node.
  std::vector<LinkId> intra_node_path(DeviceId from, DeviceId to) const;
  /// Link device -> NIC, and NIC -> device. Require a cluster with NICs, as nic_vertex().
  LinkId to_nic(DeviceId device) const;
  LinkId from_nic(DeviceId device) const;

  /// Equal-cost next hops from `at` towards the NIC of `to`, by number of hops, in link order: one
  /// link when there is no choice. `at` is another NIC or any switch. O(1) after the first call per
  /// destination leaf.
  std::span<const LinkId> next_hops(VertexId at, VertexId destination_nic) const;

 private:
  Options options_;
  IdVector<VertexId, Vertex> vertices_;
  IdVector<LinkId, Link> links_;
  std::vector<std::uint32_t> out_offsets_;
  std::vector<LinkId> out_links_;
  struct Routes;
  std::shared_ptr<Routes> routes_;  // tables per destination leaf, shared by copies of one cluster
};

/// `{name: megascale, gpus: 12288}`, a catalogue name with the file's own size, a path (relative to
/// the file that `node` stands in), or a full mapping (docs/reference/cluster.md). `search` are
/// catalogue folders that hold clusters/NAME.yaml and devices/NAME.yaml. A `gpus` that is not a
/// multiple of the node's devices is refused unless it is smaller than one node; a single CPU host
/// has as many devices as asked. `cores` overrides those of a CPU host.
Cluster::Options resolve_cluster(const Yaml& node,
                                 const std::vector<std::filesystem::path>& search);
/// Complete: device and constants included, so that a Plan needs no catalogue. Read back equal by
/// resolve_cluster.
Document to_document(const Cluster::Options& options);

/// What `next_hops` offers between the NICs of two devices.
struct RouteCount {
  int hops = 0;            ///< links from NIC to NIC
  std::int64_t paths = 0;  ///< equal-cost paths, parallel links counted apart
};
/// Requires devices with different NICs.
RouteCount count_routes(const Cluster& cluster, DeviceId from, DeviceId to);

/// One direction between two halves of the nodes (whole groups and pods on either side): half of
/// the narrowest tier that such traffic crosses. Zero without a fabric.
Bandwidth bisection_bandwidth(const Cluster& cluster);

/// Table for people: devices, node, tiers with ports, bandwidth and oversubscription per tier,
/// bisection bandwidth.
std::string summary(const Cluster& cluster);
/// The same as data.
Document summary_document(const Cluster& cluster);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::PodOrder> = std::to_array<Named<topologies::PodOrder>>(
    {{topologies::PodOrder::Group, "group"}, {topologies::PodOrder::Rail, "rail"}});
template <>
inline constexpr auto kNames<topologies::CpuVendor> = std::to_array<Named<topologies::CpuVendor>>(
    {{topologies::CpuVendor::Intel, "intel"}, {topologies::CpuVendor::Amd, "amd"}});
}  // namespace foresail
