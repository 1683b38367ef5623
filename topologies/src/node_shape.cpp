#include "node_shape.h"

namespace foresail::topologies {
namespace {

void place_pcie(const PcieSpec& pcie, NodeShape& shape) {
  for (std::size_t s = 0; s < pcie.switches.size(); ++s) {
    const PcieSwitch& item = pcie.switches[s];
    const auto devices = static_cast<int>(item.devices.size());
    const auto nics = static_cast<int>(item.nics.size());
    for (const int nic : item.nics) {
      shape.pcie_of_nic[static_cast<std::size_t>(nic)] = static_cast<int>(s);
    }
    for (int k = 0; k < devices; ++k) {
      const auto device = static_cast<std::size_t>(item.devices[static_cast<std::size_t>(k)]);
      shape.pcie_of_device[device] = static_cast<int>(s);
      if (nics == 0) continue;
      shape.nic_of_device[device] = item.nics[static_cast<std::size_t>(k * nics / devices)];
    }
  }
}

}  // namespace

NodeShape::NodeShape(const NodeSpec& node, Bandwidth nvlink)
    : has_nvlink(nvlink > Bandwidth()),
      has_pcie(!node.pcie.empty()),
      centre(node.devices),
      first_nic(node.devices + 1),
      first_pcie(node.devices + 1 + node.nics) {
  size = first_pcie + static_cast<int>(node.pcie.switches.size());
  if (!has_nvlink) {
    host = centre;
  } else if (has_pcie) {
    host = size++;
  }
  if (node.nics > 0) {
    for (int d = 0; d < node.devices; ++d) nic_of_device.push_back(d * node.nics / node.devices);
  }
  if (!has_pcie) return;
  pcie_of_device.assign(static_cast<std::size_t>(node.devices), 0);
  pcie_of_nic.assign(static_cast<std::size_t>(node.nics), 0);
  place_pcie(node.pcie, *this);
}

}  // namespace foresail::topologies
