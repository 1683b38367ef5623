#include "pointwise.h"

namespace foresail::runtime {
namespace {

constexpr double kEpsilon = 1e-5;

struct Normed {
  at::Tensor output;
  variable_list saved;  ///< what the backward pass needs beside the input
};

Normed norm_forward(const NormLayer& layer, const at::Tensor& input) {
  const NormLayer::Options& options = layer.options();
  if (layer.scope().model->norm == models::Norm::LayerNorm) {
    auto [output, mean, deviation] =
        at::native_layer_norm(widened(input), {input.size(-1)}, widened(options.weight->value),
                              widened(options.bias->value), kEpsilon);
    return {rounded(output, input), {mean, deviation}};
  }
  const at::Tensor wide = widened(input);
  const at::Tensor scale = wide.square().mean(-1, true).add_(kEpsilon).rsqrt_();
  return {rounded((wide * scale).mul_(options.weight->value), input), {scale}};
}

/// The gradient of the input in fp32; the parameters' gradients go to their bucket.
at::Tensor norm_backward(const NormLayer& layer, const at::Tensor& grad,
                         const variable_list& saved) {
  const NormLayer::Options& options = layer.options();
  const at::Tensor input = widened(saved[0]);
  if (layer.scope().model->norm == models::Norm::LayerNorm) {
    auto [grad_input, grad_weight, grad_bias] = at::native_layer_norm_backward(
        grad, input, {input.size(-1)}, saved[1], saved[2], widened(options.weight->value),
        widened(options.bias->value), {true, true, true});
    options.weight->grad.add_(grad_weight);
    options.bias->grad.add_(grad_bias);
    return grad_input;
  }
  const at::Tensor& scale = saved[1];
  const at::Tensor normed = input * scale;
  options.weight->grad.add_((grad * normed).sum(0));
  const at::Tensor weighted = grad * options.weight->value;
  const at::Tensor projection = (weighted * normed).mean(-1, true);
  return (weighted - normed * projection).mul_(scale);
}

template <class Layer>
variable_list with_input(AutogradContext* graph, const Layer* layer, const at::Tensor& input,
                         const variable_list& saved) {
  ModulePointer<Layer>::save(graph, layer);
  variable_list all{input};
  all.insert(all.end(), saved.begin(), saved.end());
  return all;
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, const NormLayer* layer) {
    return layer->scope().context().compute(layer->options().kernel, [&] {
      const Normed normed = norm_forward(*layer, input);
      graph->save_for_backward(with_input(graph, layer, input, normed.saved));
      return normed.output;
    });
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const NormLayer& layer = ModulePointer<NormLayer>::load(graph);
    const std::string kernel = layer.options().kernel + ".backward";
    const variable_list saved = graph->get_saved_variables();
    return {layer.scope().context().compute(
                kernel,
                [&] {
                  const at::Tensor grad = widened(grads[0].contiguous());
                  return rounded(norm_backward(layer, grad, saved), saved[0]);
                }),
            at::Tensor()};
  }
};

struct ResidualNormFunction : torch::autograd::Function<ResidualNormFunction> {
  static variable_list forward(AutogradContext* graph, at::Tensor input, const NormLayer* layer) {
    return layer->scope().context().compute(layer->options().kernel, [&] {
      const Normed normed = norm_forward(*layer, input);
      graph->save_for_backward(with_input(graph, layer, input, normed.saved));
      return variable_list{normed.output, input};
    });
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const NormLayer& layer = ModulePointer<NormLayer>::load(graph);
    const std::string kernel = layer.options().kernel + ".backward";
    const variable_list saved = graph->get_saved_variables();
    return {layer.scope().context().compute(
                kernel,
                [&] {
                  const at::Tensor grad = widened(grads[0].contiguous());
                  return rounded(norm_backward(layer, grad, saved).add_(grads[1]), saved[0]);
                }),
            at::Tensor()};
  }
};

/// `wide` in the format of `target`, and in its place.
void set_values(at::Tensor& target, const at::Tensor& wide) {
  if (!wide.is_same(target)) target.copy_(wide);
}

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input,
                            const ActivationLayer* layer) {
    ModulePointer<ActivationLayer>::save(graph, layer);
    const at::Tensor output = activate(layer->kernels(), input);
    graph->save_for_backward({input});
    return output;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const ActivationLayer& layer = ModulePointer<ActivationLayer>::load(graph);
    const at::Tensor input = graph->get_saved_variables()[0];
    return {activate_backward(layer.kernels(), grads[0].contiguous(), input), at::Tensor()};
  }
};

