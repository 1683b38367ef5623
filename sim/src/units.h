/// \file
/// Which ranks are simulated together, and which replicas stand for others.
#pragma once

#include <string>
#include <vector>

#include "foresail/program/placement.h"
#include "foresail/program/program.h"
#include "foresail/sim/network.h"
#include "foresail/sim/simulator.h"

namespace foresail::sim {

struct Units {
  std::vector<Unit> units;  ///< ordered by (replica, stage)
  int stages = 1;
  std::string note;
  std::vector<int> slot_of;  ///< by dp coordinate: the simulated replica that stands for it

  int replicas() const { return static_cast<int>(units.size()) / stages; }
  std::size_t index(int replica_slot, int stage) const {
    return static_cast<std::size_t>(replica_slot) * static_cast<std::size_t>(stages) +
           static_cast<std::size_t>(stage);
  }
};

/// Groups replicas whose messages cross equally many switches at every stage boundary. With
/// Fold::Off, hashed routes, a fabric that can block, NICs or cores shared between replicas,
/// jitter, faults of links, or other jobs (`jobs` > 1) and traffic, each replica stands for itself
/// and the note says why. A replica with a slow GPU stands for itself alone. Where replicas shard
/// in groups, those alike also have groups alike.
Units make_units(const program::Program& program, const program::Placement& placement,
                 const topologies::Cluster& cluster, const SimulatorOptions& options,
                 const Network& network, std::size_t jobs);

}  // namespace foresail::sim
