/// \file
/// Causal attention over the heads of this rank: as two batched GEMMs and a softmax, so that the
/// GEMMs are those of the Program, or fused (flash_function.h). Grouped-query attention and rotary
/// positions included.
#pragma once

#include <functional>

#include "stage_scope.h"

namespace foresail::runtime {

struct Probabilities;

/// For the tokens of rank `cp_rank` of the context-parallel group. The host makes them, so that
/// they are the same on every device.
AttentionTables make_attention_tables(const models::Model& model, const models::Split& split,
                                      int cp_rank, at::Device device);

/// Input [tokens, query + key + value features]; output [tokens, query features]. A token's row is
/// position * microbatch_size + sample.
class CoreAttention : public torch::nn::Module {
 public:
  /// `index`: of the layer.
  CoreAttention(const StageScope& scope, int index);
  at::Tensor forward(const at::Tensor& qkv);

  /// Query, key and value by head, [samples * heads, positions, head size].
  struct Heads {
    at::Tensor query, key, value;
  };
  Heads split(const at::Tensor& qkv) const;
  /// Keys or values once for every query head that shares them.
  at::Tensor repeated(const at::Tensor& shared) const;
  /// Every copy of a repeated head contributed: their gradients add up in the head they share.
  at::Tensor sum_repeats(const at::Tensor& grad) const;
  /// Output features by head, and back.
  at::Tensor split_output(const at::Tensor& output) const;
  at::Tensor merge(const at::Tensor& by_head) const;
  /// Gradients by head (of keys and values, or of their repeats) back to the layout of `qkv`.
  at::Tensor merge_gradients(const Heads& grads) const;

  /// Kernel attention.scores, which splits the heads first, and those of the softmax.
  Probabilities attend(OpContext& op, const std::function<Heads()>& split_heads) const;
  /// Kernel attention.context: what `weights` make of the values.
  at::Tensor weigh(OpContext& op, const at::Tensor& weights, const at::Tensor& value) const;
  /// Of scores: 1 / sqrt(head size).
  double scale() const;
  /// Whether the backward pass computes the probabilities again (selective recomputation).
  bool is_recomputed() const;
  /// Of the pass under way, for the pairs of mask `block`.
  AttentionDropout dropout(int block) const;

  /// Turns pairs of features by an angle that grows with the position (Su 2021); +1 turns, -1 back.
  void rotate(at::Tensor& by_head, double direction) const;

  const StageScope& scope() const { return scope_; }

 private:
  at::Tensor by_head(const at::Tensor& part, std::int64_t heads) const;

  const StageScope& scope_;
  int index_;
  std::int64_t heads_ = 0, kv_heads_ = 0, head_size_ = 0;
  std::int64_t samples_ = 0, positions_ = 0;
};

}  // namespace foresail::runtime
