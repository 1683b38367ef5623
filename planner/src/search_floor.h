/// \file
/// What no plan can beat, however the model is split: for layouts that nobody has looked at.
#pragma once

#include "foresail/planner/search.h"

namespace foresail::planner {

/// Seconds of a step that `gpus` devices need for the GEMMs of forward and backward alone, all at
/// the device's highest peak; 0 if that is not known. A step ends no earlier than its busiest
/// device, which has at least the mean of their work, and no split lessens the sum. Attention is
/// left out (the parts of causal attention that are skipped differ), and so are routed experts
/// (their tokens are rounded up by rank).
double step_floor(const SearchProblem& problem, int gpus);

}  // namespace foresail::planner
