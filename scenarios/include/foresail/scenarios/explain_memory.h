/// \file
/// Where the memory of a rank goes over a simulated step, and what would bring it down.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/planner/memory_bound.h"
#include "foresail/report/memory_curve.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {

/// One choice of the layout changed, everything else kept, and the memory counted anew.
struct MemoryRemedy {
  std::string change;  ///< "sequence_parallel: true", "recompute: full"
  Bytes saved;         ///< of the point estimate of the fullest stage
  Bytes peak;          ///< that it then needs
};

struct MemoryExplanation {
  int stage = 0;
  RankId rank;
  planner::MemoryBound bound;
  Bytes limit;                ///< of the device; 0: unknown
  report::MemoryCurve curve;  ///< over the simulated step
  std::string op;             ///< under way at the peak
  Duration iteration{};
  std::vector<MemoryRemedy> remedies;  ///< those that save something, most first
  std::string failure;                 ///< why the job fails; then there is no curve
  std::string plan_digest;
};

/// Of `rank`; without one, of the first rank of the stage that needs most (point estimate).
/// Requires a plan without broken laws and a rank of the layout.
MemoryExplanation explain_memory(const planner::Plan& plan, const SimulateOptions& options,
                                 std::optional<RankId> rank);

/// `top`: how many owners are listed.
Document to_document(const MemoryExplanation& explanation, int top);
std::string to_text(const MemoryExplanation& explanation, int top);

}  // namespace foresail::scenarios
