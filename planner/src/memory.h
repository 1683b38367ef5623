/// \file
/// Memory of a stage from its sizes and the schedule, both of which many plans share.
#pragma once

#include <string>
#include <vector>

#include "foresail/planner/plan.h"
#include "foresail/planner/schedule.h"
#include "stage_work.h"

namespace foresail::planner {

/// Parameters, gradients, optimizer and the buffers that belong to them.
program::MemoryNeed state_need(const Plan& plan, const StageWork& work);

/// Messages between stages that are there beside a pass; part of the buffers.
Bytes message_need(const Plan& plan, int stage);

/// memory_need(plan, stage) from what is known already; `work` may lack its kernels.
program::MemoryNeed memory_need(const Plan& plan, int stage, const StageWork& work,
                                const Schedule& schedule);

/// Feasibility::out_of_memory: empty if every stage fits, or the limit is unknown (0).
std::string describe_excess(const std::vector<program::MemoryNeed>& memory, Bytes limit);

}  // namespace foresail::planner
