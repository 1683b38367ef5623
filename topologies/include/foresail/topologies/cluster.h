/// \file
/// Where the job runs: nodes of devices and NICs on a fabric of switches.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/id.h"
#include "foresail/base/units.h"
#include "foresail/base/yaml.h"
#include "foresail/topologies/device.h"
#include "foresail/topologies/fabric.h"
#include "foresail/topologies/graph.h"

namespace foresail::topologies {

struct NodeShape;  // where things stand within a node; internal

struct Vertex {
  VertexKind kind = VertexKind::Switch;
  int node = -1;  ///< of devices, NVSwitches, hosts, PCIe switches and NICs
  int index = 0;  ///< within its node; of switches: within its tier
  /// Of switches: 1 leaf, 2 aggregation (or spine of two tiers), 3 core. Routers of dragonflies
  /// and tori are all of tier 1; a graph says.
  int tier = 0;
  std::string label{};  ///< the name of a switch outside a Clos, else empty
  /// "node12.gpu3", "node12.nvswitch", "node12.host", "node12.pcie1", "node12.nic3", "leaf5",
  /// "spine17", "core2", "router7", or as the graph calls it.
  std::string name() const;
};

/// One direction of a cable.
struct Link {
  VertexId from, to;
  Bandwidth bandwidth;
  Duration latency{};
};

/// Whether NICs read device memory themselves, or data bounces through the host.
enum class GpuDirect { On, Off };

/// The cluster as a graph. Construction is O(links); vertices and links are numbered in a fixed
/// order: nodes first (devices, NVSwitch or host, NICs, PCIe switches, host), then switches by
/// tier. The two directions of a cable are links 2k and 2k + 1. A tier of a Clos that no route
/// needs is not built (one pod: no core). Copies share the route tables, which may be asked from
/// several threads.
///
/// Links inside a node: device <-> NVSwitch at the NVLink bandwidth (CPU shares <-> host at memory
/// bandwidth). Without `node.pcie`, device <-> NIC at the NIC's bandwidth, so that PCIe is never
/// the narrowest. With it, device, NIC and host <-> PCIe switch at the slot's bandwidth.
class Cluster {
 public:
  struct Options {
    std::string name;
    DeviceSpec device;
    NodeSpec node;
    FabricSpec fabric;
    int nodes = 1;
    Wiring wiring;  ///< applied in order to the fabric as planned
    friend bool operator==(const Options&, const Options&) = default;
  };
  /// Throws Error{InvalidInput} if the parts do not fit together (terms named), or if the wiring
  /// names what is not there. A NIC that no cable reaches is no error: it has no routes.
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
  /// "leaf5->spine17"; the second of parallel links is "leaf5->spine17#1". A wiring keeps the
  /// numbers of the others: added and swapped cables take the lowest that is free.
  std::string link_name(LinkId link) const;
  /// What `Vertex::name()` and `link_name()` call so; nothing if there is none.
  std::optional<VertexId> find_vertex(std::string_view name) const;
  std::optional<LinkId> find_link(std::string_view name) const;
  /// The other direction of the same cable.
  static LinkId reverse(LinkId link) { return LinkId{link.value ^ 1U}; }
  /// In ascending order of links.
  std::span<const LinkId> out_links(VertexId vertex) const;
  /// The out-links of a NIC that leave its node, one per port; ascending.
  std::span<const LinkId> nic_ports(VertexId nic) const;

  VertexId device_vertex(DeviceId device) const;
  VertexId nic_vertex(DeviceId device) const;  ///< the NIC that this device uses

  /// Links on the way between two devices of one node: over the NVSwitch (CPU shares: the host),
  /// or without NVLink over the PCIe switch that both share, else up to the host and down again.
  /// Requires two different devices of one node.
  std::vector<LinkId> intra_node_path(DeviceId from, DeviceId to) const;
  /// The link that enters a device's NIC on the way out, and the one that leaves it on the way in.
  /// Require a cluster with NICs, as nic_vertex().
  LinkId to_nic(DeviceId device) const;
  LinkId from_nic(DeviceId device) const;
  /// Links between a device and its NIC, in order: one cable, or two over the PCIe switch, or four
  /// over the host where they hang below different switches.
  ///
  /// Without GPUDirect every byte is copied to host memory and read again: device - PCIe switch -
  /// host - PCIe switch - NIC. The cable between switch and host is loaded in both directions and
  /// shared by all devices below; host memory itself is taken as fast enough. In a node whose PCIe
  /// is not given, the one cable stands twice: what crosses it twice has half its bandwidth.
  std::vector<LinkId> path_to_nic(DeviceId device, GpuDirect direct = GpuDirect::On) const;
  std::vector<LinkId> path_from_nic(DeviceId device, GpuDirect direct = GpuDirect::On) const;

