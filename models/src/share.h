/// \file
/// One rank's share of a layer: every size after the split, computed once.
#pragma once

#include <cstdint>

#include "foresail/models/operators.h"

namespace foresail::models {

struct Share {
  std::int64_t samples = 1;
  std::int64_t sequence = 1;      ///< keys per sample, over all cp ranks
  std::int64_t queries = 1;       ///< sequence / cp
  std::int64_t tokens = 1;        ///< T = samples * queries
  std::int64_t shard_tokens = 1;  ///< T / tp under sequence parallelism, else T
  std::int64_t hidden = 1;
  std::int64_t heads = 1;  ///< this and the widths below: / tp
  std::int64_t head_size = 1;
  std::int64_t query_width = 1;
  std::int64_t kv_width = 1;
  std::int64_t qkv_width = 1;  ///< query_width + 2 kv_width
  std::int64_t fc1_width = 1;
  std::int64_t ffn = 1;
  std::int64_t vocab = 1;           ///< padded
  std::int64_t element = 2;         ///< bytes of an activation: fp8 keeps them in 16 bits
  std::int64_t linear_element = 2;  ///< bytes of an operand of a block's linear layers
  DType dtype = DType::Bf16;
  DType linear_dtype = DType::Bf16;
  bool is_tensor_parallel = false;
  bool is_sequence_parallel = false;
  bool is_context_parallel = false;
  bool is_async = false;  ///< backward collectives run under the GEMMs beside them
  int chunks = 1;         ///< that the tensor-parallel collectives of a block are cut into

  std::int64_t hidden_elements() const { return tokens * hidden; }       ///< of a full tensor
  std::int64_t shard_elements() const { return shard_tokens * hidden; }  ///< of a resident one
  std::int64_t scores() const { return samples * heads * queries * sequence; }
};

/// Requires every degree to divide what it splits (planner::check_laws says so beforehand).
Share share_of(const Model& model, const Split& split);

}  // namespace foresail::models
