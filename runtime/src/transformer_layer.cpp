#include "transformer_layer.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace foresail::runtime {
namespace {

/// One of the global matrices that share a column-parallel weight ("query", "key", "value").
struct GlobalRows {
  std::string name;
  std::int64_t rows = 0;  ///< of the whole matrix
};

/// A weight whose output features are split: this rank's rows of each global matrix, one under
/// the other.
std::shared_ptr<Parameter> take_column_weight(const StageScope& scope, Bucket& bucket,
                                              const std::string& name,
                                              const std::vector<GlobalRows>& parts) {
  const std::int64_t in = scope.model->hidden;
  std::int64_t rows = 0;
  for (const GlobalRows& part : parts) rows += part.rows / scope.split->tp;
  const auto weight = bucket.take(name + ".weight", Spread::Sharded, {rows, in});
  std::int64_t first = 0;
  for (const GlobalRows& part : parts) {
    const std::int64_t own = part.rows / scope.split->tp;
    const Block block{.first_row = scope.tp_rank * own,
                      .rows = own,
                      .first_column = 0,
                      .columns = in,
                      .total_columns = in};
    fill_normal(weight->master.narrow(0, first, own), part.name, block, scope.seed,
                kInitialDeviation);
    first += own;
  }
  return weight;
}

/// A weight whose input features are split: this rank's columns.
std::shared_ptr<Parameter> take_row_weight(const StageScope& scope, Bucket& bucket,
                                           const std::string& name, std::int64_t in) {
  const std::int64_t out = scope.model->hidden;
  const std::int64_t own = in / scope.split->tp;
  const auto weight = bucket.take(name + ".weight", Spread::Sharded, {out, own});
  const Block block{.first_row = 0,
                    .rows = out,
                    .first_column = scope.tp_rank * own,
                    .columns = own,
                    .total_columns = in};
  fill_normal(weight->master, name, block, scope.seed,
              kInitialDeviation / std::sqrt(2.0 * scope.model->layers));
  return weight;
}

std::shared_ptr<Parameter> take_bias(const StageScope& scope, Bucket& bucket,
                                     const std::string& name, Spread spread, std::int64_t size) {
  if (!scope.model->biases) return nullptr;
  return bucket.take(name + ".bias", spread, {size});
}

std::vector<std::shared_ptr<Parameter>> take_residual_bias(const StageScope& scope, Bucket& bucket,
                                                           const std::string& name) {
  const auto bias = take_bias(scope, bucket, name, Spread::Replicated, scope.model->hidden);
  if (bias == nullptr) return {};
  return {bias};
}

/// The bias of fc1 where it is a kernel of the activation, and no longer the GEMM's.
std::shared_ptr<Parameter> taken_by_activation(const StageScope& scope,
                                               std::shared_ptr<Parameter>& bias) {
  return has_fused_kernels(scope) ? nullptr : std::exchange(bias, nullptr);
}

/// The column-parallel weights of layer `prefix`, by the module's name.
struct ColumnParts {
  std::string kernel;
  std::vector<GlobalRows> rows;
};

ColumnParts qkv_parts(const models::Model& model, const std::string& prefix) {
  const std::int64_t query = model.heads * model.head_size;
  const std::int64_t shared = model.kv_heads * model.head_size;
  return {"qkv", {{prefix + "query", query}, {prefix + "key", shared}, {prefix + "value", shared}}};
}

ColumnParts fc1_parts(const models::Model& model, const std::string& prefix) {
  if (model.activation == models::Activation::SwiGlu) {
    return {"fc1", {{prefix + "gate", model.ffn}, {prefix + "up", model.ffn}}};
  }
  return {"fc1", {{prefix + "fc1", model.ffn}}};
}

ColumnLinear::Options take_column(const StageScope& scope, Bucket& bucket,
                                  const std::string& prefix, const ColumnParts& parts) {
  ColumnLinear::Options options;
  options.kernel = parts.kernel;
  options.is_pipelined = true;
  options.weight = take_column_weight(scope, bucket, prefix + parts.kernel, parts.rows);
  options.bias = take_bias(scope, bucket, prefix + parts.kernel, Spread::Sharded,
                           options.weight->value.size(0));
  return options;
}

/// Runs a layer without a graph and keeps its input alone; the backward pass makes the graph.
struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, TransformerLayer* layer) {
    graph->save_for_backward({input});
    ModulePointer<TransformerLayer>::save(graph, layer);
    return layer->run(input);
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    auto& layer = const_cast<TransformerLayer&>(ModulePointer<TransformerLayer>::load(graph));
    OpContext& op = layer.scope().context();
    const at::Tensor input = graph->get_saved_variables()[0].detach().requires_grad_();
    at::Tensor output;
    {
      const at::AutoGradMode with_graph(true);
      op.set_phase(OpContext::Phase::Recompute);
      output = layer.run(input);
      op.set_phase(OpContext::Phase::First);
    }
    torch::autograd::backward({output}, {grads[0]});
    return {input.grad(), at::Tensor()};
  }
};

}  // namespace

