/// \file
/// Executes a Program with unit costs, to check what the lowering promises about time.
#pragma once

#include <optional>

#include "foresail/program/program.h"

namespace foresail::planner {

/// Everything not named here takes no time.
struct UnitCosts {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;  ///< occupies the pp lanes of sender and receiver
};

/// Makespan when every lane runs its ops in order, a message starts when both its ends stand at the
/// heads of their pp lanes, and a collective over several stages when all of them have reached it.
/// Nothing if no op can start although some are left.
std::optional<double> run(const program::Program& program, const UnitCosts& costs);

}  // namespace foresail::planner
