/// \file
/// A fabric given cable by cable, as people have it: written by hand, or read from what their
/// tools print. Nodes are described by NodeSpec; this is what lies between their NICs.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/base/yaml.h"

namespace foresail::topologies {

enum class VertexKind { Device, NvSwitch, Host, Pcie, Nic, Switch };

struct GraphSwitch {
  std::string name;
  int tier = 1;  ///< 1: leaves; a fabric without tiers (torus, dragonfly) has only these
  friend bool operator==(const GraphSwitch&, const GraphSwitch&) = default;
};

/// A NIC of a node, or a switch.
struct CableEnd {
  int node = -1;            ///< of a NIC; -1: the end is a switch
  int nic = 0;              ///< within its node
  std::string switch_name;  ///< of a switch; empty: the end is a NIC
  friend bool operator==(const CableEnd&, const CableEnd&) = default;
};

/// `count` parallel cables, each with `bandwidth` in either direction.
struct Cable {
  CableEnd a, b;
  Bandwidth bandwidth;
  Duration latency{};
  int count = 1;
  friend bool operator==(const Cable&, const Cable&) = default;
};

struct GraphSpec {
  std::vector<GraphSwitch> switches;
  std::vector<Cable> cables;
  bool empty() const { return switches.empty() && cables.empty(); }
  friend bool operator==(const GraphSpec&, const GraphSpec&) = default;
};

/// `{switches: [{name: s0, tier: 1}, …], cables: [{from: node0.nic0, to: s0, bandwidth: 400 Gb/s,
/// latency: 1 us, count: 1}, …]}` (docs/reference/topology_files.md). Lists, so that switches keep
/// their order. Every switch must be cabled, every name known, no switch twice; names must not
/// hold "->" or "#" nor read like "node0.…"; two NICs need a switch between them. Throws
/// Error{InvalidInput} with file, line and key.
GraphSpec read_graph(const Yaml& node);
/// Read back equal by read_graph.
Document to_document(const GraphSpec& graph);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::VertexKind> =
    std::to_array<Named<topologies::VertexKind>>({{topologies::VertexKind::Device, "device"},
                                                  {topologies::VertexKind::NvSwitch, "nvswitch"},
                                                  {topologies::VertexKind::Host, "host"},
                                                  {topologies::VertexKind::Pcie, "pcie"},
                                                  {topologies::VertexKind::Nic, "nic"},
                                                  {topologies::VertexKind::Switch, "switch"}});
}  // namespace foresail