/// Adds up the branch's gradient in the biases'.
void take_bias_gradients(const AddLayer::Options& options, const at::Tensor& grad) {
  if (options.biases.empty()) return;
  const at::Tensor sum = widened(grad).sum(0);
  for (const auto& bias : options.biases) bias->grad.add_(sum);
}

struct AddFunction : torch::autograd::Function<AddFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor branch, at::Tensor residual,
                            const AddLayer* layer) {
    ModulePointer<AddLayer>::save(graph, layer);
    const StageScope& scope = layer->scope();
    at::Tensor dropped;
    const at::Tensor sum =
        has_fused_kernels(scope)
            ? scope.context().compute(layer->options().add,
                                      [&] { return fused(*layer, branch, residual, dropped); })
            : one_by_one(*layer, branch, residual, dropped);
    if (dropped.defined()) graph->save_for_backward({dropped});
    return sum;
  }

  static at::Tensor fused(const AddLayer& layer, const at::Tensor& branch,
                          const at::Tensor& residual, at::Tensor& dropped) {
    const AddLayer::Options& options = layer.options();
    if (!layer.scope().model->dropout) {
      at::Tensor sum = widened(branch) + residual;
      for (const auto& bias : options.biases) sum.add_(bias->value);
      return rounded(sum, residual);
    }
    dropped = layer.scope().draw_hidden_dropped(options.place);
    at::Tensor sum = branch.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    for (const auto& bias : options.biases) sum.add_(bias->value);
    drop(sum, dropped);
    return rounded(sum.add_(residual), residual);
  }

  /// Bias and dropout are done in place.
  static at::Tensor one_by_one(const AddLayer& layer, at::Tensor& branch,
                               const at::Tensor& residual, at::Tensor& dropped) {
    OpContext& op = layer.scope().context();
    const models::Model& model = *layer.scope().model;
    const AddLayer::Options& options = layer.options();
    if (model.biases) {
      op.compute(options.linear + ".bias", [&] {
        at::Tensor sum = widened(branch);
        for (const auto& bias : options.biases) sum.add_(bias->value);
        set_values(branch, sum);
      });
    }
    if (model.dropout) {
      op.compute(options.dropout, [&] {
        dropped = layer.scope().draw_hidden_dropped(options.place);
        at::Tensor left = widened(branch);
        drop(left, dropped);
        set_values(branch, left);
      });
    }
    return op.compute(options.add, [&] { return rounded(widened(branch) + residual, residual); });
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const AddLayer& layer = ModulePointer<AddLayer>::load(graph);
    const StageScope& scope = layer.scope();
    OpContext& op = scope.context();
    const AddLayer::Options& options = layer.options();
    const bool is_fused = has_fused_kernels(scope);
    const bool has_dropout = scope.model->dropout;
    at::Tensor branch = grads[0];
    const auto take_dropped = [&] {
      branch = without_dropped(grads[0], graph->get_saved_variables()[0]);
    };
    op.compute(options.add + ".backward", [&] {
      if (is_fused && has_dropout) take_dropped();
      if (is_fused) take_bias_gradients(options, branch);
    });
    if (!is_fused && has_dropout) op.compute(options.dropout + ".backward", take_dropped);
    if (!is_fused && scope.model->biases) {
      scope.on_weights([&options, branch](OpContext& at) {
        at.compute(options.linear + ".bias.backward",
                   [&] { take_bias_gradients(options, branch); });
      });
    }
    return {branch, grads[0], at::Tensor()};
  }
};

at::Tensor fused_activation(models::Activation activation, const at::Tensor& input) {
  const at::Tensor wide = widened(input);
  if (activation == models::Activation::Gelu) return rounded(at::gelu(wide, "tanh"), input);
  const std::vector<at::Tensor> halves = wide.chunk(2, -1);
  return rounded(at::silu(halves[0]).mul_(halves[1]), input);
}

at::Tensor fused_activation_backward(models::Activation activation, const at::Tensor& grad,
                                     const at::Tensor& input) {
  const at::Tensor wide = widened(input);
  const at::Tensor wide_grad = widened(grad);
  if (activation == models::Activation::Gelu) {
    return rounded(at::gelu_backward(wide_grad, wide, "tanh"), input);
  }
  const std::vector<at::Tensor> halves = wide.chunk(2, -1);
  at::Tensor result = at::empty_like(input);
  const std::vector<at::Tensor> out = result.chunk(2, -1);
  out[0].copy_(at::silu_backward(wide_grad * halves[1], halves[0]));
  out[1].copy_(at::silu(halves[0]).mul_(wide_grad));
  return result;
}

