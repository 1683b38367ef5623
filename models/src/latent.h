/// \file
/// Latent attention's projections: from the layer's normed input to queries, keys and values.
///
/// Every tp rank projects its own shard of the tokens down (kv_down, q_down), so the down
/// projections and the norms of the latents are held whole; the gather that sequence parallelism
/// needs stands between down and up projections, where tensors are narrow (Megatron-Core:
/// multi_latent_attention.py). Kernels: q_down, q_norm, q_up (or q), kv_down, kv_norm, kv_up, rope.
/// `rope` turns its part of the queries and writes each head's key beside the one turned key that
/// all heads share.
#pragma once

#include <vector>

#include "foresail/models/operators.h"
#include "pass_kernels.h"

namespace foresail::models {

/// Without `rope`, as for all positions: block.cpp's matter. Requires a latent.
void latent_forward(PassKernels& pass, const Model& model);
void latent_backward(PassKernels& pass, const Model& model);

/// Bytes that `rope` reads and writes.
std::int64_t latent_rope_bytes(const Share& share, const Model& model);

/// What a forward pass keeps of the projections, in place of "qkv.input"; and their inputs and
/// output gradients, for a weight half that runs later.
enum class NormOutput { Kept, MadeAgain };  ///< of the layer's first norm
std::vector<SavedTensor> latent_saved(const Model& model, const Share& share, NormOutput norm);
std::vector<SavedTensor> latent_retained(const Model& model, const Share& share);

}  // namespace foresail::models
