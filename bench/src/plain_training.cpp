#include "plain_training.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "foresail/base/error.h"
#include "optimizer.h"
#include "parameters.h"

namespace foresail::bench {
namespace {

using at::Tensor;
using runtime::Bucket;
using runtime::Parameter;
using Taken = std::shared_ptr<Parameter>;  // shared with the bucket

constexpr double kEpsilon = 1e-5;
constexpr double kInitialDeviation = 0.02;

struct Layer {
  Taken norm1, norm1_bias, qkv, qkv_bias, proj, proj_bias;
  Taken norm2, norm2_bias, fc1, fc1_bias, fc2, fc2_bias;
};

/// What a norm keeps for its backward pass.
struct Normed {
  Tensor input, output, mean, deviation;
};

/// What a layer keeps for its backward pass.
struct Kept {
  Normed first, second;
  Tensor query, key, value, probabilities, attended, wide, activated;
};

struct Loss {
  Tensor value, exponentials, reciprocal, targets;
};

void accumulate(const Parameter& weight, const Tensor& grad, const Tensor& input) {
  Tensor sum = weight.grad;
  at::addmm_out(sum, sum, grad.t(), input);
}

}  // namespace

struct PlainTraining::Impl {
  Impl(const runtime::Job& from, const runtime::SampleSource& source)
      : job(from), samples(source), heads(job.model.heads), head_size(job.model.head_size) {
    positions = job.split.sequence_length;
    together = job.split.microbatch_size;
    place = at::arange(positions, at::kLong);
    is_masked = (place.unsqueeze(1) - place.unsqueeze(0)).lt(0);
    take_all();
    std::vector<runtime::MatrixPart> matrices;
    for (const auto& parameter : bucket->parameters()) {
      if (!parameter->is_matrix()) continue;
      matrices.push_back({parameter->offset, parameter->value.numel()});
    }
    optimizer = std::make_unique<runtime::Optimizer>(
        runtime::OptimizerOptions{.kind = job.training.optimizer,
                                  .weight_decay = job.training.weight_decay},
        bucket->values(), std::move(matrices));
  }

  Taken matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
               double deviation = kInitialDeviation) {
    Taken taken = bucket->take(name + ".weight", runtime::Spread::Sharded, {rows, columns});
    fill(taken->value, name, deviation);
    return taken;
  }
  void fill(const Tensor& target, const std::string& name, double deviation) const {
    const runtime::Block block{.first_row = 0,
                               .rows = target.size(0),
                               .first_column = 0,
                               .columns = target.size(1),
                               .total_columns = target.size(1)};
    runtime::fill_normal(target, name, block, job.seed, deviation);
  }
  Taken vector(const std::string& name, std::int64_t size, double value) {
    Taken taken = bucket->take(name, runtime::Spread::Replicated, {size});
    taken->value.fill_(value);
    return taken;
  }

  void take_all() {
    const models::Model& model = job.model;
    const std::int64_t hidden = model.hidden;
    const std::int64_t vocab = models::padded_vocab(model, 1);
    const std::int64_t rows = model.max_positions > 0 ? model.max_positions : positions;
    const std::int64_t layer = 4 * hidden * hidden + 2 * hidden * model.ffn + 9 * hidden +
                               model.ffn;  // four of hidden in norms, five in biases
    bucket = std::make_unique<Bucket>(
        (2 * vocab + rows) * hidden + model.layers * layer + 2 * hidden, 1, DType::Fp32);
    words = matrix("words", vocab, hidden);
    position_rows = matrix("positions", rows, hidden);
    for (int i = 0; i < model.layers; ++i) {
      layers.push_back(take_layer("layers." + std::to_string(i) + "."));
    }
    final_norm = vector("final_norm.weight", hidden, 1);
    final_bias = vector("final_norm.bias", hidden, 0);
    head = matrix("head", vocab, hidden);
    for (const Taken& taken : {words, head}) {
      taken->value.narrow(0, model.vocab, vocab - model.vocab).zero_();
    }
    FORESAIL_EXPECT(bucket->is_full());
  }

  Layer take_layer(const std::string& prefix) {
    const std::int64_t hidden = job.model.hidden;
    const std::int64_t ffn = job.model.ffn;
    const double narrow = kInitialDeviation / std::sqrt(2.0 * job.model.layers);
    Layer layer;
    layer.norm1 = vector(prefix + "norm1.weight", hidden, 1);
    layer.norm1_bias = vector(prefix + "norm1.bias", hidden, 0);
    layer.qkv = bucket->take(prefix + "qkv.weight", runtime::Spread::Sharded, {3 * hidden, hidden});
    std::int64_t first = 0;
    for (const char* part : {"query", "key", "value"}) {
      fill(layer.qkv->value.narrow(0, first, hidden), prefix + part, kInitialDeviation);
      first += hidden;
    }
    layer.qkv_bias = vector(prefix + "qkv.bias", 3 * hidden, 0);
    layer.proj = matrix(prefix + "proj", hidden, hidden, narrow);
    layer.proj_bias = vector(prefix + "proj.bias", hidden, 0);
    layer.norm2 = vector(prefix + "norm2.weight", hidden, 1);
    layer.norm2_bias = vector(prefix + "norm2.bias", hidden, 0);
    layer.fc1 = matrix(prefix + "fc1", ffn, hidden);
    layer.fc1_bias = vector(prefix + "fc1.bias", ffn, 0);
    layer.fc2 = matrix(prefix + "fc2", hidden, ffn, narrow);
    layer.fc2_bias = vector(prefix + "fc2.bias", hidden, 0);
    return layer;
  }

