/// \file
/// What a layer holds at the fullest moment of its forward and of its backward pass.
#pragma once

#include <vector>

#include "foresail/models/operators.h"
#include "share.h"

namespace foresail::models {

/// All tensors of the layer, those that stay (`saved`) among them as far as they are made. Kernels
/// make their outputs before their inputs go; what sequence parallelism gathers goes behind its
/// GEMM; unfused attention splits queries, keys and values into copies by head. `experts`: of the
/// layer; null if it has an MLP.
std::vector<SavedTensor> layer_forward_peak(const Model& model, const Split& split,
                                            const Share& share, const ExpertShare* experts);

/// The same for the backward pass, at whose start all of `saved` are there. Saved tensors go with
/// the kernel that reads them last, and what is recomputed comes before all else.
std::vector<SavedTensor> layer_backward_peak(const Model& model, const Split& split,
                                             const Share& share, const ExpertShare* experts);

}  // namespace foresail::models
