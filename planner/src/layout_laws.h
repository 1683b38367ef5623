/// \file
/// Laws of single features of a layout; part of check_laws.
#pragma once

#include <vector>

#include "foresail/planner/layout.h"

namespace foresail::planner {

/// Laws of shard_size. Requires degrees of at least 1.
std::vector<BrokenLaw> check_sharding(const Layout& layout);

}  // namespace foresail::planner
