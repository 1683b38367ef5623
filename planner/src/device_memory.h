/// \file
/// How much memory one rank may use.
#pragma once

#include "foresail/base/units.h"
#include "foresail/topologies/cluster.h"

namespace foresail::planner {

/// The device's memory, and no more than an equal share of the node's where ranks share that. Zero:
/// unknown.
Bytes device_memory(const topologies::Cluster::Options& cluster);

}  // namespace foresail::planner
