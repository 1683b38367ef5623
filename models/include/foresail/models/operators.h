/// \file
/// The layer list: which kernels one rank runs for a layer, the embedding and the output layer,
/// forward and backward, after all splits; and which tensors a forward pass keeps for its backward.
///
/// Notation: s sequence, b microbatch size, h hidden, t tp, c cp, T = s b / c tokens,
/// Ts = T / t under sequence parallelism, else T; e bytes of one element.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/models/model.h"
#include "foresail/models/stack.h"

namespace foresail::models {

/// What is recomputed in the backward pass. Selective: core attention.
enum class Recompute { None, Selective, Full };

/// How one microbatch is split over the ranks that work on it, and by which software.
struct Split {
  int tp = 1;
  int cp = 1;
  bool sequence_parallel = false;
  std::int64_t microbatch_size = 1;
  std::int64_t sequence_length = 1;
  DType dtype = DType::Bf16;
  Recompute recompute = Recompute::None;
  /// Tensor-parallel collectives cut in `kOverlapChunks` and pipelined with their GEMMs, forward
  /// and backward (layout.overlap.tp; MegaScale section 3.2, Transformer Engine userbuffers).
  bool overlap_tp = false;
  Stack stack;
};
inline constexpr int kOverlapChunks = 4;

/// A tensor that lives from a forward pass to its backward pass.
struct SavedTensor {
  std::string name;  ///< "norm1.input", "qkv.input", "query", "softmax.output", "dropout_mask1" ...
  Bytes bytes;       ///< on one rank, for one microbatch
};

/// Everything that one rank does for one part of the model and one microbatch.
struct Work {
  std::vector<Kernel> forward;
  std::vector<Kernel> backward;    ///< recomputation included
  std::vector<SavedTensor> saved;  ///< kept from forward to backward
  Bytes working_set;  ///< largest transient beyond `saved` (recomputed tensors, gathers)
  Bytes saved_bytes() const;
};

/// One transformer layer.
Work layer_work(const Model& model, const Split& split);
/// Word and position embedding of the first stage.
Work embedding_work(const Model& model, const Split& split);
/// Final norm, output layer and vocabulary-parallel cross-entropy of the last stage.
Work head_work(const Model& model, const Split& split);

/// Appends `more`, shifting its `after` indices.
void append(std::vector<Kernel>& list, const std::vector<Kernel>& more);

/// Parameters held by one rank, for one layer / the embedding / the head (final norm included;
/// output matrix only if untied or `own_copy`, the last stage's copy of a tied matrix).
struct RankParameters {
  std::int64_t sharded = 0;     ///< split over tp
  std::int64_t replicated = 0;  ///< equal on all tp ranks (norms, row-parallel biases, positions)
  std::int64_t total() const { return sharded + replicated; }
};
RankParameters layer_parameters(const Model& model, int tp);
RankParameters embedding_parameters(const Model& model, int tp);
RankParameters head_parameters(const Model& model, int tp, bool own_copy);

}  // namespace foresail::models

namespace foresail {
template <>
inline constexpr auto kNames<models::Recompute> =
    std::to_array<Named<models::Recompute>>({{models::Recompute::None, "none"},
                                             {models::Recompute::Selective, "selective"},
                                             {models::Recompute::Full, "full"}});
}  // namespace foresail
