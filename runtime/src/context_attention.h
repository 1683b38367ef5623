/// \file
/// Attention over a sequence that is cut over the context-parallel group: the three ways in which
/// its ranks get at each other's keys.
#pragma once

#include "core_attention.h"

namespace foresail::runtime {

/// What a forward pass leaves behind for the backward pass.
struct ContextResult {
  at::Tensor output;    ///< [own tokens, query features]
  variable_list saved;  ///< query, key, value (AllToAll: traded); then Probabilities by block
};

/// From the own queries, keys and values. Kernels by models::ContextParallel:
/// - AllGather: cp.gather_kv, attention over all keys (in the order of ranks).
/// - Ring: in step i the block of keys of the rank i places before, `attention.*.i`, beside
///   cp.exchange_kv.i; attention.merge weighs the blocks by their softmax sums.
/// - AllToAll: cp.scatter_heads, attention over all positions for 1 / cp of the heads,
///   cp.gather_heads.
ContextResult context_forward(const CoreAttention& layer, OpContext& op,
                              const CoreAttention::Heads& own);

/// Gradients of the own queries, keys and values, by head. `result` is what the forward pass made.
CoreAttention::Heads context_backward(const CoreAttention& layer, OpContext& op,
                                      const ContextResult& result, const at::Tensor& grad);

}  // namespace foresail::runtime
