#include "core_attention.h"

#include <cmath>
#include <limits>

namespace foresail::runtime {
namespace {

constexpr double kRotaryBase = 10000.0;

/// Every copy of a repeated head contributed; their gradients add up in the head they share.
at::Tensor sum_repeats(const at::Tensor& grad, std::int64_t samples, std::int64_t kv_heads) {
  const std::int64_t repeats = grad.size(0) / (samples * kv_heads);
  if (repeats == 1) return grad;
  return grad.reshape({samples * kv_heads, repeats, grad.size(1), grad.size(2)}).sum(1);
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor qkv, const CoreAttention* layer) {
    OpContext& op = layer->scope().context();
    CoreAttention::Heads heads;
    const bool is_rotary = layer->scope().model->positions == models::Positions::Rotary;
    if (is_rotary) {
      op.compute("rope", [&] {
        heads = layer->split(qkv);
        layer->rotate(heads.query, 1);
        layer->rotate(heads.key, 1);
      });
    }
    const at::Tensor probabilities = layer->attend(op, [&] {
      if (!is_rotary) heads = layer->split(qkv);
      return heads;
    });
    const at::Tensor context = layer->weigh(op, probabilities, heads.value);
    variable_list kept{heads.query, heads.key, heads.value};
    if (!layer->is_recomputed()) kept.push_back(probabilities);
    graph->save_for_backward(kept);
    ModulePointer<CoreAttention>::save(graph, layer);
    return context;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const CoreAttention& layer = ModulePointer<CoreAttention>::load(graph);
    OpContext& op = layer.scope().context();
    const variable_list saved = graph->get_saved_variables();
    at::Tensor probabilities;
    if (layer.is_recomputed()) {
      op.set_phase(OpContext::Phase::Recompute);
      probabilities = layer.attend(op, [&] {
        return CoreAttention::Heads{saved[0], saved[1], saved[2]};
      });
      layer.weigh(op, probabilities, saved[2]);
      op.set_phase(OpContext::Phase::First);
    } else {
      probabilities = saved[3];
    }
    at::Tensor grad;
    const at::Tensor grad_probabilities = op.compute("attention.context.dgrad_probabilities", [&] {
      grad = layer.split_output(grads[0]);
      return at::bmm(grad, layer.repeated(saved[2]).transpose(1, 2));
    });
    CoreAttention::Heads heads;
    heads.value = op.compute("attention.context.dgrad_values",
                             [&] { return at::bmm(probabilities.transpose(1, 2), grad); });
    const at::Tensor grad_scores = op.compute("softmax.backward", [&] {
      return layer.softmax_backward(grad_probabilities, probabilities);
    });
    heads.query = op.compute("attention.scores.dgrad_query",
                             [&] { return at::bmm(grad_scores, layer.repeated(saved[1])); });
    const bool is_rotary = layer.scope().model->positions == models::Positions::Rotary;
    at::Tensor result;
    op.compute("attention.scores.dgrad_key", [&] {
      heads.key = at::bmm(saved[0].transpose(1, 2), grad_scores).transpose(1, 2);
      if (!is_rotary) result = layer.merge_gradients(heads);
    });
    if (is_rotary) {
      op.compute("rope.backward", [&] {
        layer.rotate(heads.query, -1);
        layer.rotate(heads.key, -1);
        result = layer.merge_gradients(heads);
      });
    }
    return {result, at::Tensor()};
  }
};

}  // namespace

AttentionTables make_attention_tables(const models::Model& model, std::int64_t positions) {
  AttentionTables tables;
  tables.is_masked = at::ones({positions, positions}, at::kBool).triu(1);
  if (model.attention == models::Attention::SlidingWindow) {
    tables.is_masked.logical_or_(at::ones({positions, positions}, at::kBool).tril(-model.window));
  }
  if (model.positions != models::Positions::Rotary) return tables;
  const at::Tensor pair = at::arange(0, model.head_size, 2, at::kDouble) / model.head_size;
  const at::Tensor frequency = at::pow(kRotaryBase, -pair);
  const at::Tensor angle = at::outer(at::arange(positions, at::kDouble), frequency);
  tables.cosine = angle.cos().to(at::kFloat);
  tables.sine = angle.sin().to(at::kFloat);
  return tables;
}

