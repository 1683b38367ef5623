/// \file
/// Sizes that follow from a Model, for the files of this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "foresail/models/model.h"

namespace foresail::models {

/// Why `model` cannot exist, with every term; nothing if it can.
std::optional<std::string> find_impossible(const Model& model);
/// The same of its experts, and of its latent attention, alone.
std::optional<std::string> find_impossible_experts(const Model& model);
std::optional<std::string> find_impossible_latent(const Model& model);

inline bool has_latent(const Model& model) {
  return model.latent.kv_rank > 0;
}
/// Elements of one head's query, and of its key.
inline std::int64_t query_head_size(const Model& model) {
  return model.head_size + (has_latent(model) ? model.latent.rope_head_size : 0);
}
/// Elements of one head's value.
inline std::int64_t value_head_size(const Model& model) {
  return has_latent(model) ? model.latent.value_head_size : model.head_size;
}
/// Widths of all heads' queries, keys, values, and of their weighted sums.
inline std::int64_t query_width(const Model& model) {
  return model.heads * query_head_size(model);
}
inline std::int64_t key_width(const Model& model) {
  return model.kv_heads * query_head_size(model);
}
inline std::int64_t value_width(const Model& model) {
  return model.kv_heads * value_head_size(model);
}
inline std::int64_t context_width(const Model& model) {
  return model.heads * value_head_size(model);
}
/// Columns of what the up projection makes of the latent: keys without positions, and values.
inline std::int64_t latent_up_width(const Model& model) {
  return model.heads * (model.head_size + model.latent.value_head_size);
}
/// Columns of the first MLP matrix of width `ffn`: gate and up projection stand side by side in
/// gated MLPs.
inline std::int64_t fc1_width(const Model& model, std::int64_t ffn) {
  return model.activation == Activation::SwiGlu ? 2 * ffn : ffn;
}
inline std::int64_t fc1_width(const Model& model) {
  return fc1_width(model, model.ffn);
}
/// Of all shared experts side by side.
inline std::int64_t shared_ffn(const Model& model) {
  return model.experts.shared * model.experts.shared_ffn;
}
/// Parameters of the matrices and biases of an MLP of width `ffn`.
std::int64_t mlp_parameters(const Model& model, std::int64_t ffn);
/// Parameters of one norm: weight, and bias if LayerNorm.
inline std::int64_t norm_parameters(const Model& model) {
  return (model.norm == Norm::LayerNorm ? 2 : 1) * model.hidden;
}
/// Norms of one layer.
inline int layer_norms(const Model& model) {
  return model.block == Block::Parallel ? 1 : 2;
}

/// (query, key) pairs that one causal sequence of `length` attends over, a window applied:
/// sum over queries i = 1..s of min(i, w) = w s - w (w - 1) / 2.
std::int64_t attended_pairs(const Model& model, std::int64_t length);

/// Rows of the learned position table; 0 with other positions.
std::int64_t position_rows(const Model& model, std::int64_t sequence_length);

}  // namespace foresail::models
