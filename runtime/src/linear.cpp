#include "linear.h"

#include "parallel_gemm.h"

namespace foresail::runtime {
namespace {

/// weight.grad += grad^T input, the GEMM of a weight gradient.
void accumulate_weight(const Parameter& weight, const at::Tensor& grad, const at::Tensor& input) {
  add_product(weight.grad, grad.t(), input);
}

void accumulate_bias(const std::shared_ptr<Parameter>& bias, const at::Tensor& grad) {
  if (bias != nullptr) bias->grad.add_(widened(grad).sum(0));
}

/// target = input weight^T + bias.
void set_linear(const at::Tensor& target, const at::Tensor& input,
                const ColumnLinear::Options& options) {
  const at::Tensor weight = options.weight->value.t();
  if (options.bias == nullptr) {
    set_product(target, input, weight);
  } else {
    set_product(target, options.bias->value, input, weight);
  }
}

struct ColumnFunction : torch::autograd::Function<ColumnFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, const ColumnLinear* layer) {
    const ColumnLinear::Options& options = layer->options();
    graph->save_for_backward({input});
    ModulePointer<ColumnLinear>::save(graph, layer);
    const ParallelGemm gemm{
        .kernel = options.kernel,
        .collective = "tp.gather_" + options.kernel,
        .columns = options.weight->value.size(0),
        .multiply = [&](const at::Tensor& target,
                        const at::Tensor& rows) { set_linear(target, rows, options); },
        .is_pipelined = options.is_pipelined};
    return gather_and_multiply(layer->scope(), gemm, input).result;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const ColumnLinear& layer = ModulePointer<ColumnLinear>::load(graph);
    const at::Tensor input = graph->get_saved_variables()[0];
    const at::Tensor grad = grads[0].contiguous();
    const at::Tensor result = layer.scope().has_sequence_shards()
                                  ? backward_of_shards(layer, input, grad)
                                  : backward_of_whole(layer, input, grad);
    return {result, at::Tensor()};
  }

  static ReducedProduct start_input_gradient(const ColumnLinear& layer,
                                             const std::string& reduction, const at::Tensor& grad) {
    const ColumnLinear::Options& options = layer.options();
    const ParallelGemm gemm{.kernel = options.kernel + ".dgrad",
                            .collective = reduction + options.kernel,
                            .columns = options.weight->value.size(1),
                            .multiply =
                                [&](const at::Tensor& target, const at::Tensor& rows) {
                                  set_product(target, rows, options.weight->value);
                                },
                            .is_pipelined = options.is_pipelined};
    return multiply_and_reduce(layer.scope(), gemm, grad);
  }

  static at::Tensor backward_of_whole(const ColumnLinear& layer, const at::Tensor& input,
                                      const at::Tensor& grad) {
    const ColumnLinear::Options& options = layer.options();
    ReducedProduct dgrad = start_input_gradient(layer, "tp.reduce_", grad);
    layer.scope().on_weights([&options, grad, input](OpContext& at) {
      at.compute(options.kernel + ".wgrad", [&] {
        accumulate_weight(*options.weight, grad, input);
        accumulate_bias(options.bias, grad);
      });
    });
    return dgrad.wait();
  }

  /// The input was kept as a shard only, so it is gathered again, under the dgrad GEMM.
  static at::Tensor backward_of_shards(const ColumnLinear& layer, const at::Tensor& input,
                                       const at::Tensor& grad) {
    if (layer.scope().is_deferring()) return split_backward_of_shards(layer, input, grad);
    OpContext& op = layer.scope().context();
    const ColumnLinear::Options& options = layer.options();
    const at::Tensor whole = at::empty({grad.size(0), input.size(1)}, input.options());
    Pending gathering = op.start_all_gather("tp.regather_" + options.kernel, input, whole);
    ReducedProduct dgrad = start_input_gradient(layer, "tp.scatter_", grad);
    gathering.wait();
    op.compute(options.kernel + ".wgrad", [&] {
      accumulate_weight(*options.weight, grad, whole);
      accumulate_bias(options.bias, grad);
    });
    return dgrad.wait();
  }

  /// The weight half gathers the input for itself.
  static at::Tensor split_backward_of_shards(const ColumnLinear& layer, const at::Tensor& input,
                                             const at::Tensor& grad) {
    const ColumnLinear::Options& options = layer.options();
    layer.scope().on_weights([&options, grad, input](OpContext& at) {
      const at::Tensor whole = at.all_gather("tp.regather_" + options.kernel, input);
      at.compute(options.kernel + ".wgrad", [&] {
        accumulate_weight(*options.weight, grad, whole);
        accumulate_bias(options.bias, grad);
      });
    });
    return start_input_gradient(layer, "tp.scatter_", grad).wait();
  }
};

struct RowFunction : torch::autograd::Function<RowFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, const RowLinear* layer) {
    const RowLinear::Options& options = layer->options();
    graph->save_for_backward({input});
    ModulePointer<RowLinear>::save(graph, layer);
    const ParallelGemm gemm{.kernel = options.kernel,
                            .collective = "tp.reduce_" + options.kernel,
                            .columns = options.weight->value.size(0),
                            .multiply =
                                [&](const at::Tensor& target, const at::Tensor& rows) {
                                  set_product(target, rows, options.weight->value.t());
                                },
                            .is_pipelined = true};
    return multiply_and_reduce(layer->scope(), gemm, input).wait();
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const RowLinear& layer = ModulePointer<RowLinear>::load(graph);
    const RowLinear::Options& options = layer.options();
    const at::Tensor input = graph->get_saved_variables()[0];
    const ParallelGemm gemm{.kernel = options.kernel + ".dgrad",
                            .collective = "tp.gather_grad_" + options.kernel,
                            .columns = options.weight->value.size(1),
                            .multiply =
                                [&](const at::Tensor& target, const at::Tensor& rows) {
                                  set_product(target, rows, options.weight->value);
                                },
                            .is_pipelined = true};
    const GatheredProduct dgrad = gather_and_multiply(layer.scope(), gemm, grads[0].contiguous());
    layer.scope().on_weights([&options, grad = dgrad.whole, input](OpContext& at) {
      at.compute(options.kernel + ".wgrad",
                 [&] { accumulate_weight(*options.weight, grad, input); });
    });
    return {dgrad.result, at::Tensor()};
  }
};

}  // namespace

ColumnLinear::ColumnLinear(const StageScope& scope, const Options& options)
    : scope_(scope), options_(options) {
  register_buffer("weight", options.weight->value);
  if (options.bias != nullptr) register_buffer("bias", options.bias->value);
}

at::Tensor ColumnLinear::forward(const at::Tensor& input) {
  return ColumnFunction::apply(input, static_cast<const ColumnLinear*>(this));
}

RowLinear::RowLinear(const StageScope& scope, const Options& options)
    : scope_(scope), options_(options) {
  register_buffer("weight", options.weight->value);
}

at::Tensor RowLinear::forward(const at::Tensor& input) {
  return RowFunction::apply(input, static_cast<const RowLinear*>(this));
}

}  // namespace foresail::runtime
