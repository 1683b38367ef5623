/// \file
/// The parts of a layer that memory bounds: norms, activations, and the addition of bias and
/// residual.
#pragma once

#include "stage_scope.h"

namespace foresail::runtime {

/// LayerNorm or RMSNorm over the last dimension, as the model says; epsilon 1e-5.
class NormLayer : public torch::nn::Module {
 public:
  struct Options {
    std::string kernel;  ///< "norm1"
    std::shared_ptr<Parameter> weight;
    std::shared_ptr<Parameter> bias;  ///< LayerNorm only
  };
  NormLayer(const StageScope& scope, const Options& options);

  /// The norm of `input` alone.
  at::Tensor forward(const at::Tensor& input);

  struct WithResidual {
    at::Tensor normed;
    at::Tensor residual;  ///< `input`, its gradient added within the norm's backward kernel
  };
  WithResidual forward_with_residual(const at::Tensor& input);

  const StageScope& scope() const { return scope_; }
  const Options& options() const { return options_; }

 private:
  const StageScope& scope_;
  Options options_;
};

/// GeLU (tanh form), or SwiGLU of an input whose halves are gate and up projection.
class ActivationLayer : public torch::nn::Module {
 public:
  explicit ActivationLayer(const StageScope& scope, std::string kernel = "activation")
      : scope_(scope), kernel_(std::move(kernel)) {}
  at::Tensor forward(const at::Tensor& input);
  const StageScope& scope() const { return scope_; }
  const std::string& kernel() const { return kernel_; }

 private:
  const StageScope& scope_;
  std::string kernel_;
};

/// The activation itself, and the gradient of its input.
at::Tensor activate(models::Activation activation, const at::Tensor& input);
at::Tensor activate_backward(models::Activation activation, const at::Tensor& grad,
                             const at::Tensor& input);

/// branch + biases + residual.
class AddLayer : public torch::nn::Module {
 public:
  struct Options {
    std::string kernel;  ///< "add1"
    /// Of the row-parallel layers before: none, one, or those of both branches.
    std::vector<std::shared_ptr<Parameter>> biases;
  };
  AddLayer(const StageScope& scope, const Options& options);
  at::Tensor forward(const at::Tensor& branch, const at::Tensor& residual);

  const StageScope& scope() const { return scope_; }
  const Options& options() const { return options_; }

 private:
  const StageScope& scope_;
  Options options_;
};

}  // namespace foresail::runtime
