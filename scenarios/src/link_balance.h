/// \file
/// How evenly the links that could share a load did.
#pragma once

#include <map>

#include "foresail/base/id.h"
#include "foresail/scenarios/collective_sweep.h"
#include "foresail/topologies/cluster.h"

namespace foresail::scenarios {

// `bytes`: what each link carried; links that are absent carried nothing.
LinkBalance balance_of(const topologies::Cluster& cluster, const std::map<LinkId, double>& bytes);

}  // namespace foresail::scenarios
