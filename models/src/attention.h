/// \file
/// The core of attention: from queries, keys and values to their weighted sum, and back.
#pragma once

#include "foresail/models/operators.h"
#include "pass_kernels.h"

namespace foresail::models {

/// Fused (flash) attention skips what the causal mask, or a window, hides; unfused attention
/// computes the whole square and stores it.
void attention_forward(PassKernels& pass, const Model& model, const Stack& stack);
void attention_backward(PassKernels& pass, const Model& model, const Stack& stack);

}  // namespace foresail::models
