/// \file
/// From scores to what values are weighed by, and back: scale, mask, softmax and dropout, as one
/// kernel (softmax) or, without `stack.fused_kernels`, one by one (attention.scale, attention.mask,
/// softmax, attention.dropout).
#pragma once

#include "core_attention.h"

namespace foresail::runtime {

/// [samples * heads, queries, keys].
struct Probabilities {
  at::Tensor softmax;  ///< of the scores
  at::Tensor dropped;  ///< true where dropout takes one away; undefined without dropout
  at::Tensor weights;  ///< of values: what dropout leaves; without dropout the same tensor
};

/// What of them is kept for the backward pass, at the end of `saved`; and back.
void append(variable_list& saved, const Probabilities& probabilities);
/// Those of block `index`, of a list in which the first block's begin at `first`.
Probabilities probabilities_in(const CoreAttention& layer, const variable_list& saved,
                               std::size_t first, std::size_t index);

/// Which mask, and the suffix of its kernels.
struct SoftmaxBlock {
  int index = 0;
  std::string suffix = {};
};

/// Over whole rows. Overwrites fp32 `scores`.
Probabilities softmax_of(const CoreAttention& layer, OpContext& op, const SoftmaxBlock& block,
                         const at::Tensor& scores);

/// A block of a ring: exponentials of scores less the row's maximum in the block, in the place of
/// probabilities; what they are a part of is known once all blocks are. fp32: maximum and sum.
struct Exponentials {
  Probabilities parts;
  at::Tensor maximum, sum;
};
Exponentials exponentials_of(const CoreAttention& layer, OpContext& op, const SoftmaxBlock& block,
                             const at::Tensor& scores);

/// The gradient of the scores from that of the weights, which it overwrites. `row_sums`: of the
/// output times its gradient, or undefined if the block has whole rows.
at::Tensor scores_gradient(const CoreAttention& layer, OpContext& op, const SoftmaxBlock& block,
                           const at::Tensor& weights_gradient, const Probabilities& probabilities,
                           const at::Tensor& row_sums);

}  // namespace foresail::runtime
