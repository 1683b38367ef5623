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

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input,
                            const ActivationLayer* layer) {
    graph->save_for_backward({input});
    ModulePointer<ActivationLayer>::save(graph, layer);
    return layer->scope().context().compute(
        layer->kernel(), [&] { return activate(layer->scope().model->activation, input); });
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const ActivationLayer& layer = ModulePointer<ActivationLayer>::load(graph);
    const at::Tensor input = graph->get_saved_variables()[0];
    const models::Activation activation = layer.scope().model->activation;
    return {layer.scope().context().compute(
                layer.kernel() + ".backward",
                [&] { return activate_backward(activation, grads[0].contiguous(), input); }),
            at::Tensor()};
  }
};

struct AddFunction : torch::autograd::Function<AddFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor branch, at::Tensor residual,
                            const AddLayer* layer) {
    ModulePointer<AddLayer>::save(graph, layer);
    const AddLayer::Options& options = layer->options();
    return layer->scope().context().compute(options.kernel, [&] {
      at::Tensor sum = widened(branch) + residual;
      for (const auto& bias : options.biases) sum.add_(bias->value);
      return rounded(sum, residual);
    });
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const AddLayer& layer = ModulePointer<AddLayer>::load(graph);
    const AddLayer::Options& options = layer.options();
    layer.scope().context().compute(options.kernel + ".backward", [&] {
      if (options.biases.empty()) return;
      const at::Tensor sum = widened(grads[0]).sum(0);
      for (const auto& bias : options.biases) bias->grad.add_(sum);
    });
    return {grads[0], grads[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor activate(models::Activation activation, const at::Tensor& input) {
  const at::Tensor wide = widened(input);
  if (activation == models::Activation::Gelu) return rounded(at::gelu(wide, "tanh"), input);
  const std::vector<at::Tensor> halves = wide.chunk(2, -1);
  return rounded(at::silu(halves[0]).mul_(halves[1]), input);
}

at::Tensor activate_backward(models::Activation activation, const at::Tensor& grad,
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
