/// \file
/// Why a step takes as long as it does, and what would change it.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {

/// One thing taken away, everything else kept, and the step simulated again.
struct Cause {
  std::string name;  ///< "gpu_slow node3.gpu1", "collisions (ecmp)"
  Duration cost{};   ///< step time as it is minus that without it; of a job that fails, nothing
  bool keeps_alive = false;  ///< a job that fails does not without it
  std::string detail;
};

struct Explanation {
  std::string failure;  ///< why the job fails; the causes then say what keeps it alive
  Duration iteration{};
  std::vector<Cause> causes;          ///< most costly first
  std::vector<std::string> evidence;  ///< seen in the simulated step, whatever its cause
  std::string plan_digest;
};

/// Takes away in turn every fault, the jitter, other jobs and traffic, wiring changes, and
/// collisions. Evidence: the critical path, units that compute slower than their peers, links where
/// flows collided, what `topology check` finds. Requires a plan without broken laws.
Explanation explain_step(const planner::Plan& plan, const SimulateOptions& options);

Document to_document(const Explanation& explanation);
std::string to_text(const Explanation& explanation);

}  // namespace foresail::scenarios
