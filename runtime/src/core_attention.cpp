#include "core_attention.h"

#include <cmath>

#include "attention_softmax.h"
#include "context_attention.h"
#include "flash_function.h"
#include "token_order.h"

namespace foresail::runtime {
namespace {

constexpr double kRotaryBase = 10000.0;

/// True where a query must not see the key: a later one, or one outside the window.
at::Tensor hidden_pairs(const models::Model& model, const at::Tensor& queries,
                        const at::Tensor& keys) {
  const at::Tensor distance = queries.unsqueeze(1) - keys.unsqueeze(0);
  const at::Tensor is_later = distance.lt(0);
  if (model.attention != models::Attention::SlidingWindow) return is_later;
  return is_later.logical_or(distance.ge(model.window));
}

/// Positions of the queries and keys of one block.
struct Tokens {
  at::Tensor queries, keys;
};

std::vector<Tokens> make_blocks(const models::Split& split, int cp_rank) {
  const at::Tensor own = token_positions(split, cp_rank);
  const at::Tensor all = token_positions_by_rank(split);
  if (split.cp == 1) return {{own, own}};
  if (split.context_parallel == models::ContextParallel::AllToAll) return {{all, all}};
  if (split.context_parallel == models::ContextParallel::AllGather &&
      !split.stack.flash_attention) {
    return {{own, all}};
  }
  std::vector<Tokens> blocks;
  for (int step = 0; step < split.cp; ++step) {
    const int from = (cp_rank + split.cp - step) % split.cp;
    blocks.push_back({own, token_positions(split, from)});
  }
  return blocks;
}

/// FlashMask::window.
std::optional<std::int64_t> plain_window(const models::Model& model, const models::Split& split) {
  if (split.cp > 1) return std::nullopt;  // tokens are not in the order of their positions
  return model.attention == models::Attention::SlidingWindow ? model.window : 0;
}

/// Of a sequence that is cut over ranks: saves for the backward pass, and answers with the output.
at::Tensor exchange_forward(AutogradContext* graph, const CoreAttention& layer,
                            const CoreAttention::Heads& own) {
  ContextResult result = context_forward(layer, layer.scope().context(), own);
  if (layer.is_recomputed()) {
    result.saved = {own.query, own.key, own.value};
  } else if (layer.scope().split->context_parallel == models::ContextParallel::Ring) {
    result.saved.push_back(result.output);
  }
  graph->save_for_backward(result.saved);
  ModulePointer<CoreAttention>::save(graph, &layer);
  return result.output;
}

CoreAttention::Heads exchange_backward(AutogradContext* graph, const CoreAttention& layer,
                                       const at::Tensor& grad) {
  OpContext& op = layer.scope().context();
  ContextResult result;
  result.saved = graph->get_saved_variables();
  if (layer.is_recomputed()) {
    op.set_phase(OpContext::Phase::Recompute);
    const CoreAttention::Heads own{result.saved[0], result.saved[1], result.saved[2]};
    result = context_forward(layer, op, own);
    op.set_phase(OpContext::Phase::First);
  } else if (layer.scope().split->context_parallel == models::ContextParallel::Ring) {
    result.output = result.saved.back();
    result.saved.pop_back();
  }
  return context_backward(layer, op, result, grad);
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
    if (layer->scope().split->cp > 1) {
      if (!is_rotary) heads = layer->split(qkv);
      return exchange_forward(graph, *layer, heads);
    }
    const Probabilities probabilities = layer->attend(op, [&] {
      if (!is_rotary) heads = layer->split(qkv);
      return heads;
    });
    const at::Tensor context = layer->weigh(op, probabilities.weights, heads.value);
    variable_list kept{heads.query, heads.key, heads.value};
    if (!layer->is_recomputed()) append(kept, probabilities);
    graph->save_for_backward(kept);
    ModulePointer<CoreAttention>::save(graph, layer);
    return context;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const CoreAttention& layer = ModulePointer<CoreAttention>::load(graph);
    OpContext& op = layer.scope().context();
    if (layer.scope().split->cp > 1) {
      CoreAttention::Heads grad_heads = exchange_backward(graph, layer, grads[0]);
      return {rotate_back(layer, op, grad_heads), at::Tensor()};
    }
    const variable_list saved = graph->get_saved_variables();
    Probabilities probabilities;
    if (layer.is_recomputed()) {
      op.set_phase(OpContext::Phase::Recompute);
      probabilities = layer.attend(op, [&] {
        return CoreAttention::Heads{saved[0], saved[1], saved[2]};
      });
      layer.weigh(op, probabilities.weights, saved[2]);
      op.set_phase(OpContext::Phase::First);
    } else {
      probabilities = probabilities_in(layer, saved, 3, 0);
    }
    at::Tensor grad;
    const at::Tensor grad_weights = op.compute("attention.context.dgrad_probabilities", [&] {
      grad = layer.split_output(grads[0]);
      return batched_product(grad, layer.repeated(saved[2]).transpose(1, 2));
    });
    CoreAttention::Heads heads;
    heads.value = op.compute("attention.context.dgrad_values", [&] {
      return batched_product(probabilities.weights.transpose(1, 2), grad);
    });
    const at::Tensor grad_scores =
        scores_gradient(layer, op, {}, grad_weights, probabilities, at::Tensor());
    heads.query = op.compute("attention.scores.dgrad_query", [&] {
      return batched_product(grad_scores, layer.repeated(saved[1]));
    });
    const bool is_rotary = layer.scope().model->positions == models::Positions::Rotary;
    at::Tensor result;
    op.compute("attention.scores.dgrad_key", [&] {
      heads.key = batched_product(saved[0].transpose(1, 2), grad_scores).transpose(1, 2);
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

  /// Gradients by head, turned back if queries and keys were turned, as the gradient of `qkv`.
  static at::Tensor rotate_back(const CoreAttention& layer, OpContext& op,
                                CoreAttention::Heads& heads) {
    if (layer.scope().model->positions != models::Positions::Rotary) {
      return layer.merge_gradients(heads);
    }
    return op.compute("rope.backward", [&] {
      layer.rotate(heads.query, -1);
      layer.rotate(heads.key, -1);
      return layer.merge_gradients(heads);
    });
  }
};

}  // namespace

AttentionTables make_attention_tables(const models::Model& model, const models::Split& split,
                                      int cp_rank, at::Device device) {
  AttentionTables tables;
  const at::Tensor positions = token_positions(split, cp_rank);
  tables.positions = positions.to(device);
  for (const auto& [queries, keys] : make_blocks(split, cp_rank)) {
    const at::Tensor mask = hidden_pairs(model, queries, keys);
    if (model.dropout) tables.pairs.push_back({queries.to(device), {keys, device}});
    if (split.stack.flash_attention) {
      tables.flash_masks.push_back({mask.to(device), MaskTiles(mask), plain_window(model, split)});
    } else {
      tables.is_masked.push_back(mask.to(device));
    }
  }
  if (model.positions != models::Positions::Rotary) return tables;
  const at::Tensor pair = at::arange(0, model.head_size, 2, at::kDouble) / model.head_size;
  const at::Tensor frequency = at::pow(kRotaryBase, -pair);
  const at::Tensor angle = at::outer(positions.to(at::kDouble), frequency);
  tables.cosine = angle.cos().to(at::kFloat).to(device);
  tables.sine = angle.sin().to(at::kFloat).to(device);
  return tables;
}

CoreAttention::CoreAttention(const StageScope& scope, int index) : scope_(scope), index_(index) {
  const models::Model& model = *scope.model;
  const models::Split& split = *scope.split;
  heads_ = model.heads / split.tp;
  kv_heads_ = model.kv_heads / split.tp;
  head_size_ = model.head_size;
  samples_ = split.microbatch_size;
  positions_ = split.sequence_length / split.cp;
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

at::Tensor CoreAttention::sum_repeats(const at::Tensor& grad) const {
  if (kv_heads_ == heads_) return grad;
  const std::int64_t repeats = heads_ / kv_heads_;
  const at::Tensor wide = widened(grad);
  return rounded(wide.reshape({grad.size(0) / repeats, repeats, grad.size(1), grad.size(2)}).sum(1),
                 grad);
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
  const auto shared = [&](const at::Tensor& grad) {
    return merge(grad.size(0) == samples_ * kv_heads_ ? grad : sum_repeats(grad));
  };
  return at::cat({merge(grads.query), shared(grads.key), shared(grads.value)}, 1);
}

bool CoreAttention::is_recomputed() const {
  return scope_.split->recompute == models::Recompute::Selective;
}

Probabilities CoreAttention::attend(OpContext& op,
                                    const std::function<Heads()>& split_heads) const {
  const at::Tensor scores = op.compute("attention.scores", [&] {
    const Heads heads = split_heads();
    return batched_product(heads.query, repeated(heads.key).transpose(1, 2));
  });
  return softmax_of(*this, op, {}, scores);
}

at::Tensor CoreAttention::weigh(OpContext& op, const at::Tensor& weights,
                                const at::Tensor& value) const {
  return op.compute("attention.context",
                    [&] { return merge(batched_product(weights, repeated(value))); });
}

/// Heads that all-to-all has brought here are this rank's part of those of its place in tp.
AttentionDropout CoreAttention::dropout(int block) const {
  const models::Split& split = *scope_.split;
  const bool trades = split.cp > 1 && split.context_parallel == models::ContextParallel::AllToAll;
  const std::int64_t heads = trades ? heads_ / split.cp : heads_;
  return {.now = scope_.drawing,
          .pairs = &scope_.tables.pairs.at(static_cast<std::size_t>(block)),
          .layer = index_,
          .samples = samples_,
          .first_head = scope_.tp_rank * heads_ + (trades ? scope_.cp_rank * heads : 0),
          .heads = heads};
}

double CoreAttention::scale() const {
  return 1.0 / std::sqrt(static_cast<double>(head_size_));
}

void CoreAttention::rotate(at::Tensor& by_head, double direction) const {
  const std::vector<at::Tensor> halves = widened(by_head).chunk(2, -1);
  const at::Tensor& cosine = scope_.tables.cosine;
  const at::Tensor sine = scope_.tables.sine * direction;
  const at::Tensor turned =
      at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
  by_head = rounded(turned, by_head);
}

at::Tensor CoreAttention::forward(const at::Tensor& qkv) {
  if (scope_.split->stack.flash_attention) return flash_attend(*this, qkv);
  return AttentionFunction::apply(qkv, static_cast<const CoreAttention*>(this));
}

}  // namespace foresail::runtime
