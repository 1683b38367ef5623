/// \file
/// The tensors of a Plan's Program, from op to op.
#pragma once

#include "foresail/planner/plan.h"
#include "foresail/program/live_memory.h"

namespace foresail::planner {

/// Of `stage`; `program` must be lower(plan). Run in the order in which the ops stand, its peak is
/// memory_need's but for messages, which memory_need counts by a rule and this one by the ops.
program::StageMemory live_memory(const Plan& plan, const program::Program& program, int stage);

}  // namespace foresail::planner
