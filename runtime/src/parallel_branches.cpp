#include "parallel_branches.h"

#include <torch/csrc/autograd/autograd.h>

#include "parallel_gemm.h"

namespace foresail::runtime {
namespace {

/// A graph from what a column-parallel layer makes to what a row-parallel layer reads.
struct InnerGraph {
  at::Tensor leaf, output;
};

/// The graphs inside a block, from its forward to its backward pass.
struct InnerGraphs : torch::CustomClassHolder {
  InnerGraph attention, activation;
};

at::Tensor linear(const at::Tensor& input, const Parameter& weight,
                  const std::shared_ptr<Parameter>& bias) {
  const at::Tensor transposed = weight.value.t();
  return bias == nullptr ? product(input, transposed) : product(bias->value, input, transposed);
}

void accumulate(const Parameter& weight, const std::shared_ptr<Parameter>& bias,
                const at::Tensor& grad, const at::Tensor& input) {
  add_product(weight.grad, grad.t(), input);
  if (bias != nullptr) bias->grad.add_(widened(grad).sum(0));
}

/// The gradients that reach the two column-parallel layers, and the input they share.
struct ColumnGradients {
  at::Tensor fc1, qkv, input;
};

void accumulate_columns(const ParallelBranches::Options& options, OpContext& op,
                        const ColumnGradients& grads, const at::Tensor& whole) {
  op.compute("fc1.wgrad", [&] { accumulate(*options.fc1, options.fc1_bias, grads.fc1, whole); });
  op.compute("qkv.wgrad", [&] { accumulate(*options.qkv, options.qkv_bias, grads.qkv, whole); });
}

struct BranchesFunction : torch::autograd::Function<BranchesFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input,
                            const ParallelBranches* layer) {
    OpContext& op = layer->scope().context();
    const ParallelBranches::Options& options = layer->options();
    auto inner = c10::make_intrusive<InnerGraphs>();
    InnerGraph& attention = inner->attention;
    InnerGraph& activation = inner->activation;
    GatheredProduct qkv = gathered_qkv(*layer, input);
    attention.leaf = std::move(qkv.result);
    run(attention, [&](const at::Tensor& leaf) { return layer->attention().forward(leaf); });
    drop_values(attention.leaf);
    const at::Tensor sum = op.compute(
        "proj", [&] { return product(attention.output.detach(), options.proj->value.t()); });
    activation.leaf =
        op.compute("fc1", [&] { return linear(qkv.whole, *options.fc1, options.fc1_bias); });
    run(activation, [&](const at::Tensor& leaf) { return layer->activation().forward(leaf); });
    graph->save_for_backward({input});
    graph->saved_data["inner"] = c10::IValue::make_capsule(inner);
    ModulePointer<ParallelBranches>::save(graph, layer);
    return added_fc2(*layer, activation.output.detach(), sum);
  }

  static GatheredProduct gathered_qkv(const ParallelBranches& layer, const at::Tensor& input) {
    const ParallelBranches::Options& options = layer.options();
    const ParallelGemm gemm{.kernel = "qkv",
                            .collective = "tp.gather_qkv",
                            .columns = options.qkv->value.size(0),
                            .multiply =
                                [&](const at::Tensor& target, const at::Tensor& rows) {
                                  const at::Tensor weight = options.qkv->value.t();
                                  if (options.qkv_bias == nullptr) {
                                    set_product(target, rows, weight);
                                  } else {
                                    set_product(target, options.qkv_bias->value, rows, weight);
                                  }
                                },
                            .is_pipelined = true};
    return gather_and_multiply(layer.scope(), gemm, input);
  }

  /// To the attention's output, `sum`; reduced.
  static at::Tensor added_fc2(const ParallelBranches& layer, const at::Tensor& input,
                              const at::Tensor& sum) {
    const at::Tensor weight = layer.options().fc2->value.t();
    const ParallelGemm gemm{
        .kernel = "fc2",
        .collective = "tp.reduce_fc2",
        .columns = weight.size(1),
        .multiply = [&](const at::Tensor& target,
                        const at::Tensor& rows) { add_product(target, rows, weight); },
        .is_pipelined = true};
    return multiply_and_reduce(layer.scope(), gemm, input, sum).wait();
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const ParallelBranches& layer = ModulePointer<ParallelBranches>::load(graph);
    const auto capsule = graph->saved_data.at("inner").toCapsule();
    auto& inner = static_cast<InnerGraphs&>(*capsule);
    OpContext& op = layer.scope().context();
    const ParallelBranches::Options& options = layer.options();
    ColumnGradients columns;
    columns.input = graph->get_saved_variables()[0];
    GatheredProduct fc2 = fc2_gradient(layer, grads[0].contiguous());
    columns.fc1 =
        through(layer, {"fc2", *options.fc2, fc2.whole}, std::move(fc2.result), inner.activation);
    at::Tensor proj =
        op.compute("proj.dgrad", [&] { return product(fc2.whole, options.proj->value); });
    columns.qkv =
        through(layer, {"proj", *options.proj, fc2.whole}, std::move(proj), inner.attention);
    fc2 = {};
    return {input_gradient(layer, columns), at::Tensor()};
  }

