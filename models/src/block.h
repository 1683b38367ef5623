/// \file
/// One transformer block as kernels.
///
/// Serial: norm1, qkv, attention, proj, add1, norm2, fc1, activation, fc2, add2. The parallel block
/// keeps the first norm and gather and the last reduction and add: norm1, qkv, attention, proj,
/// fc1, activation, fc2 (accumulating onto proj's result), add2. Latent attention has several
/// projections in place of qkv (latent.h), a layer with experts those in place of fc1, activation
/// and fc2 (experts.h).
///
/// Bytes per element of memory-bound kernels, e bytes each (Foresail's step-time facts, at e = 2):
/// norm 2e forward, 4e backward; bias + dropout + add 4e and 5e + 1; plain add 3e and 3e; GeLU 2e
/// and 3e; SwiGLU 3e and 5e; rotary 2e and 2e on queries and keys.
#pragma once

#include "foresail/models/operators.h"
#include "pass_kernels.h"

namespace foresail::models {

/// How far a forward pass goes: recomputation may stop in front of the block's last GEMM.
enum class Extent { Whole, UpToLastGemm };

/// `experts`: of this layer; null if it has an MLP.
void block_forward(PassKernels& pass, const Model& model, const Stack& stack,
                   const ExpertShare* experts, Extent extent = Extent::Whole);
/// `recompute` Selective repeats its modules where their results are needed; Full is the caller's
/// matter.
void block_backward(PassKernels& pass, const Model& model, const Split& split,
                    const ExpertShare* experts);

}  // namespace foresail::models
