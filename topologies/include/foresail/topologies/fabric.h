/// \file
/// What a cluster is asked to be: the interior of a node, the fabric between the NICs, and what is
/// wired otherwise than planned. Keys of the YAML: docs/reference/cluster.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/topologies/graph.h"

namespace foresail::topologies {

/// One PCIe switch of a node and what hangs below it; its own upstream port goes to the host.
struct PcieSwitch {
  std::vector<int> devices;  ///< indices within the node
  std::vector<int> nics;     ///< indices within the node
  friend bool operator==(const PcieSwitch&, const PcieSwitch&) = default;
};

/// How devices and NICs reach each other and the host: device or NIC - PCIe switch - host, every
/// cable with the same bandwidth (x16 slots of one generation).
struct PcieSpec {
  Bandwidth bandwidth{};  ///< of one slot, one direction, as a copy achieves it
  std::vector<PcieSwitch> switches{};
  bool empty() const { return switches.empty(); }
  friend bool operator==(const PcieSpec&, const PcieSpec&) = default;
};

/// Of the hosts' processors: NCCL's tuning tables and network overhead differ.
enum class CpuVendor { Intel, Amd };

/// What a host offers to optimizer states that do not stay on the devices. All zero: not known.
struct HostSpec {
  Bytes memory{};         ///< for all devices of the node together
  Bandwidth bandwidth{};  ///< of that memory, read and written, as a stream achieves it
  Bandwidth link{};       ///< one device to host memory, one direction, while all devices copy
  bool empty() const { return *this == HostSpec{}; }
  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

/// A host and what is in it. Without `pcie`, NIC i sits beside device floor(i * devices / nics) and
/// device d uses NIC floor(d * nics / devices). With it, the k-th of the d devices of a PCIe switch
/// uses NIC number floor(k * n / d) of the n NICs of that switch; below a switch without NICs all
/// NICs are equally far, and the rule without `pcie` holds.
struct NodeSpec {
  int devices = 8;
  int nics = 8;               ///< 0: a single host
  Bandwidth nic_bandwidth{};  ///< of one NIC with all its ports, one direction
  /// Of a NIC and its transport, beyond the InfiniBand NIC that NCCL's tables assume: it adds to
  /// every step of a collective between nodes.
  Duration nic_latency{};
  /// What the NIC's plugin tells NCCL of its latency (ncclNetProperties): it counts in NCCL's
  /// choice of algorithm and protocol, not in any time. Unset: nic_latency.
  std::optional<Duration> nccl_latency{};
  CpuVendor cpu_vendor = CpuVendor::Intel;
  int cores = 0;    ///< CPU hosts: cores that the ranks share
  Bytes memory{};   ///< CPU hosts: shared by the ranks
  PcieSpec pcie{};  ///< empty: every device has a cable of its own to its NIC
  HostSpec host{};
  friend bool operator==(const NodeSpec&, const NodeSpec&) = default;
};

/// Which leaves share aggregation switches: neighbouring groups of nodes with all their rails, or
/// the same rail of many groups (as in DGX SuperPODs, where a rail stays below the core longer).
enum class PodOrder { Group, Rail };

enum class FabricKind { Clos, Dragonfly, Torus, Graph };

/// Routers of `nics_per_router` NICs (NIC i of node n is number n * nics + i). The routers of a
/// group are all joined; groups are joined by the `global_links` of their routers, as many cables
/// between any two groups as there are ports for (Kim et al., ISCA 2008: at most
/// routers_per_group * global_links + 1 groups, balanced at a = 2p = 2h).
struct DragonflySpec {
  int nics_per_router = 0;     ///< p
  int routers_per_group = 0;   ///< a
  int global_links = 0;        ///< h, of one router
  int groups = 0;              ///< g
  Bandwidth local_bandwidth;   ///< of one cable within a group, one direction
  Bandwidth global_bandwidth;  ///< of one cable between groups, one direction
  friend bool operator==(const DragonflySpec&, const DragonflySpec&) = default;
};

/// One router per node, which holds all its NICs; node n stands at coordinates n mod x,
/// n / x mod y, ... Rings in every dimension; a dimension of two has one cable, not two.
struct TorusSpec {
  std::vector<int> dimensions;  ///< one to three
  Bandwidth bandwidth;          ///< of one cable between routers, one direction
  friend bool operator==(const TorusSpec&, const TorusSpec&) = default;
};

/// What lies between the NICs. Of a folded Clos of one to three switch tiers: tier 1 has
/// `nodes_per_leaf` nodes below it; with `rails` > 1 there are that many leaves per group and NIC i
/// goes to leaf i * rails / nics.
struct FabricSpec {
  FabricKind kind = FabricKind::Clos;
  int tiers = 0;                 ///< Clos; 0: no fabric (single host)
  int rails = 1;                 ///< leaves per group of nodes (MegaScale: 8)
  int nodes_per_leaf = 1;        ///< MegaScale: 64
  int leaf_uplinks = 0;          ///< uplinks per leaf (MegaScale: 32)
  Bandwidth uplink_bandwidth{};  ///< of one uplink, one direction
  int leaves_per_pod = 0;        ///< three tiers: leaves below one set of aggregation switches
  int aggregation_uplinks = 0;   ///< three tiers: uplinks per aggregation switch
  Bandwidth aggregation_uplink_bandwidth{};  ///< three tiers; zero: as uplink_bandwidth
  PodOrder pod_order = PodOrder::Group;      ///< three tiers: which leaves form a pod
  /// Ports of one switch at uplink_bandwidth (slower NICs split a port); 0: any number. The top
  /// tier then has the fewest switches whose ports suffice, else one per uplink.
  int switch_ports = 0;
  /// Ports of a NIC, which share its bandwidth: port p goes to leaf p of its rail (HPN: dual ToR).
  int nic_ports = 1;
  /// 1, or nic_ports: leaves of port p then meet only aggregation switches of plane p (HPN: 2).
  int planes = 1;
  Duration link_latency{};    ///< cable and switch, per hop; of a graph, of cables that wiring adds
  DragonflySpec dragonfly{};  ///< FabricKind::Dragonfly
  TorusSpec torus{};          ///< FabricKind::Torus
  GraphSpec graph{};          ///< FabricKind::Graph

