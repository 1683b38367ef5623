/// \file
/// Word embedding split over the vocabulary, learned positions, and dropout.
#pragma once

#include "stage_scope.h"

namespace foresail::runtime {

/// Tokens [T] -> activations [T, hidden], or this rank's sequence shard of them.
class EmbeddingLayer : public torch::nn::Module {
 public:
  struct Options {
    std::shared_ptr<Parameter> words;      ///< this rank's rows of the padded vocabulary
    std::shared_ptr<Parameter> positions;  ///< or null
  };
  EmbeddingLayer(const StageScope& scope, const Options& options);
  at::Tensor forward(const at::Tensor& tokens);

  /// Rows of `words` for tokens of this rank's part of the vocabulary, zeros for the others.
  at::Tensor look_up(const at::Tensor& tokens) const;
  void accumulate_words(const at::Tensor& tokens, const at::Tensor& grad) const;
  /// Adds positions to the rows that this rank holds after the reduction.
  void add_positions(at::Tensor& rows) const;
  void accumulate_positions(const at::Tensor& grad) const;

  const StageScope& scope() const { return scope_; }
  const Options& options() const { return options_; }

 private:
  struct Local {
    at::Tensor index;   ///< row of `words`, 0 where the token belongs to another rank
    at::Tensor is_own;  ///< [T]
  };
  Local localise(const at::Tensor& tokens) const;
  const StageScope& scope_;
  Options options_;
  at::Tensor anchor_;  ///< makes autograd record the lookup, whose input has no gradient
};

}  // namespace foresail::runtime
