/// \file
/// The parts of a cluster that a fault names.
#pragma once

#include <string>
#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::sim {

/// "node3.gpu1". Throws Error{InvalidInput}.
DeviceId device_named(const topologies::Cluster& cluster, const std::string& name);

/// Both directions of a cable: "leaf0->spine1", "leaf0->spine1#1" or "node3.nic0->leaf2"; or of
/// all cables between a NIC and the fabric: "node3.nic0". Throws Error{InvalidInput}.
std::vector<LinkId> links_named(const topologies::Cluster& cluster, const std::string& name);

}  // namespace foresail::sim
