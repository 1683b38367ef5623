/// \file
/// What would change: the scenario as it is, and with changes, each difference by its causes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {

/// Seconds of a step that one cause takes, mean over the ranks.
struct StepPart {
  std::string cause;  ///< "gemm (FLOPs)", "attention (memory)", "bubble", "dp exposed" ...
  double seconds = 0;
};

/// The breakdown of a step with its compute cut by kind of kernel and by the roof that bounds it on
/// `judge` (so that two steps are cut alike). Kernels cost what they do alone; "beside
/// communication and host" is what the passes took beyond that. The parts sum to the step.
std::vector<StepPart> step_parts(const planner::Plan& plan, const program::Program& program,
                                 const report::StepResult& result,
                                 const topologies::DeviceSpec& judge,
                                 const program::Profile* profile);

/// One changed scenario.
struct Change {
  std::string name;
  std::optional<std::size_t> against;  ///< an earlier change that was kept; nothing: the scenario
  Scenario scenario;
};

/// The scenario's `changes`, each merged into the scenario (or into the last one with `keep`) and
/// read. Throws Error{InvalidInput} with the line in the change that is wrong. Empty for Plans.
std::vector<Change> load_changes(const std::filesystem::path& path);

/// What a step is, and how it differs from the one that it is compared with.
struct Variant {
  std::string name;
  std::optional<std::size_t> against;        ///< index of a variant; nothing: the first
  std::string reasons;                       ///< why it cannot run; empty if it can
  std::optional<report::StepResult> result;  ///< nothing if laws are broken or the job fails
  std::vector<StepPart> parts;
  std::vector<StepPart> differences;  ///< by cause, largest first; they sum to the difference
};

struct WhatIf {
  std::vector<Variant> variants;  ///< the scenario itself, then its changes
};

/// Simulates the scenario and its changes, each in its own conditions.
WhatIf what_if(const Scenario& scenario, const std::vector<Change>& changes,
               const SimulateOptions& options);

Document to_document(const WhatIf& answer);
std::string to_text(const WhatIf& answer);

}  // namespace foresail::scenarios
