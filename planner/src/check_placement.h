/// \file
/// The laws of a placement.
#pragma once

#include <vector>

#include "foresail/planner/layout.h"
#include "foresail/program/placement.h"

namespace foresail::planner {

/// The first way in which `placement` is no one-to-one map from ranks to devices; empty if it is.
std::vector<BrokenLaw> check_placement(const program::Placement& placement, int ranks, int devices);

}  // namespace foresail::planner
