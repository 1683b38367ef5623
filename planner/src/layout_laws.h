/// \file
/// Laws of single features of a layout; part of check_laws.
#pragma once

#include <vector>

#include "foresail/planner/layout.h"
#include "foresail/topologies/cluster.h"

namespace foresail::planner {

/// Laws of shard_size. Requires degrees of at least 1.
std::vector<BrokenLaw> check_sharding(const models::Model& model, const Layout& layout);

/// Laws of optimizer_offload, which need the cluster and so are no part of check_laws.
std::vector<BrokenLaw> check_host(const Layout& layout, const program::Training& training,
                                  const topologies::Cluster::Options& cluster);

/// Laws of recompute.
std::vector<BrokenLaw> check_recomputation(const models::Model& model, const Layout& layout);

/// Laws of stages. Requires degrees of at least 1.
std::vector<BrokenLaw> check_stage_layers(const models::Model& model, const Layout& layout);
/// Layers of a global stage. Requires a layout that keeps these laws, with pp > 1.
int layers_of(const models::Model& model, const Layout& layout, int global_stage);

}  // namespace foresail::planner
