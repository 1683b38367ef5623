/// \file
/// From a Plan to what the runtime executes. The runtime knows no planner, so the worker lowers.
#pragma once

#include "foresail/planner/plan.h"
#include "foresail/runtime/job.h"

namespace foresail::cli {

/// Requires a plan without broken laws.
runtime::Job make_job(const planner::Plan& plan);

}  // namespace foresail::cli