  bool has_fabric() const { return kind != FabricKind::Clos || tiers > 0; }
  Bandwidth aggregation_bandwidth() const {
    return aggregation_uplink_bandwidth > Bandwidth() ? aggregation_uplink_bandwidth
                                                      : uplink_bandwidth;
  }
  friend bool operator==(const FabricSpec&, const FabricSpec&) = default;
};

enum class WiringAction { Swap, Remove, Cable, Add };

/// One difference between the plan and what is really plugged in. A cable is named by either of its
/// two links ("leaf0->spine1", parallel ones "leaf0->spine1#1"), a NIC or switch by its vertex.
struct WiringChange {
  WiringAction action = WiringAction::Swap;
  std::string first{};   ///< Swap: a NIC or a cable. Others: the cable
  std::string second{};  ///< Swap: the NIC or cable that changes its far end with `first`
  std::optional<Bandwidth> bandwidth{};  ///< Cable (if it changes), Add (required)
  std::optional<Duration> latency{};     ///< Cable (if it changes), Add (else link_latency)
  friend bool operator==(const WiringChange&, const WiringChange&) = default;
};
using Wiring = std::vector<WiringChange>;

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::PodOrder> = std::to_array<Named<topologies::PodOrder>>(
    {{topologies::PodOrder::Group, "group"}, {topologies::PodOrder::Rail, "rail"}});
template <>
inline constexpr auto kNames<topologies::CpuVendor> = std::to_array<Named<topologies::CpuVendor>>(
    {{topologies::CpuVendor::Intel, "intel"}, {topologies::CpuVendor::Amd, "amd"}});
template <>
inline constexpr auto kNames<topologies::FabricKind> =
    std::to_array<Named<topologies::FabricKind>>({{topologies::FabricKind::Clos, "clos"},
                                                  {topologies::FabricKind::Dragonfly, "dragonfly"},
                                                  {topologies::FabricKind::Torus, "torus"},
                                                  {topologies::FabricKind::Graph, "graph"}});
template <>
inline constexpr auto kNames<topologies::WiringAction> =
    std::to_array<Named<topologies::WiringAction>>({{topologies::WiringAction::Swap, "swap"},
                                                    {topologies::WiringAction::Remove, "remove"},
                                                    {topologies::WiringAction::Cable, "cable"},
                                                    {topologies::WiringAction::Add, "add"}});
}  // namespace foresail
