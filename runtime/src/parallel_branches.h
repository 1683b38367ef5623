/// \file
/// Attention and MLP side by side behind one norm (PaLM; MegaScale section 3.1).
#pragma once

#include "core_attention.h"
#include "pointwise.h"

namespace foresail::runtime {

/// Attention(x) + Mlp(x) of a parallel block: both branches read one gathered input, and their
/// partial sums meet in the last GEMM, so one reduction serves both.
/// Kernels: [tp.gather_qkv] qkv ... proj fc1 activation fc2 [tp.reduce_fc2]; backward
/// [tp.gather_grad_fc2] fc2 activation proj ... fc1.dgrad qkv.dgrad with the collective of the
/// input gradient started before fc1.wgrad qkv.wgrad.
class ParallelBranches : public torch::nn::Module {
 public:
  struct Options {
    std::shared_ptr<Parameter> qkv, qkv_bias;  ///< biases or null
    std::shared_ptr<Parameter> fc1, fc1_bias;
    std::shared_ptr<Parameter> activation_bias;  ///< that of fc1, where the activation adds it
    std::shared_ptr<Parameter> proj, fc2;        ///< their biases are added with the residual
    int layer = 0;
  };
  ParallelBranches(const StageScope& scope, const Options& options);
  at::Tensor forward(const at::Tensor& input);

  const StageScope& scope() const { return scope_; }
  const Options& options() const { return options_; }
  CoreAttention& attention() const { return *attention_; }
  ActivationLayer& activation() const { return *activation_; }

 private:
  const StageScope& scope_;
  Options options_;
  std::shared_ptr<CoreAttention> attention_;
  std::shared_ptr<ActivationLayer> activation_;
};

}  // namespace foresail::runtime
