/// \file
/// Tensors that live from a forward pass to its backward pass, and from its input half to
/// its weight half.
#pragma once

#include <vector>

#include "foresail/models/operators.h"
#include "share.h"

namespace foresail::models {

/// Of one layer. Sums to the closed forms of Korthikanti et al. 2022 (section 4) where those hold:
/// s b h (10 + 24/t + 5 a s / (h t)) bytes, under sequence parallelism (s b h / t)(34 + 5 a s / h).
/// As there, per-row statistics (norms' means, flash attention's log-sum-exp) are left out.
/// `experts`: of the layer; null if it has an MLP.
std::vector<SavedTensor> layer_saved(const Model& model, const Split& split, const Share& share,
                                     const ExpertShare* experts);

/// Inputs and output gradients of the linear layers, for a weight half that runs later. Gradients
/// behind a row-parallel layer are kept gathered.
std::vector<SavedTensor> layer_retained(const Model& model, const Share& share,
                                        const ExpertShare* experts);

}  // namespace foresail::models
