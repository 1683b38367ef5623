/// \file
/// The chain of ops that set the length of a simulated step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "foresail/program/program.h"
#include "foresail/sim/simulator.h"

namespace foresail::scenarios {

struct CriticalPath {
  Duration compute{}, optimizer{}, messages{}, gradients{}, other{}, waiting{};
  int ops = 0;
  /// Where most of the path's passes ran.
  std::size_t unit = 0;
  double share_of_unit = 0;  ///< of the path's computing time
};

/// Walks back from the op that ends last: a collective waits for the member that joined last, a
/// message for the end that was ready last, other ops for the last of what they depend on.
CriticalPath critical_path(const program::Program& program, const sim::StepOutcome& outcome);

}  // namespace foresail::scenarios