  Tensor by_head(const Tensor& part) const {
    return part.view({positions, together, heads, head_size})
        .permute({1, 2, 0, 3})
        .reshape({together * heads, positions, head_size});
  }
  Tensor merge(const Tensor& parts) const {
    return parts.reshape({together, heads, positions, head_size})
        .permute({2, 0, 1, 3})
        .reshape({positions * together, heads * head_size});
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head_size)); }

  static Normed norm(const Tensor& input, const Taken& weight, const Taken& bias) {
    auto [output, mean, deviation] =
        at::native_layer_norm(input, {input.size(-1)}, weight->value, bias->value, kEpsilon);
    return {input, output, mean, deviation};
  }
  static Tensor norm_backward(const Tensor& grad, const Normed& kept, const Taken& weight,
                              const Taken& bias) {
    auto [grad_input, grad_weight, grad_bias] = at::native_layer_norm_backward(
        grad, kept.input, {kept.input.size(-1)}, kept.mean, kept.deviation, weight->value,
        bias->value, {true, true, true});
    weight->grad.add_(grad_weight);
    bias->grad.add_(grad_bias);
    return grad_input;
  }

  Tensor forward(const Layer& layer, const Tensor& input, Kept& kept) const {
    const std::int64_t hidden = job.model.hidden;
    kept.first = norm(input, layer.norm1, layer.norm1_bias);
    const Tensor qkv = at::addmm(layer.qkv_bias->value, kept.first.output, layer.qkv->value.t());
    kept.query = by_head(qkv.narrow(1, 0, hidden));
    kept.key = by_head(qkv.narrow(1, hidden, hidden));
    kept.value = by_head(qkv.narrow(1, 2 * hidden, hidden));
    Tensor scores = at::bmm(kept.query, kept.key.transpose(1, 2));
    scores.mul_(scale());
    scores.masked_fill_(is_masked, -std::numeric_limits<float>::infinity());
    kept.probabilities = at::softmax(scores, -1);
    kept.attended = merge(at::bmm(kept.probabilities, kept.value));
    Tensor middle = at::mm(kept.attended, layer.proj->value.t()) + input;
    middle.add_(layer.proj_bias->value);
    kept.second = norm(middle, layer.norm2, layer.norm2_bias);
    kept.wide = at::addmm(layer.fc1_bias->value, kept.second.output, layer.fc1->value.t());
    kept.activated = at::gelu(kept.wide, "tanh");
    Tensor output = at::mm(kept.activated, layer.fc2->value.t()) + middle;
    return output.add_(layer.fc2_bias->value);
  }

  /// Gives back what is no longer needed at once, as the autograd graph does.
  Tensor backward(const Layer& layer, const Tensor& grad, Kept kept) const {
    layer.fc2_bias->grad.add_(grad.sum(0));
    Tensor inner = at::mm(grad, layer.fc2->value);
    accumulate(*layer.fc2, grad, kept.activated);
    kept.activated.reset();
    inner = at::gelu_backward(inner, kept.wide, "tanh");
    kept.wide.reset();
    Tensor middle = at::mm(inner, layer.fc1->value);
    accumulate(*layer.fc1, inner, kept.second.output);
    layer.fc1_bias->grad.add_(inner.sum(0));
    inner.reset();
    middle = norm_backward(middle, kept.second, layer.norm2, layer.norm2_bias).add_(grad);
    kept.second = {};
    layer.proj_bias->grad.add_(middle.sum(0));
    Tensor attended = at::mm(middle, layer.proj->value);
    accumulate(*layer.proj, middle, kept.attended);
    kept.attended.reset();
    const Tensor grad_qkv = attention_backward(std::move(attended), kept);
    const Tensor grad_first = at::mm(grad_qkv, layer.qkv->value);
    accumulate(*layer.qkv, grad_qkv, kept.first.output);
    layer.qkv_bias->grad.add_(grad_qkv.sum(0));
    return norm_backward(grad_first, kept.first, layer.norm1, layer.norm1_bias).add_(middle);
  }

  Tensor attention_backward(Tensor grad_attended, Kept& kept) const {
    const Tensor grad = by_head(grad_attended);
    grad_attended.reset();
    Tensor scores = at::bmm(grad, std::exchange(kept.value, {}).transpose(1, 2));
    const Tensor value = at::bmm(kept.probabilities.transpose(1, 2), grad);
    scores =
        at::_softmax_backward_data(scores, std::exchange(kept.probabilities, {}), -1, at::kFloat)
            .mul_(scale());
    const Tensor query = at::bmm(scores, std::exchange(kept.key, {}));
    const Tensor key =
        at::bmm(std::exchange(kept.query, {}).transpose(1, 2), scores).transpose(1, 2);
    scores.reset();
    return at::cat({merge(query), merge(key), merge(value)}, 1);
  }

  Loss loss_of(Tensor logits, const Tensor& targets) const {
    const std::int64_t real = job.model.vocab;
    const std::int64_t padding = logits.size(1) - real;
    if (padding > 0) logits.narrow(1, real, padding).fill_(-1e30);
    logits.sub_(logits.amax(1).unsqueeze(1));
    const Tensor target = logits.gather(1, targets.unsqueeze(1)).squeeze(1);
    const Tensor exponentials = logits.exp_();
    const Tensor sum = exponentials.sum(1);
    return {(sum.to(at::kDouble).log_() - target).mean(), exponentials, sum.reciprocal(), targets};
  }

  double microbatch(const Tensor& tokens, const Tensor& targets, double weight) {
    Tensor x = at::index_select(words->value, 0, tokens);
    x.view({positions, together, x.size(1)})
        .add_(at::index_select(position_rows->value, 0, place).unsqueeze(1));
    std::vector<Kept> kept(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) x = forward(layers[i], x, kept[i]);
    const Normed last = norm(x, final_norm, final_bias);
    const Loss loss = loss_of(at::mm(last.output, head->value.t()), targets);
    const double value = loss.value.item<double>();

    const double each = weight / static_cast<double>(tokens.size(0));
    Tensor grad = loss.exponentials * (loss.reciprocal * each).unsqueeze(1);
    grad.scatter_add_(1, targets.unsqueeze(1), at::full({tokens.size(0), 1}, -each));
    const Tensor grad_last = at::mm(grad, head->value);
    accumulate(*head, grad, last.output);
    grad = norm_backward(grad_last, last, final_norm, final_bias);
    for (std::size_t i = layers.size(); i-- > 0;) {
      grad = backward(layers[i], grad, std::move(kept[i]));
    }
    position_rows->grad.index_add_(0, place, grad.view({positions, together, grad.size(1)}).sum(1));
    words->grad.index_add_(0, tokens, grad);
    return value;
  }

  /// [microbatches, positions + 1, samples] tokens of the step.
  Tensor load() const {
    const std::int64_t length = positions + 1;
    const std::int64_t batch = job.training.global_batch_size;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * length));
    for (std::int64_t i = 0; i < batch; ++i) {
      samples.read(step * batch + i, std::span(tokens).subspan(static_cast<std::size_t>(i * length),
                                                               static_cast<std::size_t>(length)));
    }
    return at::from_blob(tokens.data(), {batch / together, together, length}, at::kInt)
        .transpose(1, 2)
        .to(at::kLong);
  }

  Summary run_step() {
    const Tensor text = load();
    const std::int64_t microbatches = text.size(0);
    Summary summary;
    for (std::int64_t i = 0; i < microbatches; ++i) {
      const Tensor tokens = text[i].narrow(0, 0, positions).reshape({-1});
      const Tensor targets = text[i].narrow(0, 1, positions).reshape({-1});
      const auto weight = 1.0 / static_cast<double>(microbatches);
      summary.loss += microbatch(tokens, targets, weight) * weight;
    }
    double squared = 0;
    for (const auto& parameter : bucket->parameters()) {
      squared += runtime::squared_norm(parameter->grad.view({-1})).item<double>();
    }
    summary.gradient_norm = std::sqrt(squared);
    optimizer->step(bucket->grads(), runtime::clip_scale(job.training.clip, summary.gradient_norm),
                    program::learning_rate_at(job.training, step));
    bucket->grads().zero_();
    ++step;
    return summary;
  }

  const runtime::Job& job;
  const runtime::SampleSource& samples;
  std::int64_t heads, head_size, positions = 0, together = 0;
  Tensor place, is_masked;
  std::unique_ptr<Bucket> bucket;
  Taken words, position_rows, final_norm, final_bias, head;
  std::vector<Layer> layers;
  std::unique_ptr<runtime::Optimizer> optimizer;
  int step = 0;
};

PlainTraining::PlainTraining(const runtime::Job& job, const runtime::SampleSource& samples)
    : impl_(std::make_unique<Impl>(job, samples)) {}

PlainTraining::~PlainTraining() = default;

PlainTraining::Summary PlainTraining::run_step() {
  const at::AutoGradMode no_graph(false);
  return impl_->run_step();
}

}  // namespace foresail::bench
