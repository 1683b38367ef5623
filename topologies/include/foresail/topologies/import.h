/// \file
/// Fabrics and nodes as other tools print them, read into what a cluster's YAML says
/// (docs/guides/import_a_topology.md). Readers are pure functions of text.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/topologies/graph.h"

namespace foresail::topologies {

/// Ibnetdiscover: its topology file (infiniband-diags). Nccl: what NCCL_TOPO_DUMP_FILE writes.
/// AstraSim: the analytical backend's YAML, or the physical topology text of its ns-3 backend.
/// Simai: SimAI's topology text.
enum class TopologyFormat { Ibnetdiscover, Nccl, AstraSim, Simai };

/// Devices and NICs of one node below one PCIe switch, by their numbers in the node.
struct ImportedPcieSwitch {
  std::vector<int> devices, nics;
  friend bool operator==(const ImportedPcieSwitch&, const ImportedPcieSwitch&) = default;
};

/// What a file says. Zero or empty where it says nothing.
struct ImportedTopology {
  std::vector<std::string> nodes;  ///< their names in the file, by number
  int devices = 0;                 ///< GPUs per node
  int nics = 0;                    ///< per node, the most that a node has
  Bandwidth nic_bandwidth;         ///< one NIC, all its ports, one direction; the most common
  Bandwidth nvlink;                ///< one GPU, all its links, one direction
  Bandwidth pcie;                  ///< one GPU's link to its switch, one direction
  std::string device;              ///< a name for the catalogue: "h100"
  std::vector<ImportedPcieSwitch> pcie_switches;
  GraphSpec graph;                   ///< empty: the file describes one node
  std::vector<std::string> remarks;  ///< what was assumed, left out or looks wrong
};

struct ImportOptions {
  std::optional<TopologyFormat> format;  ///< absent: told by the content
  std::string device;                    ///< catalogue name, instead of the file's
  int devices_per_node = 0;              ///< where the file does not say; 0: one per NIC
  /// Of one cable and the switch behind it, where the file has no latencies.
  Duration link_latency = std::chrono::nanoseconds(450);
};

/// Tells the format of `text` by its first lines that are no comment; nothing if it is none.
std::optional<TopologyFormat> detect_format(std::string_view text);

/// Each throws Error{InvalidInput}: "<file>:<line>: what is wrong".
ImportedTopology read_ibnetdiscover(std::string_view text, const std::string& file,
                                    Duration link_latency);
ImportedTopology read_nccl_topology(std::string_view text, const std::string& file);
ImportedTopology read_astra_sim(std::string_view text, const std::string& file);
ImportedTopology read_simai(std::string_view text, const std::string& file);

/// Whichever of them `options` or the content says.
ImportedTopology import_topology(std::string_view text, const std::string& file,
                                 const ImportOptions& options);

/// The mapping that resolve_cluster reads, the device by its catalogue name; adds a remark for each
/// thing that it had to assume. Throws Error{InvalidInput} if the device is known neither from the
/// file nor from `options`.
Document cluster_document(ImportedTopology& imported, const std::string& name,
                          const ImportOptions& options);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::TopologyFormat> =
    std::to_array<Named<topologies::TopologyFormat>>(
        {{topologies::TopologyFormat::Ibnetdiscover, "ibnetdiscover"},
         {topologies::TopologyFormat::Nccl, "nccl"},
         {topologies::TopologyFormat::AstraSim, "astra_sim"},
         {topologies::TopologyFormat::Simai, "simai"}});
}  // namespace foresail
