/// \file
/// A collective, the cluster under it and the network's options, from one file.
#pragma once

#include <filesystem>

#include "foresail/scenarios/collective_sweep.h"
#include "foresail/topologies/cluster.h"

namespace foresail::scenarios {

struct CollectiveScenario {
  topologies::Cluster::Options cluster;
  SweepOptions sweep;
};

/// docs/reference/scenario.md, "A collective alone". Throws Error{InvalidInput}.
CollectiveScenario load_collective(const std::filesystem::path& path);

}  // namespace foresail::scenarios