  /// Equal-cost next hops from `at` towards a NIC, by number of hops, in link order: one link when
  /// there is no choice, none if no way leads there. `at` is another NIC or any switch. A NIC with
  /// several ports has the first hops that are equally near, and is reached over any port. NICs do
  /// not relay. Amortised O(1): RouteTables without dead links (routes.h).
  std::span<const LinkId> next_hops(VertexId at, VertexId destination_nic) const;

 private:
  friend class RouteTables;
  std::optional<LinkId> link_between(VertexId from, VertexId to) const;
  int parallel_of(LinkId link) const;
  VertexId in_node(int node, int offset) const;
  std::vector<LinkId> links_along(int node, std::initializer_list<int> offsets) const;

  Options options_;
  IdVector<VertexId, Vertex> vertices_;
  IdVector<LinkId, Link> links_;
  std::vector<int> parallels_;  // empty: counted
  std::vector<std::uint32_t> out_offsets_;
  std::vector<LinkId> out_links_;
  std::shared_ptr<const NodeShape> shape_;  // shared by copies of one cluster
  class Routes;
  std::shared_ptr<Routes> routes_;  // tables per destination, shared by copies of one cluster
};

/// `{name: megascale, gpus: 12288}`, a catalogue name with the file's own size, a path (relative to
/// the file that `node` stands in), or a full mapping (docs/reference/cluster.md). `search` are
/// catalogue folders that hold clusters/NAME.yaml and devices/NAME.yaml. A `gpus` that is not a
/// multiple of the node's devices is refused unless it is smaller than one node; a single CPU host
/// has as many devices as asked. `cores` overrides those of a CPU host; `wiring` is added to the
/// cluster's own.
Cluster::Options resolve_cluster(const Yaml& node,
                                 const std::vector<std::filesystem::path>& search);
/// Complete: device and constants included, so that a Plan needs no catalogue. Read back equal by
/// resolve_cluster.
Document to_document(const Cluster::Options& options);

/// What `next_hops` offers between the NICs of two devices.
struct RouteCount {
  int hops = 0;            ///< links from NIC to NIC; 0 if there is no way
  std::int64_t paths = 0;  ///< equal-cost paths, parallel links counted apart
};
/// Requires devices with different NICs.
RouteCount count_routes(const Cluster& cluster, DeviceId from, DeviceId to);
/// How many ways, of any length, lead from the switches of one device's NIC to those of the other's
/// with no link in common (the greatest flow of unit capacities); 0 where they share a switch.
int disjoint_paths(const Cluster& cluster, DeviceId from, DeviceId to);

/// Bandwidth in one direction between two halves of the nodes.
struct Bisection {
  struct Crossing {
    std::string tier;  ///< "nodes", or the tier whose uplinks these are
    Bandwidth bandwidth;
  };
  Bandwidth bandwidth;
  std::string method;           ///< how it was computed and where the halves meet
  std::vector<Crossing> tiers;  ///< of a Clos wired as planned: half of each tier that is crossed
};
/// Of a Clos wired as planned, with whole groups and pods on either side: half of the narrowest
/// tier that such traffic crosses. Otherwise the greatest flow that the NICs of the first half of
/// the nodes can send to those of the second, where a torus is cut along its longest dimension.
/// Zero without a fabric.
Bisection bisection(const Cluster& cluster);
Bandwidth bisection_bandwidth(const Cluster& cluster);

/// Table for people: devices, node, tiers with ports, bandwidth and oversubscription per tier,
/// bisection bandwidth, path diversity between the first device and the farthest ones.
std::string summary(const Cluster& cluster);
/// The same as data.
Document summary_document(const Cluster& cluster);

}  // namespace foresail::topologies
