/// \file
/// One rank's share of a layer: every size after the split, computed once.
#pragma once

#include <cstdint>
#include <vector>

#include "foresail/models/operators.h"

namespace foresail::models {

inline constexpr std::int64_t kFp32 = 4;  ///< bytes of an element

struct Share {
  std::int64_t samples = 1;
  std::int64_t sequence = 1;      ///< keys per sample, over all cp ranks
  std::int64_t queries = 1;       ///< sequence / cp
  std::int64_t tokens = 1;        ///< T = samples * queries
  std::int64_t shard_tokens = 1;  ///< T / tp under sequence parallelism, else T
  std::int64_t hidden = 1;
  std::int64_t heads = 1;      ///< this and the widths below: / tp
  std::int64_t head_size = 1;  ///< of a query or key
  std::int64_t value_head_size = 1;
  std::int64_t query_width = 1;
  std::int64_t key_width = 1;
  std::int64_t value_width = 1;
  std::int64_t context_width = 1;  ///< what attention gives to the projection behind it
  std::int64_t qkv_width = 1;      ///< of queries, keys and values together
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
  int cp = 1;
  ContextParallel cp_kind = ContextParallel::AllGather;
  /// Scores pass the softmax in fp32, one step after the other (Stack::fused_softmax_multiple).
  bool is_softmax_wide = false;
  bool is_async = false;      ///< backward collectives run under the GEMMs beside them
  bool is_pipelined = false;  ///< a block's tensor-parallel collectives are cut up: row_slices.h

  std::int64_t shards() const { return tokens / shard_tokens; }          ///< tp or 1
  std::int64_t hidden_elements() const { return tokens * hidden; }       ///< of a full tensor
  std::int64_t shard_elements() const { return shard_tokens * hidden; }  ///< of a resident one
  std::int64_t scores() const { return samples * heads * queries * sequence; }
};

/// Requires every degree to divide what it splits (planner::check_laws says so beforehand).
Share share_of(const Model& model, const Split& split);

/// A layer's routed experts on one rank.
struct ExpertShare {
  /// Experts that get equally many tokens.
  struct Batch {
    std::int64_t experts = 1;
    std::int64_t tokens = 1;  ///< of each
  };
  std::int64_t experts = 1;    ///< of the layer
  std::int64_t local = 1;      ///< on one rank
  std::int64_t tokens = 1;     ///< that this rank routes: T / tp
  std::int64_t copies = 1;     ///< that it sends out: per_token of each, or what capacity allows
  std::int64_t received = 1;   ///< by the rank that gets most, before the gather over expert tp
  std::int64_t gathered = 1;   ///< after it
  std::int64_t exchanged = 1;  ///< tokens in the all-to-all's buffer: of the rank with most
  std::vector<Batch> batches;  ///< of the rank that gets most
  std::int64_t fc1_width = 1;  ///< this and ffn: / expert_tp
  std::int64_t ffn = 1;
  std::int64_t shared_fc1_width = 0;  ///< this and shared_ffn: / tp; 0: no shared experts
  std::int64_t shared_ffn = 0;
  bool has_shared_gate = false;
  bool is_dropless = true;
  int ep = 1;
  int expert_tp = 1;
  bool is_overlapped = false;  ///< shared experts beside the exchanges

  bool has_shared() const { return shared_ffn > 0; }
  /// Rows come by rank; with several ranks and several experts they are put in order.
  bool needs_sort() const { return ep * expert_tp > 1 && local > 1; }
};

/// The same of experts. `load` as in expert_layer_work.
ExpertShare expert_share_of(const Model& model, const Split& split,
                            const std::vector<double>& load);

}  // namespace foresail::models
