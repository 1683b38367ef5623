/// \file
/// Small Plans for the tests of lowering and memory.
#pragma once

#include "foresail/planner/plan.h"

namespace foresail::planner {

/// A model of `layers` equal layers whose embedding and head cost next to nothing.
models::Model plain_model(int layers);

/// `layout` on as many devices as it needs, with `microbatches` per replica.
Plan plan_of(const models::Model& model, const Layout& layout, int microbatches);

/// Pipeline of p stages with v chunks and groups of `group` (v = 1: 1F1B), overlapped messages.
Layout pipeline(int p, int v, int group);

}  // namespace foresail::planner