  static GatheredProduct fc2_gradient(const ParallelBranches& layer, const at::Tensor& grad) {
    const at::Tensor weight = layer.options().fc2->value;
    const ParallelGemm gemm{
        .kernel = "fc2.dgrad",
        .collective = "tp.gather_grad_fc2",
        .columns = weight.size(1),
        .multiply = [&](const at::Tensor& target,
                        const at::Tensor& rows) { set_product(target, rows, weight); },
        .is_pipelined = true};
    return gather_and_multiply(layer.scope(), gemm, grad);
  }

  /// Runs `forward` as a graph of its own from its leaf to its output.
  template <class Forward>
  static void run(InnerGraph& graph, const Forward& forward) {
    graph.leaf = graph.leaf.detach().requires_grad_();
    const at::AutoGradMode on(true);
    graph.output = forward(graph.leaf);
  }

  /// Attention keeps queries, keys and values by head; the leaf need only say its shape.
  static void drop_values(at::Tensor& leaf) {
    leaf.set_data(at::zeros({1}, leaf.options().requires_grad(false)).expand(leaf.sizes()));
  }

  /// A row-parallel layer and its output's gradient, of all tokens.
  struct Row {
    std::string name;
    const Parameter& weight;
    const at::Tensor& grad;
  };

  /// Back through the graph in front of `row`, from the gradient of its output. The graph goes:
  /// the gradient of its leaf.
  static at::Tensor through(const ParallelBranches& layer, const Row& row, at::Tensor grad_output,
                            InnerGraph& graph) {
    layer.scope().on_weights([name = row.name, &weight = row.weight, grad = row.grad,
                              output = graph.output.detach()](OpContext& at) {
      at.compute(name + ".wgrad", [&] { accumulate(weight, nullptr, grad, output); });
    });
    torch::autograd::backward({graph.output}, {grad_output});
    const at::Tensor grad = graph.leaf.grad().contiguous();
    graph = {};
    return grad;
  }

  static ReducedProduct start_sum(const ParallelBranches& layer, const std::string& reduction,
                                  const ColumnGradients& grads) {
    const ParallelBranches::Options& options = layer.options();
    const at::Tensor sum = layer.scope().context().compute(
        "fc1.dgrad", [&] { return product(grads.fc1, options.fc1->value); });
    const ParallelGemm gemm{
        .kernel = "qkv.dgrad",
        .collective = reduction,
        .columns = sum.size(1),
        .multiply = [&](const at::Tensor& target,
                        const at::Tensor& rows) { add_product(target, rows, options.qkv->value); },
        .is_pipelined = true};
    return multiply_and_reduce(layer.scope(), gemm, grads.qkv, sum);
  }

  static at::Tensor input_gradient(const ParallelBranches& layer, const ColumnGradients& grads) {
    const ParallelBranches::Options& options = layer.options();
    if (layer.scope().has_sequence_shards()) return gradient_of_shards(layer, grads);
    ReducedProduct sum = start_sum(layer, "tp.reduce_qkv", grads);
    layer.scope().on_weights(
        [&options, grads](OpContext& at) { accumulate_columns(options, at, grads, grads.input); });
    return sum.wait();
  }

  /// The input was kept as a shard only: gathered again under the input-gradient GEMMs, or by the
  /// weight half for itself.
  static at::Tensor gradient_of_shards(const ParallelBranches& layer,
                                       const ColumnGradients& grads) {
    OpContext& op = layer.scope().context();
    const ParallelBranches::Options& options = layer.options();
    if (layer.scope().is_deferring()) {
      layer.scope().on_weights([&options, grads](OpContext& at) {
        accumulate_columns(options, at, grads, at.all_gather("tp.regather_qkv", grads.input));
      });
      return start_sum(layer, "tp.scatter_qkv", grads).wait();
    }
    const at::Tensor whole =
        at::empty({grads.fc1.size(0), grads.input.size(1)}, grads.input.options());
    Pending gathering = op.start_all_gather("tp.regather_qkv", grads.input, whole);
    ReducedProduct sum = start_sum(layer, "tp.scatter_qkv", grads);
    gathering.wait();
    accumulate_columns(options, op, grads, whole);
    return sum.wait();
  }
};

}  // namespace

ParallelBranches::ParallelBranches(const StageScope& scope, const Options& options)
    : scope_(scope), options_(options) {
  for (const auto& [name, parameter] :
       {std::pair{"qkv", options.qkv}, std::pair{"qkv_bias", options.qkv_bias},
        std::pair{"fc1", options.fc1}, std::pair{"fc1_bias", options.fc1_bias},
        std::pair{"proj", options.proj}, std::pair{"fc2", options.fc2}}) {
    if (parameter != nullptr) register_buffer(name, parameter->value);
  }
  attention_ = register_module("attention", std::make_shared<CoreAttention>(scope, options.layer));
  activation_ = register_module(
      "activation", std::make_shared<ActivationLayer>(scope, "", options.activation_bias));
}

at::Tensor ParallelBranches::forward(const at::Tensor& input) {
  return BranchesFunction::apply(input, static_cast<const ParallelBranches*>(this));
}

}  // namespace foresail::runtime
