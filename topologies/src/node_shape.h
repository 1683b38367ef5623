/// \file
/// Where the parts of a node stand among its vertices, and which NIC each device uses.
#pragma once

#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// Offsets from the first vertex of a node: devices, the NVSwitch (without NVLink: the host), NICs,
/// PCIe switches, and where both PCIe and NVLink are given, the host.
struct NodeShape {
  NodeShape(const NodeSpec& node, Bandwidth nvlink);

  bool has_nvlink = false;
  bool has_pcie = false;
  int centre = 0;
  int first_nic = 0;
  int first_pcie = 0;
  int host = -1;  ///< -1: no such vertex
  int size = 0;
  std::vector<int> nic_of_device;   ///< empty without NICs
  std::vector<int> pcie_of_device;  ///< these two: empty without PCIe
  std::vector<int> pcie_of_nic;
};

}  // namespace foresail::topologies
