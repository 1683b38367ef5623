#include "embedding.h"

namespace foresail::runtime {
namespace {

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  /// `anchor` only makes the output require a gradient.
  static at::Tensor forward(AutogradContext* graph, at::Tensor anchor, at::Tensor tokens,
                            const EmbeddingLayer* layer) {
    OpContext& op = layer->scope().context();
    FORESAIL_EXPECT(anchor.requires_grad());
    variable_list saved{tokens};
    ModulePointer<EmbeddingLayer>::save(graph, layer);
    at::Tensor rows = op.compute("embedding", [&] { return layer->look_up(tokens); });
    if (layer->scope().has_sequence_shards()) {
      rows = op.reduce_scatter("tp.reduce_embedding", rows);
    } else if (op.tp_size() > 1) {
      op.all_reduce("tp.reduce_embedding", rows, Reduction::Sum);
    }
    if (layer->options().positions != nullptr) {
      op.compute("embedding.positions", [&] { layer->add_positions(rows); });
    }
    if (layer->scope().model->dropout) {
      op.compute("embedding.dropout", [&] {
        saved.push_back(layer->scope().draw_hidden_dropped({DropoutSite::Embedding}));
        rows = without_dropped(rows, saved.back());
      });
    }
    graph->save_for_backward(saved);
    return rows;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const EmbeddingLayer& layer = ModulePointer<EmbeddingLayer>::load(graph);
    const variable_list saved = graph->get_saved_variables();
    const at::Tensor tokens = saved[0];
    at::Tensor own = grads[0].contiguous();
    if (saved.size() > 1) {
      layer.scope().context().compute("embedding.dropout.backward",
                                      [&] { own = without_dropped(own, saved[1]); });
    }
    layer.scope().on_weights([&layer, tokens, own](OpContext& op) {
      if (layer.options().positions != nullptr) {
        op.compute("embedding.positions.backward", [&] { layer.accumulate_positions(own); });
      }
      const at::Tensor grad = layer.scope().has_sequence_shards()
                                  ? op.all_gather("tp.gather_grad_embedding", own)
                                  : own;
      op.compute("embedding.backward", [&] { layer.accumulate_words(tokens, grad); });
    });
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

EmbeddingLayer::EmbeddingLayer(const StageScope& scope, const Options& options)
    : scope_(scope),
      options_(options),
      anchor_(at::zeros({1}, at::device(scope.device).dtype(at::kFloat)).requires_grad_()) {
  register_buffer("words", options.words->value);
  if (options.positions != nullptr) register_buffer("positions", options.positions->value);
}

at::Tensor EmbeddingLayer::forward(const at::Tensor& tokens) {
  return EmbeddingFunction::apply(anchor_, tokens, static_cast<const EmbeddingLayer*>(this));
}

EmbeddingLayer::Local EmbeddingLayer::localise(const at::Tensor& tokens) const {
  const std::int64_t rows = options_.words->value.size(0);
  const at::Tensor shifted = tokens - scope_.tp_rank * rows;
  const at::Tensor is_own = shifted.ge(0).logical_and_(shifted.lt(rows));
  return {shifted.masked_fill(is_own.logical_not(), 0), is_own};
}

at::Tensor EmbeddingLayer::look_up(const at::Tensor& tokens) const {
  const Local local = localise(tokens);
  const at::Tensor rows = at::index_select(options_.words->value, 0, local.index);
  return scope_.split->tp == 1 ? rows : rows * local.is_own.to(rows.scalar_type()).unsqueeze(1);
}

void EmbeddingLayer::accumulate_words(const at::Tensor& tokens, const at::Tensor& grad) const {
  const Local local = localise(tokens);
  const at::Tensor wide = widened(grad);
  const at::Tensor own =
      scope_.split->tp == 1 ? wide : wide * local.is_own.to(at::kFloat).unsqueeze(1);
  options_.words->grad.index_add_(0, local.index, own);
}

void EmbeddingLayer::add_positions(at::Tensor& rows) const {
  const std::int64_t samples = scope_.split->microbatch_size;
  const std::int64_t positions = rows.size(0) / samples;
  rows.view({positions, samples, rows.size(1)})
      .add_(at::index_select(options_.positions->value, 0, scope_.shard_positions()).unsqueeze(1));
}

void EmbeddingLayer::accumulate_positions(const at::Tensor& grad) const {
  const std::int64_t samples = scope_.split->microbatch_size;
  const std::int64_t positions = grad.size(0) / samples;
  options_.positions->grad.index_add_(
      0, scope_.shard_positions(), widened(grad).view({positions, samples, grad.size(1)}).sum(1));
}

}  // namespace foresail::runtime
