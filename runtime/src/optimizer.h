/// \file
/// Adam (Kingma 2015) with fp32 state on the part of a bucket that this rank updates.
#pragma once

#include <ATen/ATen.h>

namespace foresail::runtime {

struct AdamOptions {
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

class Adam {
 public:
  /// `values` is updated in place by every step.
  Adam(const AdamOptions& options, at::Tensor values);
  /// One step with `scale` times `grads`, bias-corrected.
  void step(const at::Tensor& grads, double scale);

 private:
  AdamOptions options_;
  at::Tensor values_, mean_, square_;
  int steps_ = 0;
};

/// min(1, clip / (norm + 1e-6)); 1 if clip is 0 (Megatron-LM's rule).
double clip_scale(double clip, double norm);

}  // namespace foresail::runtime
