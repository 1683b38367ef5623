/// \file
/// The core of attention: from queries, keys and values to their weighted sum, and back.
///
/// Context parallelism (c ranks), by kind: what is exchanged forward; backward.
///
/// - all_gather: cp.gather_kv; cp.regather_kv, cp.scatter_kv.
/// - ring: c - 1 times cp.exchange_kv; c - 1 times cp.reexchange_kv, c times cp.exchange_grad_kv.
/// - all_to_all: cp.scatter_heads, cp.gather_heads; cp.scatter_grad_heads, cp.gather_grad_heads.
///
/// In a ring, attention runs block by block, each exchange beside the block that it does not feed;
/// attention.merge adds the blocks' outputs.
#pragma once

#include "foresail/models/operators.h"
#include "pass_kernels.h"

namespace foresail::models {

/// Fused (flash) attention skips what the causal mask, or a window, hides; unfused attention
/// computes the whole square and stores it.
void attention_forward(PassKernels& pass, const Model& model, const Stack& stack);
void attention_backward(PassKernels& pass, const Model& model, const Stack& stack);

}  // namespace foresail::models