CoreAttention::CoreAttention(const StageScope& scope) : scope_(scope) {
  const models::Model& model = *scope.model;
  const models::Split& split = *scope.split;
  heads_ = model.heads / split.tp;
  kv_heads_ = model.kv_heads / split.tp;
  head_size_ = model.head_size;
  samples_ = split.microbatch_size;
  positions_ = split.sequence_length;
}

at::Tensor CoreAttention::by_head(const at::Tensor& part, std::int64_t heads) const {
  return part.view({positions_, samples_, heads, head_size_})
      .permute({1, 2, 0, 3})
      .reshape({samples_ * heads, positions_, head_size_});
}

CoreAttention::Heads CoreAttention::split(const at::Tensor& qkv) const {
  const std::int64_t query = heads_ * head_size_;
  const std::int64_t shared = kv_heads_ * head_size_;
  Heads heads;
  heads.query = by_head(qkv.narrow(1, 0, query), heads_);
  heads.key = by_head(qkv.narrow(1, query, shared), kv_heads_);
  heads.value = by_head(qkv.narrow(1, query + shared, shared), kv_heads_);
  return heads;
}

at::Tensor CoreAttention::repeated(const at::Tensor& shared) const {
  return kv_heads_ == heads_ ? shared : shared.repeat_interleave(heads_ / kv_heads_, 0);
}

at::Tensor CoreAttention::split_output(const at::Tensor& output) const {
  return by_head(output, heads_);
}

at::Tensor CoreAttention::merge(const at::Tensor& by_head) const {
  const std::int64_t heads = by_head.size(0) / samples_;
  return by_head.reshape({samples_, heads, positions_, head_size_})
      .permute({2, 0, 1, 3})
      .reshape({positions_ * samples_, heads * head_size_});
}

at::Tensor CoreAttention::merge_gradients(const Heads& grads) const {
  return at::cat({merge(grads.query), merge(sum_repeats(grads.key, samples_, kv_heads_)),
                  merge(sum_repeats(grads.value, samples_, kv_heads_))},
                 1);
}

bool CoreAttention::is_recomputed() const {
  return scope_.split->recompute == models::Recompute::Selective;
}

at::Tensor CoreAttention::attend(OpContext& op, const std::function<Heads()>& split_heads) const {
  const at::Tensor scores = op.compute("attention.scores", [&] {
    const Heads heads = split_heads();
    return at::bmm(heads.query, repeated(heads.key).transpose(1, 2));
  });
  return op.compute("softmax", [&] { return softmax(scores); });
}

at::Tensor CoreAttention::weigh(OpContext& op, const at::Tensor& probabilities,
                                const at::Tensor& value) const {
  return op.compute("attention.context",
                    [&] { return merge(at::bmm(probabilities, repeated(value))); });
}

at::Tensor CoreAttention::softmax(at::Tensor scores) const {
  scores.mul_(1.0 / std::sqrt(static_cast<double>(head_size_)));
  scores.masked_fill_(scope_.tables.is_masked, -std::numeric_limits<float>::infinity());
  return at::softmax(scores, -1);
}

at::Tensor CoreAttention::softmax_backward(const at::Tensor& grad,
                                           const at::Tensor& probabilities) const {
  return at::_softmax_backward_data(grad, probabilities, -1, at::kFloat)
      .mul_(1.0 / std::sqrt(static_cast<double>(head_size_)));
}

void CoreAttention::rotate(at::Tensor& by_head, double direction) const {
  const std::vector<at::Tensor> halves = by_head.chunk(2, -1);
  const at::Tensor& cosine = scope_.tables.cosine;
  const at::Tensor sine = scope_.tables.sine * direction;
  by_head =
      at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
}

at::Tensor CoreAttention::forward(const at::Tensor& qkv) {
  return AttentionFunction::apply(qkv, static_cast<const CoreAttention*>(this));
}

}  // namespace foresail::runtime
