/// \file
/// One transformer layer on one rank: pre-norm, serial or parallel block.
#pragma once

#include "core_attention.h"
#include "expert_layer.h"
#include "linear.h"
#include "parallel_branches.h"
#include "pointwise.h"

namespace foresail::runtime {

/// Where a layer's parameters live: the buckets of its chunk. Takes
/// models::layer_parameters(model, tp).total() elements from `bucket`, or those of
/// models::expert_layer_parameters, and its routed experts from `experts` (null if it has none).
class TransformerLayer : public torch::nn::Module {
 public:
  TransformerLayer(const StageScope& scope, Bucket& bucket, Bucket* experts, int index);

  /// x + Mlp(norm(x + Attention(norm(x)))), or x + Attention(norm(x)) + Mlp(norm(x)). With full
  /// recomputation only `input` is kept, and the backward pass runs the layer again first.
  at::Tensor forward(const at::Tensor& input);
  /// The layer itself, whatever is recomputed.
  at::Tensor run(const at::Tensor& input);

  const StageScope& scope() const { return scope_; }

 private:
  /// Dropout and addition behind attention or MLP.
  std::shared_ptr<AddLayer> make_add(DropoutSite site,
                                     std::vector<std::shared_ptr<Parameter>> biases);
  void take_serial(Bucket& bucket, Bucket* experts, const std::string& prefix);
  void take_mlp(Bucket& bucket, const std::string& prefix);
  void take_mixture(Bucket& bucket, Bucket& experts, const std::string& prefix);
  at::Tensor mlp(const at::Tensor& input);
  void take_parallel(Bucket& bucket, const std::string& prefix);

  const StageScope& scope_;
  int index_;
  std::shared_ptr<NormLayer> norm1_, norm2_;
  std::shared_ptr<ColumnLinear> qkv_, fc1_;
  std::shared_ptr<CoreAttention> attention_;
  std::shared_ptr<RowLinear> proj_, fc2_;
  std::shared_ptr<ActivationLayer> activation_;
  std::shared_ptr<AddLayer> add1_, add2_;
  std::shared_ptr<ExpertLayer> experts_;        // in place of the MLP
  std::shared_ptr<ParallelBranches> branches_;  // of a parallel block, in place of what it holds
};

/// The norm `name` (weights 1, biases 0) as module `kernel`.
std::shared_ptr<NormLayer> make_norm(const StageScope& scope, Bucket& bucket,
                                     const std::string& name, const std::string& kernel);

/// Standard deviation of initial weights (GPT-2); the layers that end a residual branch have
/// 1 / sqrt(2 L) of it.
inline constexpr double kInitialDeviation = 0.02;

}  // namespace foresail::runtime
