#include "linear.h"

namespace foresail::runtime {
namespace {

/// weight.grad += grad^T input, the GEMM of a weight gradient.
void accumulate_weight(const Parameter& weight, const at::Tensor& grad, const at::Tensor& input) {
  add_product(weight.grad, grad.t(), input);
}

void accumulate_bias(const std::shared_ptr<Parameter>& bias, const at::Tensor& grad) {
  if (bias != nullptr) bias->grad.add_(widened(grad).sum(0));
}

struct ColumnFunction : torch::autograd::Function<ColumnFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, const ColumnLinear* layer) {
    OpContext& op = layer->scope().context();
    const ColumnLinear::Options& options = layer->options();
    const at::Tensor whole = layer->scope().has_sequence_shards()
                                 ? op.all_gather("tp.gather_" + options.kernel, input)
                                 : input;
    graph->save_for_backward({input});
    ModulePointer<ColumnLinear>::save(graph, layer);
    return op.compute(options.kernel, [&] {
      const at::Tensor weight = options.weight->value.t();
      return options.bias == nullptr ? product(whole, weight)
                                     : product(options.bias->value, whole, weight);
    });
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

  static at::Tensor backward_of_whole(const ColumnLinear& layer, const at::Tensor& input,
                                      const at::Tensor& grad) {
    OpContext& op = layer.scope().context();
    const ColumnLinear::Options& options = layer.options();
    const at::Tensor dgrad =
        op.compute(options.kernel + ".dgrad", [&] { return product(grad, options.weight->value); });
    Pending reduction;
    if (op.tp_size() > 1) {
      reduction = op.start_all_reduce("tp.reduce_" + options.kernel, dgrad, Reduction::Sum);
    }
    layer.scope().on_weights([&options, grad, input](OpContext& at) {
      at.compute(options.kernel + ".wgrad", [&] {
        accumulate_weight(*options.weight, grad, input);
        accumulate_bias(options.bias, grad);
      });
    });
    reduction.wait();
    return dgrad;
  }

  /// The input was kept as a shard only, so it is gathered again, under the dgrad GEMM.
  static at::Tensor backward_of_shards(const ColumnLinear& layer, const at::Tensor& input,
                                       const at::Tensor& grad) {
    if (layer.scope().is_deferring()) return split_backward_of_shards(layer, input, grad);
    OpContext& op = layer.scope().context();
    const ColumnLinear::Options& options = layer.options();
    const at::Tensor whole = at::empty({grad.size(0), input.size(1)}, input.options());
    Pending gathering = op.start_all_gather("tp.regather_" + options.kernel, input, whole);
    const at::Tensor dgrad =
        op.compute(options.kernel + ".dgrad", [&] { return product(grad, options.weight->value); });
    const at::Tensor shard = at::empty_like(input);
    Pending scattering = op.start_reduce_scatter("tp.scatter_" + options.kernel, dgrad, shard);
    gathering.wait();
    op.compute(options.kernel + ".wgrad", [&] {
      accumulate_weight(*options.weight, grad, whole);
      accumulate_bias(options.bias, grad);
    });
    scattering.wait();
    return shard;
  }

  /// The weight half gathers the input for itself.
  static at::Tensor split_backward_of_shards(const ColumnLinear& layer, const at::Tensor& input,
                                             const at::Tensor& grad) {
    OpContext& op = layer.scope().context();
    const ColumnLinear::Options& options = layer.options();
    layer.scope().on_weights([&options, grad, input](OpContext& at) {
      const at::Tensor whole = at.all_gather("tp.regather_" + options.kernel, input);
      at.compute(options.kernel + ".wgrad", [&] {
        accumulate_weight(*options.weight, grad, whole);
        accumulate_bias(options.bias, grad);
      });
    });
    const at::Tensor dgrad =
        op.compute(options.kernel + ".dgrad", [&] { return product(grad, options.weight->value); });
    return op.reduce_scatter("tp.scatter_" + options.kernel, dgrad);
  }
};

struct RowFunction : torch::autograd::Function<RowFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, const RowLinear* layer) {
    OpContext& op = layer->scope().context();
    const RowLinear::Options& options = layer->options();
    graph->save_for_backward({input});
    ModulePointer<RowLinear>::save(graph, layer);
    const at::Tensor partial =
        op.compute(options.kernel, [&] { return product(input, options.weight->value.t()); });
    if (op.tp_size() == 1) return partial;
    const std::string name = "tp.reduce_" + options.kernel;
    if (layer->scope().has_sequence_shards()) return op.reduce_scatter(name, partial);
    op.all_reduce(name, partial, Reduction::Sum);
    return partial;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const RowLinear& layer = ModulePointer<RowLinear>::load(graph);
    OpContext& op = layer.scope().context();
    const RowLinear::Options& options = layer.options();
    const at::Tensor input = graph->get_saved_variables()[0];
    at::Tensor grad = grads[0].contiguous();
    if (layer.scope().has_sequence_shards()) {
      grad = op.all_gather("tp.gather_grad_" + options.kernel, grad);
    }
    const at::Tensor dgrad =
        op.compute(options.kernel + ".dgrad", [&] { return product(grad, options.weight->value); });
    layer.scope().on_weights([&options, grad, input](OpContext& at) {
      at.compute(options.kernel + ".wgrad",
                 [&] { accumulate_weight(*options.weight, grad, input); });
    });
    return {dgrad, at::Tensor()};
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
