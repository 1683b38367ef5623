/// \file
/// YAML of the parts of a cluster: node, fabric, wiring. Documents read back equal.
#pragma once

#include "foresail/base/document.h"
#include "foresail/base/yaml.h"
#include "foresail/topologies/fabric.h"

namespace foresail::topologies {

/// Largest number of nodes, switches or cables of one kind that a file may ask for.
inline constexpr int kCountMax = 1 << 16;

NodeSpec read_node(const Yaml& node);
FabricSpec read_fabric(const Yaml& node);
Wiring read_wiring(const Yaml& node);

Document node_document(const NodeSpec& node);
Document fabric_document(const FabricSpec& fabric);
Document wiring_document(const Wiring& wiring);

}  // namespace foresail::topologies
