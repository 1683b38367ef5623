/// \file
/// Changes of a layout that need less memory, each counted anew.
#pragma once

#include <vector>

#include "foresail/scenarios/explain_memory.h"

namespace foresail::scenarios {

/// Those that break no law and save something, most first.
std::vector<MemoryRemedy> memory_remedies(const planner::Plan& plan);

}  // namespace foresail::scenarios
