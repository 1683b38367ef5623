#include "parallel_branches.h"

#include <torch/csrc/autograd/autograd.h>

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
    const bool has_shards = layer->scope().has_sequence_shards();
    const at::Tensor whole = has_shards ? op.all_gather("tp.gather_qkv", input) : input;
    auto inner = c10::make_intrusive<InnerGraphs>();
    InnerGraph& attention = inner->attention;
    InnerGraph& activation = inner->activation;
    attention.leaf =
        op.compute("qkv", [&] { return linear(whole, *options.qkv, options.qkv_bias); });
    run(attention, [&](const at::Tensor& leaf) { return layer->attention().forward(leaf); });
    drop_values(attention.leaf);
    const at::Tensor sum = op.compute(
        "proj", [&] { return product(attention.output.detach(), options.proj->value.t()); });
    activation.leaf =
        op.compute("fc1", [&] { return linear(whole, *options.fc1, options.fc1_bias); });
    run(activation, [&](const at::Tensor& leaf) { return layer->activation().forward(leaf); });
    op.compute("fc2",
               [&] { add_product(sum, activation.output.detach(), options.fc2->value.t()); });
    graph->save_for_backward({input});
    graph->saved_data["inner"] = c10::IValue::make_capsule(inner);
    ModulePointer<ParallelBranches>::save(graph, layer);
    if (op.tp_size() == 1) return sum;
    if (has_shards) return op.reduce_scatter("tp.reduce_fc2", sum);
    op.all_reduce("tp.reduce_fc2", sum, Reduction::Sum);
    return sum;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const ParallelBranches& layer = ModulePointer<ParallelBranches>::load(graph);
    const auto capsule = graph->saved_data.at("inner").toCapsule();
    auto& inner = static_cast<InnerGraphs&>(*capsule);
    OpContext& op = layer.scope().context();
    const ParallelBranches::Options& options = layer.options();
    at::Tensor grad = grads[0].contiguous();
    if (layer.scope().has_sequence_shards()) grad = op.all_gather("tp.gather_grad_fc2", grad);

    ColumnGradients columns;
    columns.input = graph->get_saved_variables()[0];
    columns.fc1 = through(layer, {"fc2", *options.fc2, grad}, inner.activation);
    columns.qkv = through(layer, {"proj", *options.proj, grad}, inner.attention);
    grad.reset();
    return {input_gradient(layer, columns), at::Tensor()};
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

  /// A row-parallel layer and its output's gradient.
  struct Row {
    std::string name;
    const Parameter& weight;
    const at::Tensor& grad;
  };

  /// Back through `row` and the graph in front of it, which goes: the gradient of the leaf.
  static at::Tensor through(const ParallelBranches& layer, const Row& row, InnerGraph& graph) {
    OpContext& op = layer.scope().context();
    const at::Tensor grad_output =
        op.compute(row.name + ".dgrad", [&] { return product(row.grad, row.weight.value); });
    layer.scope().on_weights([name = row.name, &weight = row.weight, grad = row.grad,
                              output = graph.output.detach()](OpContext& at) {
      at.compute(name + ".wgrad", [&] { accumulate(weight, nullptr, grad, output); });
    });
    torch::autograd::backward({graph.output}, {grad_output});
    const at::Tensor grad = graph.leaf.grad().contiguous();
    graph = {};
    return grad;
  }

  static at::Tensor summed(OpContext& op, const ParallelBranches::Options& options,
                           const ColumnGradients& grads) {
    at::Tensor sum =
        op.compute("fc1.dgrad", [&] { return product(grads.fc1, options.fc1->value); });
    op.compute("qkv.dgrad", [&] { add_product(sum, grads.qkv, options.qkv->value); });
    return sum;
  }

  static at::Tensor input_gradient(const ParallelBranches& layer, const ColumnGradients& grads) {
    OpContext& op = layer.scope().context();
    const ParallelBranches::Options& options = layer.options();
    if (layer.scope().has_sequence_shards()) return gradient_of_shards(layer, grads);
    const at::Tensor sum = summed(op, options, grads);
    Pending reduction;
    if (op.tp_size() > 1) reduction = op.start_all_reduce("tp.reduce_qkv", sum, Reduction::Sum);
    layer.scope().on_weights(
        [&options, grads](OpContext& at) { accumulate_columns(options, at, grads, grads.input); });
    reduction.wait();
    return sum;
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
      return op.reduce_scatter("tp.scatter_qkv", summed(op, options, grads));
    }
    const at::Tensor whole =
        at::empty({grads.fc1.size(0), grads.input.size(1)}, grads.input.options());
    Pending gathering = op.start_all_gather("tp.regather_qkv", grads.input, whole);
    const at::Tensor sum = summed(op, options, grads);
    const at::Tensor shard = at::empty_like(grads.input);
    Pending scattering = op.start_reduce_scatter("tp.scatter_qkv", sum, shard);
    gathering.wait();
    accumulate_columns(options, op, grads, whole);
    scattering.wait();
    return shard;
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
  attention_ = register_module("attention", std::make_shared<CoreAttention>(scope));
  activation_ = register_module("activation", std::make_shared<ActivationLayer>(scope));
}

at::Tensor ParallelBranches::forward(const at::Tensor& input) {
  return BranchesFunction::apply(input, static_cast<const ParallelBranches*>(this));
}

}  // namespace foresail::runtime