std::shared_ptr<NormLayer> make_norm(const StageScope& scope, Bucket& bucket,
                                     const std::string& name, const std::string& kernel) {
  NormLayer::Options options;
  options.kernel = kernel;
  options.weight = bucket.take(name + ".weight", Spread::Replicated, {scope.model->hidden});
  options.weight->master.fill_(1);
  if (scope.model->norm == models::Norm::LayerNorm) {
    options.bias = bucket.take(name + ".bias", Spread::Replicated, {scope.model->hidden});
  }
  return std::make_shared<NormLayer>(scope, options);
}

TransformerLayer::TransformerLayer(const StageScope& scope, Bucket& bucket, Bucket* experts,
                                   int index)
    : scope_(scope), index_(index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  norm1_ = register_module("norm1", make_norm(scope, bucket, prefix + "norm1", "norm1"));
  if (scope.model->block == models::Block::Parallel) {
    take_parallel(bucket, prefix);
  } else {
    take_serial(bucket, models::has_experts(*scope.model, index) ? experts : nullptr, prefix);
  }
}

std::shared_ptr<AddLayer> TransformerLayer::make_add(
    DropoutSite site, std::vector<std::shared_ptr<Parameter>> biases) {
  const bool is_first = site == DropoutSite::Projection;
  return std::make_shared<AddLayer>(scope_,
                                    AddLayer::Options{.linear = is_first ? "proj" : "fc2",
                                                      .dropout = is_first ? "dropout1" : "dropout2",
                                                      .add = is_first ? "add1" : "add2",
                                                      .place = {site, index_},
                                                      .biases = std::move(biases)});
}

void TransformerLayer::take_serial(Bucket& bucket, Bucket* experts, const std::string& prefix) {
  const models::Model& model = *scope_.model;
  qkv_ = register_module(
      "qkv", std::make_shared<ColumnLinear>(
                 scope_, take_column(scope_, bucket, prefix, qkv_parts(model, prefix))));
  attention_ = register_module("attention", std::make_shared<CoreAttention>(scope_, index_));
  const std::int64_t query = model.heads * model.head_size;
  proj_ = register_module(
      "proj", std::make_shared<RowLinear>(
                  scope_, RowLinear::Options{
                              "proj", take_row_weight(scope_, bucket, prefix + "proj", query)}));
  add1_ = register_module("add1", make_add(DropoutSite::Projection,
                                           take_residual_bias(scope_, bucket, prefix + "proj")));
  norm2_ = register_module("norm2", make_norm(scope_, bucket, prefix + "norm2", "norm2"));
  if (experts != nullptr) {
    take_mixture(bucket, *experts, prefix);
  } else {
    take_mlp(bucket, prefix);
  }
}

void TransformerLayer::take_mlp(Bucket& bucket, const std::string& prefix) {
  const models::Model& model = *scope_.model;
  ColumnLinear::Options fc1 = take_column(scope_, bucket, prefix, fc1_parts(model, prefix));
  const auto bias = taken_by_activation(scope_, fc1.bias);
  fc1_ = register_module("fc1", std::make_shared<ColumnLinear>(scope_, fc1));
  activation_ = register_module("activation", std::make_shared<ActivationLayer>(scope_, "", bias));
  fc2_ = register_module(
      "fc2", std::make_shared<RowLinear>(
                 scope_, RowLinear::Options{
                             "fc2", take_row_weight(scope_, bucket, prefix + "fc2", model.ffn)}));
  add2_ = register_module(
      "add2", make_add(DropoutSite::Mlp, take_residual_bias(scope_, bucket, prefix + "fc2")));
}

