/// \file
/// The experts of a layer on one rank: router, exchange of tokens, the experts' own GEMMs, shared
/// experts.
#pragma once

#include "expert_routing.h"
#include "linear.h"
#include "pointwise.h"

namespace foresail::runtime {

/// From the second norm's output to what is added to the residual. Kernels: those of
/// models::experts_forward and experts_backward, in their order.
///
/// Without a capacity factor the ranks tell each other their counts and then move what there is;
/// names and order of kernels are those of the Program, sizes and GEMM shapes of the experts follow
/// from the data. With one, all sizes are those of the Program.
class ExpertLayer : public torch::nn::Module {
 public:
  struct Options {
    std::shared_ptr<Parameter> router;         ///< [experts, hidden], on every rank
    std::shared_ptr<Parameter> fc1, fc1_bias;  ///< [own experts, fc1 width / expert tp, hidden]
    std::shared_ptr<Parameter> fc2, fc2_bias;  ///< [own experts, hidden, ffn / expert tp]
    std::shared_ptr<ColumnLinear> shared_fc1;  ///< or null
    std::shared_ptr<Parameter> shared_bias;    ///< of it, where the activation adds it; or null
    std::shared_ptr<RowLinear> shared_fc2;
    std::shared_ptr<Parameter> shared_gate;  ///< [hidden], or null
  };
  ExpertLayer(const StageScope& scope, const Options& options);
  at::Tensor forward(const at::Tensor& input);

  const StageScope& scope() const { return scope_; }
  const Options& options() const { return options_; }
  ActivationLayer& shared_activation() const { return *shared_activation_; }
  bool has_shared() const { return options_.shared_fc1 != nullptr; }
  bool is_dropless() const { return scope_.model->experts.capacity_factor == 0; }

 private:
  const StageScope& scope_;
  Options options_;
  std::shared_ptr<ActivationLayer> shared_activation_;
};

/// Takes the routed experts' parameters from `bucket`: those of models::expert_layer_parameters.
/// `prefix`: "layers.3.".
void take_experts(const StageScope& scope, Bucket& bucket, const std::string& prefix,
                  ExpertLayer::Options& options);

}  // namespace foresail::runtime
