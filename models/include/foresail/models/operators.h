/// \file
/// The layer list: which kernels one rank runs for a layer, the embedding and the output layer,
/// forward and backward, after all splits; and which tensors a forward pass keeps for its backward.
///
/// Notation: s sequence, b microbatch size, h hidden, t tp, c cp, T = s b / c tokens,
/// Ts = T / t under sequence parallelism, else T; e bytes of one element.
///
/// Serial block: norm1, qkv, attention, proj, add1, norm2, fc1, activation, fc2, add2. The parallel
/// block keeps norm1 and add2 and sums proj and fc2 inside the GEMMs. With rotary positions `rope`
/// follows qkv. Unfused attention is attention.scores, softmax, attention.context. Backward kernels
/// are named after the layer: `fc1.dgrad` (input gradient), `fc1.wgrad` (weight gradient),
/// `norm1.backward`. Collectives: tp.gather_X (all-gather in front of X), tp.reduce_X (behind it),
/// tp.gather_grad_X, tp.regather_X, tp.scatter_X in backward; cp.gather_kv, cp.regather_kv,
/// cp.scatter_kv. Suffixes: `.recompute`; `.0` to `.3` for the parts of overlapped GEMMs and
/// collectives (gathers: `.1` to `.3`; row_slices.h says which rows). Context parallelism of
/// other kinds, latent attention and experts: attention.h, latent.h and experts.h beside the
/// sources say which kernels they run.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/models/model.h"
#include "foresail/models/stack.h"

namespace foresail::models {

/// Queries, and keys, of a tile of fused attention on CPUs, where a tile is in memory.
inline constexpr std::int64_t kAttentionTile = 64;

/// What is recomputed in the backward pass. Selective: some modules, core attention unless said
/// otherwise.
enum class Recompute { None, Selective, Full };

/// How context-parallel ranks get at each other's keys and values. AllGather: all at once.
/// Ring: block by block, c - 1 exchanges beside the attention to the block before (Liu 2023).
/// AllToAll: ranks trade their part of the sequence for a part of the heads and back (Ulysses:
/// Jacobs 2023).
enum class ContextParallel { AllGather, Ring, AllToAll };
/// Modules that a selective recomputation runs again (Megatron-LM's --recompute-modules), so that
/// what stands behind the colon is not kept. Core attention: scores, softmax and dropout of unfused
/// attention; norm: the outputs of both norms; activation: its output; mlp: all between the second
/// norm's output and the residual addition.
struct RecomputeModules {
  bool core_attention = true, norm = false, activation = false, mlp = false;
  friend auto operator<=>(const RecomputeModules&, const RecomputeModules&) = default;
  friend bool operator==(const RecomputeModules&, const RecomputeModules&) = default;
};

/// How one microbatch is split over the ranks that work on it, and by which software.
struct Split {
  int tp = 1;
  int cp = 1;
  bool sequence_parallel = false;
  std::int64_t microbatch_size = 1;
  std::int64_t sequence_length = 1;
  /// Of activations and GEMMs. Fp8: the GEMMs of the layers run in fp8, all else in bf16.
  DType dtype = DType::Bf16;
  Recompute recompute = Recompute::None;
  RecomputeModules recompute_modules{};  ///< of Selective
  /// Tensor-parallel collectives cut in up to `kOverlapChunks` and pipelined with their GEMMs,
  /// forward and backward (layout.overlap.tp; MegaScale section 3.2; row_slices.h).
  bool overlap_tp = false;
  ContextParallel context_parallel = ContextParallel::AllGather;
  /// Experts lie in contiguous blocks on `ep` ranks; each is cut over `expert_tp` ranks.
  int ep = 1;
  int expert_tp = 1;
  /// Shared experts run beside the exchange of the routed ones' tokens (layout.overlap.ep).
  bool overlap_ep = false;
  Stack stack;

