#include "parallel_branches.h"

#include <torch/csrc/autograd/autograd.h>

namespace foresail::runtime {
namespace {

/// The graphs inside a block, from its forward to its backward pass.
struct InnerGraphs : torch::CustomClassHolder {
  at::Tensor qkv, attended;     // through attention
  at::Tensor inner, activated;  // through the activation
};

at::Tensor linear(const at::Tensor& input, const Parameter& weight,
                  const std::shared_ptr<Parameter>& bias) {
  const at::Tensor transposed = weight.value.t();
  return bias == nullptr ? at::mm(input, transposed) : at::addmm(bias->value, input, transposed);
}

void accumulate(const Parameter& weight, const std::shared_ptr<Parameter>& bias,
                const at::Tensor& grad, const at::Tensor& input) {
  at::Tensor target = weight.grad;
  at::addmm_out(target, target, grad.t(), input);
  if (bias != nullptr) bias->grad.add_(grad.sum(0));
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
    inner->qkv = op.compute("qkv", [&] { return linear(whole, *options.qkv, options.qkv_bias); });
    inner->attended =
        with_graph(inner->qkv, [&] { return layer->attention().forward(inner->qkv); });
    const at::Tensor sum = op.compute(
        "proj", [&] { return at::mm(inner->attended.detach(), options.proj->value.t()); });
    inner->inner = op.compute("fc1", [&] { return linear(whole, *options.fc1, options.fc1_bias); });
    inner->activated =
        with_graph(inner->inner, [&] { return layer->activation().forward(inner->inner); });
    op.compute("fc2", [&] {
      at::Tensor target = sum;
      at::addmm_out(target, target, inner->activated.detach(), options.fc2->value.t());
    });
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
    const auto& inner = static_cast<const InnerGraphs&>(*capsule);
    OpContext& op = layer.scope().context();
    const ParallelBranches::Options& options = layer.options();
    at::Tensor grad = grads[0].contiguous();
    if (layer.scope().has_sequence_shards()) grad = op.all_gather("tp.gather_grad_fc2", grad);

    const at::Tensor grad_activated =
        op.compute("fc2.dgrad", [&] { return at::mm(grad, options.fc2->value); });
    layer.scope().on_weights([&options, grad, activated = inner.activated.detach()](OpContext& at) {
      at.compute("fc2.wgrad", [&] { accumulate(*options.fc2, nullptr, grad, activated); });
    });
    torch::autograd::backward({inner.activated}, {grad_activated});
    const at::Tensor grad_attended =
        op.compute("proj.dgrad", [&] { return at::mm(grad, options.proj->value); });
    layer.scope().on_weights([&options, grad, attended = inner.attended.detach()](OpContext& at) {
      at.compute("proj.wgrad", [&] { accumulate(*options.proj, nullptr, grad, attended); });
    });
    torch::autograd::backward({inner.attended}, {grad_attended});
    return {input_gradient(layer, {.fc1 = inner.inner.grad().contiguous(),
                                   .qkv = inner.qkv.grad().contiguous(),
                                   .input = graph->get_saved_variables()[0]}),
            at::Tensor()};
  }

  /// `forward` of a part that keeps a graph of its own, whose root is `leaf`.
  template <class Forward>
  static at::Tensor with_graph(at::Tensor& leaf, const Forward& forward) {
    leaf = leaf.detach().requires_grad_();
    const at::AutoGradMode on(true);
    return forward();
  }

  static at::Tensor summed(OpContext& op, const ParallelBranches::Options& options,
                           const ColumnGradients& grads) {
    at::Tensor sum = op.compute("fc1.dgrad", [&] { return at::mm(grads.fc1, options.fc1->value); });
    op.compute("qkv.dgrad", [&] { at::addmm_out(sum, sum, grads.qkv, options.qkv->value); });
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
