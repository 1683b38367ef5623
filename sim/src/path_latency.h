/// \file
/// What cables and switches add to a collective's steps between nodes.
#pragma once

#include <optional>

#include "foresail/base/units.h"
#include "foresail/sim/network.h"
#include "foresail/topologies/cluster.h"

namespace foresail::sim {

/// The way that NCCL's latencies between nodes assume, as they were measured on InfiniBand: from
/// leaf to leaf over three switches, four cables of 450 ns (a switch's port to port included).
inline constexpr Duration kTabledPath = 4 * std::chrono::nanoseconds(450);

/// Sum of the links' latencies from NIC to NIC, by the slowest of the shortest ways (spraying waits
/// for it, hashing may meet it); nothing if there is no way. Requires devices of different nodes.
std::optional<Duration> path_latency(const topologies::Cluster& cluster, DeviceId from,
                                     DeviceId to);

/// Of a group's steps between nodes: path_latency() beyond kTabledPath.
StepDelay step_delay(const topologies::Cluster& cluster, const CollectiveGroup& group);

}  // namespace foresail::sim