/// SwiGLU in two kernels: `<prefix>activation` is SiLU of the gate projection.
at::Tensor gated_one_by_one(const ActivationKernels& kernels, const at::Tensor& input) {
  OpContext& op = kernels.scope->context();
  const std::vector<at::Tensor> halves = input.chunk(2, -1);
  at::Tensor output = op.compute(kernels.prefix + "activation",
                                 [&] { return rounded(at::silu(widened(halves[0])), input); });
  op.compute(kernels.prefix + "gate", [&] { set_values(output, widened(output).mul_(halves[1])); });
  return output;
}

at::Tensor gated_backward_one_by_one(const ActivationKernels& kernels, const at::Tensor& grad,
                                     const at::Tensor& input) {
  OpContext& op = kernels.scope->context();
  const std::vector<at::Tensor> halves = input.chunk(2, -1);
  const at::Tensor result = at::empty_like(input);
  const std::vector<at::Tensor> out = result.chunk(2, -1);
  op.compute(kernels.prefix + "gate.backward", [&] {
    const at::Tensor wide_grad = widened(grad);
    out[0].copy_(wide_grad * halves[1]);
    out[1].copy_(at::silu(widened(halves[0])).mul_(wide_grad));
  });
  op.compute(kernels.prefix + "activation.backward",
             [&] { out[0].copy_(at::silu_backward(widened(out[0]), widened(halves[0]))); });
  return result;
}

}  // namespace

at::Tensor activate(const ActivationKernels& kernels, at::Tensor& input) {
  const StageScope& scope = *kernels.scope;
  const models::Activation activation = scope.model->activation;
  const bool is_fused = has_fused_kernels(scope);
  if (!is_fused && scope.model->biases) {
    scope.context().compute(kernels.prefix + "fc1.bias", [&] { kernels.add_bias(input); });
  }
  if (!is_fused && activation == models::Activation::SwiGlu) {
    return gated_one_by_one(kernels, input);
  }
  return scope.context().compute(kernels.prefix + "activation",
                                 [&] { return fused_activation(activation, input); });
}

at::Tensor activate_backward(const ActivationKernels& kernels, const at::Tensor& grad,
                             const at::Tensor& input) {
  const StageScope& scope = *kernels.scope;
  const models::Activation activation = scope.model->activation;
  const bool is_fused = has_fused_kernels(scope);
  const auto in_one = [&] {
    return scope.context().compute(kernels.prefix + "activation.backward", [&] {
      return fused_activation_backward(activation, grad, input);
    });
  };
  const bool is_gated = !is_fused && activation == models::Activation::SwiGlu;
  const at::Tensor result = is_gated ? gated_backward_one_by_one(kernels, grad, input) : in_one();
  if (!is_fused && scope.model->biases) {
    scope.on_weights([kernels, result](OpContext& at) {
      at.compute(kernels.prefix + "fc1.bias.backward", [&] { kernels.take_bias_gradient(result); });
    });
  }
  return result;
}

NormLayer::NormLayer(const StageScope& scope, const Options& options)
    : scope_(scope), options_(options) {
  register_buffer("weight", options.weight->value);
  if (options.bias != nullptr) register_buffer("bias", options.bias->value);
}

at::Tensor NormLayer::forward(const at::Tensor& input) {
  return NormFunction::apply(input, static_cast<const NormLayer*>(this));
}

NormLayer::WithResidual NormLayer::forward_with_residual(const at::Tensor& input) {
  const variable_list outputs =
      ResidualNormFunction::apply(input, static_cast<const NormLayer*>(this));
  return {outputs[0], outputs[1]};
}

ActivationLayer::ActivationLayer(const StageScope& scope, const std::string& prefix,
                                 std::shared_ptr<Parameter> bias)
    : kernels_{.scope = &scope, .prefix = prefix} {
  if (bias == nullptr) return;
  register_buffer("bias", bias->value);
  kernels_.add_bias = [bias](at::Tensor& rows) {
    set_values(rows, widened(rows).add_(bias->value));
  };
  kernels_.take_bias_gradient = [bias](const at::Tensor& grad) {
    bias->grad.add_(widened(grad).sum(0));
  };
}

at::Tensor ActivationLayer::forward(const at::Tensor& input) {
  return ActivationFunction::apply(input, static_cast<const ActivationLayer*>(this));
}

AddLayer::AddLayer(const StageScope& scope, const Options& options)
    : scope_(scope), options_(options) {
  for (std::size_t i = 0; i < options.biases.size(); ++i) {
    register_buffer("bias" + std::to_string(i), options.biases[i]->value);
  }
}

at::Tensor AddLayer::forward(const at::Tensor& branch, const at::Tensor& residual) {
  return AddFunction::apply(branch, residual, static_cast<const AddLayer*>(this));
}

}  // namespace foresail::runtime