/// The bias of the shared experts' second matrix is added with the residual, as an MLP's.
void TransformerLayer::take_mixture(Bucket& bucket, Bucket& experts, const std::string& prefix) {
  const models::Model& model = *scope_.model;
  const std::int64_t hidden = model.hidden;
  ExpertLayer::Options options;
  options.router =
      bucket.take(prefix + "router.weight", Spread::Replicated, {model.experts.count, hidden});
  const Block whole{.first_row = 0,
                    .rows = model.experts.count,
                    .first_column = 0,
                    .columns = hidden,
                    .total_columns = hidden};
  fill_normal(options.router->master, prefix + "router", whole, scope_.seed, kInitialDeviation);
  std::vector<std::shared_ptr<Parameter>> biases;
  if (model.experts.shared > 0) {
    const std::int64_t width = model.experts.shared * model.experts.shared_ffn;
    const std::string shared = prefix + "shared.";
    ColumnParts parts = fc1_parts(model, shared);
    parts.kernel = "shared_fc1";
    for (GlobalRows& rows : parts.rows) rows.rows = width;
    ColumnLinear::Options fc1 = take_column(scope_, bucket, prefix, parts);
    options.shared_bias = taken_by_activation(scope_, fc1.bias);
    options.shared_fc1 = std::make_shared<ColumnLinear>(scope_, fc1);
    options.shared_fc2 = std::make_shared<RowLinear>(
        scope_, RowLinear::Options{"shared_fc2",
                                   take_row_weight(scope_, bucket, prefix + "shared.fc2", width)});
    biases = take_residual_bias(scope_, bucket, prefix + "shared.fc2");
  }
  if (model.experts.shared_gate) {
    options.shared_gate = bucket.take(prefix + "shared.gate", Spread::Replicated, {hidden});
    const Block row{
        .first_row = 0, .rows = 1, .first_column = 0, .columns = hidden, .total_columns = hidden};
    fill_normal(options.shared_gate->master, prefix + "shared.gate", row, scope_.seed,
                kInitialDeviation);
  }
  take_experts(scope_, experts, prefix, options);
  experts_ = register_module("experts", std::make_shared<ExpertLayer>(scope_, options));
  add2_ = register_module("add2", make_add(DropoutSite::Mlp, std::move(biases)));
}

void TransformerLayer::take_parallel(Bucket& bucket, const std::string& prefix) {
  const models::Model& model = *scope_.model;
  const ColumnLinear::Options qkv = take_column(scope_, bucket, prefix, qkv_parts(model, prefix));
  ColumnLinear::Options fc1 = take_column(scope_, bucket, prefix, fc1_parts(model, prefix));
  const auto activation_bias = taken_by_activation(scope_, fc1.bias);
  ParallelBranches::Options options{.qkv = qkv.weight,
                                    .qkv_bias = qkv.bias,
                                    .fc1 = fc1.weight,
                                    .fc1_bias = fc1.bias,
                                    .activation_bias = activation_bias,
                                    .proj = nullptr,
                                    .fc2 = nullptr,
                                    .layer = index_};
  const std::int64_t query = model.heads * model.head_size;
  options.proj = take_row_weight(scope_, bucket, prefix + "proj", query);
  options.fc2 = take_row_weight(scope_, bucket, prefix + "fc2", model.ffn);
  branches_ = register_module("branches", std::make_shared<ParallelBranches>(scope_, options));
  auto biases = take_residual_bias(scope_, bucket, prefix + "proj");
  for (const auto& bias : take_residual_bias(scope_, bucket, prefix + "fc2")) {
    biases.push_back(bias);
  }
  add2_ = register_module("add2", make_add(DropoutSite::Mlp, std::move(biases)));
}

at::Tensor TransformerLayer::run(const at::Tensor& input) {
  const NormLayer::WithResidual first = norm1_->forward_with_residual(input);
  if (branches_ != nullptr) return add2_->forward(branches_->forward(first.normed), first.residual);
  const at::Tensor attended = attention_->forward(qkv_->forward(first.normed));
  const at::Tensor middle = add1_->forward(proj_->forward(attended), first.residual);
  const NormLayer::WithResidual second = norm2_->forward_with_residual(middle);
  return add2_->forward(mlp(second.normed), second.residual);
}

at::Tensor TransformerLayer::mlp(const at::Tensor& input) {
  if (experts_ != nullptr) return experts_->forward(input);
  return fc2_->forward(activation_->forward(fc1_->forward(input)));
}

at::Tensor TransformerLayer::forward(const at::Tensor& input) {
  if (scope_.split->recompute != models::Recompute::Full) return run(input);
  return RecomputeFunction::apply(input, this);
}

}  // namespace foresail::runtime
