/// \file
/// The laws of experts and of the kinds of context parallelism.
#pragma once

#include <vector>

#include "foresail/planner/layout.h"

namespace foresail::planner {

/// Laws on ep, etp and the load of experts (facts: Megatron-Core's expert rank generator). Requires
/// degrees of at least 1.
std::vector<BrokenLaw> check_experts(const models::Model& model, const Layout& layout,
                                     const program::Training& training);

/// Laws on cp_kind.
std::vector<BrokenLaw> check_context_parallel(const models::Model& model, const Layout& layout);

}  // namespace foresail::planner
