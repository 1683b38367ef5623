/// \file
/// What the ranks of a context-parallel group send each other for attention: keys and values, or
/// heads for positions.
#pragma once

#include "core_attention.h"

namespace foresail::runtime {

using Heads = CoreAttention::Heads;

models::ContextParallel kind_of(const CoreAttention& layer);
int ranks_of(const CoreAttention& layer);

/// [a * cp, n, d] <-> [cp, a * n * d]: part r is what belongs to rank r, along the heads or along
/// the positions.
at::Tensor cut_heads(const at::Tensor& by_head, std::int64_t samples, int ranks);
at::Tensor join_heads(const at::Tensor& parts, at::IntArrayRef shape, std::int64_t samples);
at::Tensor cut_positions(const at::Tensor& by_head, int ranks);

/// Keys and values in one message, and back.
at::Tensor pack(const at::Tensor& key, const at::Tensor& value);
void unpack(const at::Tensor& message, Heads& heads, const at::Tensor& like);

/// Keys and values of all ranks in the order of ranks, and the sums of their gradients.
Heads gather_keys(const CoreAttention& layer, OpContext& op, std::string_view name,
                  const Heads& own);
Heads scatter_key_gradients(const CoreAttention& layer, OpContext& op, const Heads& grads,
                            const Heads& own);

/// Own positions of all heads -> all positions of own heads.
at::Tensor widen(const CoreAttention& layer, const at::Tensor& parts, std::int64_t width);
Heads trade_heads(const CoreAttention& layer, OpContext& op, const Heads& own);
/// All positions of own heads -> own positions of all heads, of queries, keys and values.
Heads trade_gradients_back(const CoreAttention& layer, OpContext& op, const Heads& grads);

/// ".0", ".1", ...: of the kernels of a ring's steps.
std::string at_step(int step);

}  // namespace foresail::runtime
