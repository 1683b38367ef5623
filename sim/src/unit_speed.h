/// \file
/// How fast each unit computes over time: slow GPUs, and jitter of single passes.
#pragma once

#include <cstdint>
#include <vector>

#include "foresail/base/units.h"
#include "foresail/program/placement.h"
#include "foresail/sim/disturbance.h"
#include "foresail/topologies/cluster.h"
#include "units.h"

namespace foresail::sim {

/// Factor of one pass on one node (Jitter).
double jitter_factor(const Jitter& jitter, std::uint64_t seed, int node, std::uint64_t pass);

class UnitSpeed {
 public:
  /// Throws Error{InvalidInput} if a fault's target names no device of the cluster.
  UnitSpeed(const Units& units, const program::Placement& placement,
            const topologies::Cluster& cluster, const SimulatorOptions& options);

  /// When `work`, started by `unit` at `start`, is done.
  SimTime end_of(std::uint32_t unit, SimTime start, Duration work) const;
  /// Time of a pass that takes `span` undisturbed. `pass` numbers it within the unit's node.
  Duration jittered(std::uint32_t unit, std::uint64_t pass, Duration span) const;

 private:
  /// From `at` on the unit runs at `speed`, until the next change.
  struct Change {
    SimTime at;
    double speed;
  };
  Jitter jitter_;
  std::uint64_t seed_;
  std::vector<std::vector<int>> nodes_;       // by unit; empty without jitter
  std::vector<std::vector<Change>> changes_;  // by unit
};

}  // namespace foresail::sim
