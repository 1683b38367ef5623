/// \file
/// Cross-entropy of logits that are split over the vocabulary (Shoeybi 2019): no rank ever holds
/// a whole row.
#pragma once

#include "stage_scope.h"

namespace foresail::runtime {

/// Logits [T, vocabulary / tp] and targets [T] -> mean loss over the tokens, in double precision.
/// Padded columns count as impossible, so that the loss does not depend on the padding.
class CrossEntropy : public torch::nn::Module {
 public:
  explicit CrossEntropy(const StageScope& scope) : scope_(scope) {}
  at::Tensor forward(const at::Tensor& logits, const at::Tensor& targets);
  const StageScope& scope() const { return scope_; }

 private:
  const StageScope& scope_;
};

}  // namespace foresail::runtime
