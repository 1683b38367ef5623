/// \file
/// Which tokens of a sequence a rank of a context-parallel group holds.
#pragma once

#include <ATen/ATen.h>

#include "foresail/models/operators.h"

namespace foresail::runtime {

/// Positions of the tokens of rank `cp_rank`, in the order of its rows. A sequence is cut into 2 cp
/// pieces, and rank r has pieces r and 2 cp - 1 - r, so that every rank has equally many (query,
/// key) pairs under the causal mask. All of them if cp is 1.
at::Tensor token_positions(const models::Split& split, int cp_rank);

/// The same of all ranks, one rank's behind the other's.
at::Tensor token_positions_by_rank(const models::Split& split);

}  // namespace foresail::runtime
