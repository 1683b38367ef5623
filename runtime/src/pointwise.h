/// \file
/// The parts of a layer that memory bounds: norms, activations, and the addition of bias and
/// residual with dropout between. Without `stack.fused_kernels` biases, gates and dropout are
/// kernels of their own.
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

/// What stands between two linear layers: GeLU (tanh form), or SwiGLU of an input whose halves are
/// gate and up projection. Kernels: [<prefix>fc1.bias] <prefix>activation [<prefix>gate], those in
/// brackets without fused kernels; backward <prefix>gate.backward and so on.
struct ActivationKernels {
  const StageScope* scope = nullptr;
  std::string prefix = {};  ///< "", "shared_", "experts."
  /// Of a bias that is a kernel of its own: adds it in place, and takes its gradient.
  std::function<void(at::Tensor&)> add_bias = {};
  std::function<void(const at::Tensor&)> take_bias_gradient = {};
};
/// A bias is added to `input`, which the backward pass wants with it.
at::Tensor activate(const ActivationKernels& kernels, at::Tensor& input);
/// The gradient of the input.
at::Tensor activate_backward(const ActivationKernels& kernels, const at::Tensor& grad,
                             const at::Tensor& input);

class ActivationLayer : public torch::nn::Module {
 public:
  /// `bias`: of the layer before, if this one adds it; or null.
  ActivationLayer(const StageScope& scope, const std::string& prefix,
                  std::shared_ptr<Parameter> bias);
  at::Tensor forward(const at::Tensor& input);
  const ActivationKernels& kernels() const { return kernels_; }

 private:
  ActivationKernels kernels_;
};

/// dropout(branch + biases) + residual.
class AddLayer : public torch::nn::Module {
 public:
  struct Options {
    std::string linear;   ///< "proj", whose bias it is
    std::string dropout;  ///< "dropout1"
    std::string add;      ///< "add1": the kernel of all three if they are fused
    DropoutPlace place;
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

/// Whether biases, gates and dropout belong to the kernels beside them.
inline bool has_fused_kernels(const StageScope& scope) {
  return scope.split->stack.fused_kernels;
}

}  // namespace foresail::runtime