  /// Whether a selective recomputation runs that module again.
  bool reruns(bool RecomputeModules::*module) const {
    return recompute == Recompute::Selective && recompute_modules.*module;
  }
};
inline constexpr int kOverlapChunks = 4;

/// A tensor; of Work::saved, one that lives from a forward pass to its backward pass.
struct SavedTensor {
  std::string name;  ///< "norm1.input", "qkv.input", "query", "softmax.output", "dropout_mask1" ...
  Bytes bytes;       ///< on one rank, for one microbatch
};

/// Everything that one rank does for one part of the model and one microbatch.
struct Work {
  std::vector<Kernel> forward;
  std::vector<Kernel> backward;    ///< recomputation included
  std::vector<SavedTensor> saved;  ///< kept from forward to backward
  /// All tensors of this part at the fullest moment of either pass: those of `saved` that are there
  /// then, what is recomputed or gathered, outputs and gradients. Parts before this one hold their
  /// `saved` beside it; parts behind it, nothing.
  std::vector<SavedTensor> forward_peak, backward_peak;
  /// What the weight half of a split backward still needs when the input half is done, instead of
  /// `saved`: inputs and output gradients of the linear layers (Qi 2024, table 1: 32 sbh).
  std::vector<SavedTensor> retained;
  Bytes saved_bytes() const;
  Bytes retained_bytes() const;
};
Bytes sum(const std::vector<SavedTensor>& tensors);

/// One transformer layer without experts.
Work layer_work(const Model& model, const Split& split);
/// One with experts, on the ep rank to which most tokens go: it sets the pace of all. `load` are
/// the experts' shares of the routed tokens, which sum to 1; empty: equal.
Work expert_layer_work(const Model& model, const Split& split, const std::vector<double>& load);
/// Word and position embedding of the first stage.
Work embedding_work(const Model& model, const Split& split);
/// Final norm, output layer and vocabulary-parallel cross-entropy of the last stage.
Work head_work(const Model& model, const Split& split);

/// Appends `more`, shifting its `after` indices. Its first kernel also waits for the collectives of
/// `list` that nothing in it waited for.
void append(std::vector<Kernel>& list, const std::vector<Kernel>& more);

/// A backward list cut in two: gradients of inputs, and gradients of weights that may run later.
/// Every kernel stands in exactly one half, in the old order. To the weight half belong `X.wgrad`
/// with the gather of its input (tp.regather_X), bias gradients of their own (`X.bias.backward`),
/// and the embedding (gather, scatter-add, positions). What fuses both kinds (norms, fused
/// additions) stays in the input half.
struct SplitBackward {
  std::vector<Kernel> input;
  std::vector<Kernel> weight;
};
SplitBackward split_backward(const std::vector<Kernel>& backward);

/// Parameters held by one rank, for one layer / the embedding / the head (final norm included;
/// output matrix only if untied or `own_copy`, the last stage's copy of a tied matrix).
struct RankParameters {
  std::int64_t sharded = 0;     ///< split over tp
  std::int64_t replicated = 0;  ///< equal on all tp ranks (norms, row-parallel biases, positions)
  std::int64_t experts = 0;     ///< routed experts: split over ep and expert tp, not over tp
  std::int64_t total() const { return sharded + replicated; }  ///< but the routed experts
};
RankParameters layer_parameters(const Model& model, int tp);
RankParameters expert_layer_parameters(const Model& model, int tp, int ep, int expert_tp);
/// `sequence_length` sizes the position table where max_positions is 0.
RankParameters embedding_parameters(const Model& model, int tp, std::int64_t sequence_length = 0);
RankParameters head_parameters(const Model& model, int tp, bool own_copy);

}  // namespace foresail::models

namespace foresail {
template <>
inline constexpr auto kNames<models::Recompute> =
    std::to_array<Named<models::Recompute>>({{models::Recompute::None, "none"},
                                             {models::Recompute::Selective, "selective"},
                                             {models::Recompute::Full, "full"}});
template <>
inline constexpr auto kNames<models::ContextParallel> =
    std::to_array<Named<models::ContextParallel>>(
        {{models::ContextParallel::AllGather, "all_gather"},
         {models::ContextParallel::Ring, "ring"},
         {models::ContextParallel::AllToAll, "all_to_all"}});
}  // namespace foresail
