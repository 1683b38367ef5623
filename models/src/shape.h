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

/// Width of the query projection.
inline std::int64_t query_width(const Model& model) {
  return model.heads * model.head_size;
}
/// Width of the key projection, and of the value projection.
inline std::int64_t kv_width(const Model& model) {
  return model.kv_heads * model.head_size;
}
/// Columns of the first MLP matrix: gate and up projection stand side by side in gated MLPs.
inline std::int64_t fc1_width(const Model& model) {
  return model.activation == Activation::SwiGlu ? 2 * model.ffn : model.ffn;
}
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
