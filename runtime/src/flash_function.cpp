#include "flash_function.h"

#include "context_exchange.h"
#include "flash_attention.h"

namespace foresail::runtime {
namespace {

/// What the forward pass leaves behind: query, key and value as they were attended to, the output
/// by head, the sums of the softmax, and what a device's kernel keeps.
constexpr std::size_t kSavedAlways = 5;

std::int64_t samples_of(const CoreAttention& layer) {
  return layer.scope().split->microbatch_size;
}

/// [samples * heads, positions, size] -> [samples, heads, positions, size].
at::Tensor by_sample(const CoreAttention& layer, const at::Tensor& by_head) {
  return by_head.view({samples_of(layer), -1, by_head.size(1), by_head.size(2)});
}

/// And back, in one piece.
at::Tensor by_head(const at::Tensor& by_sample) {
  return by_sample.reshape({-1, by_sample.size(2), by_sample.size(3)});
}

/// [samples, heads, positions, size] -> [tokens, features]; a view of flash_forward's output.
at::Tensor features(const at::Tensor& by_sample) {
  return by_sample.permute({2, 0, 1, 3})
      .reshape({by_sample.size(2) * by_sample.size(0), by_sample.size(1) * by_sample.size(3)});
}

/// `count` heads of columns of `tensor` [tokens, features] from `first` on, as a view.
at::Tensor heads_in(const CoreAttention& layer, const at::Tensor& tensor, std::int64_t first,
                    std::int64_t count) {
  const std::int64_t samples = samples_of(layer);
  const std::int64_t size = layer.scope().model->head_size;
  return tensor.narrow(1, first * size, count * size)
      .view({tensor.size(0) / samples, samples, count, size})
      .permute({1, 2, 0, 3});
}

/// Queries, keys and values of this rank where they lie in `tensor` [tokens, features].
Heads views_of(const CoreAttention& layer, const at::Tensor& tensor) {
  const models::Model& model = *layer.scope().model;
  const int tp = layer.scope().split->tp;
  const std::int64_t heads = model.heads / tp, key_heads = model.kv_heads / tp;
  return {heads_in(layer, tensor, 0, heads), heads_in(layer, tensor, heads, key_heads),
          heads_in(layer, tensor, heads + key_heads, key_heads)};
}

FlashBlock block_of(const CoreAttention& layer, const Heads& heads, int step) {
  FlashBlock block{heads.query, heads.key, heads.value,
                   &layer.scope().tables.flash_masks.at(static_cast<std::size_t>(step)),
                   layer.scale()};
  if (layer.scope().model->dropout) block.dropout = layer.dropout(step);
  return block;
}

/// A block with the keys of a message from another rank; `own` by head.
FlashBlock block_of(const CoreAttention& layer, const Heads& own, const at::Tensor& message,
                    int step) {
  Heads heads{own.query, {}, {}};
  unpack(message, heads, own.key);
  return block_of(
      layer,
      {by_sample(layer, heads.query), by_sample(layer, heads.key), by_sample(layer, heads.value)},
      step);
}

at::TensorOptions wide(const at::Tensor& like) {
  return like.options().dtype(at::kFloat);
}

at::Tensor wide_zeros(const at::Tensor& like) {
  return at::zeros(like.sizes(), wide(like));
}

/// Those of keys and values lie in `message`, zeros as pack() would have laid them out.
FlashGradients gradients_in(const CoreAttention& layer, const at::Tensor& message,
                            const at::Tensor& query, const Heads& own) {
  Heads parts;
  unpack(message, parts, own.key);
  return {query, by_sample(layer, parts.key), by_sample(layer, parts.value)};
}

// ---- Forward: `own` by head; the output's rows are the own tokens. ----

struct Forward {
  Heads heads;  ///< as they were attended to, [samples, heads, positions, size]
  FlashOutput flash;
  at::Tensor context;  ///< [tokens, features]
};

Forward whole_forward(const CoreAttention& layer, OpContext& op, const Heads& heads) {
  Forward made;
  made.heads = heads;
  made.flash = op.compute("attention", [&] {
    return flash_forward(block_of(layer, heads, 0), heads.query.scalar_type());
  });
  made.context = features(made.flash.output);
  return made;
}

Heads sampled(const CoreAttention& layer, const Heads& own) {
  return {by_sample(layer, own.query), by_sample(layer, own.key), by_sample(layer, own.value)};
}

/// `context` and what is kept of the merged blocks, in the format of the queries.
Forward merged(const CoreAttention& layer, const Heads& own, std::vector<FlashOutput>& blocks) {
  Forward made;
  made.heads = sampled(layer, own);
  made.flash = merge_outputs(blocks);
  made.flash.output = rounded(made.flash.output, own.query);
  made.context = features(made.flash.output);
  return made;
}

/// Keys and values of all ranks, whose gather runs beside the block of the own ones.
class GatheredKeys {
 public:
  GatheredKeys(const CoreAttention& layer, OpContext& op, std::string_view name, const Heads& own)
      : ranks_(ranks_of(layer)),
        rank_(op.group_rank("cp")),
        own_(pack(own.key, own.value).unsqueeze(0)),
        all_(at::empty({ranks_, own_.size(1)}, own_.options())),
        gather_(op.start_all_gather(name, own_, all_)) {}

  /// Whose keys come at `step`: the own ones first.
  int source(int step) const { return (rank_ + ranks_ - step) % ranks_; }
  /// Waits for the gather where the own ones do not do.
  at::Tensor message(int step) {
    if (step == 1) gather_.wait();
    return step == 0 ? own_[0] : all_[source(step)];
  }

 private:
  int ranks_, rank_;
  at::Tensor own_, all_;
  Pending gather_;
};

Forward gathered_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  GatheredKeys keys(layer, op, "cp.gather_kv", own);
  return op.compute("attention", [&] {
    std::vector<FlashOutput> blocks;
    for (int step = 0; step < ranks_of(layer); ++step) {
      blocks.push_back(flash_forward(block_of(layer, own, keys.message(step), step), at::kFloat));
    }
    return merged(layer, own, blocks);
  });
}

Forward ring_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  std::vector<FlashOutput> blocks;
  walk_ring(layer, op, "cp.exchange_kv", own, [&](int step, const at::Tensor& message) {
    blocks.push_back(op.compute("attention" + at_step(step), [&] {
      return flash_forward(block_of(layer, own, message, step), at::kFloat);
    }));
  });
  return op.compute("attention.merge", [&] { return merged(layer, own, blocks); });
}

Forward traded_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  const Heads traded = trade_heads(layer, op, own);
  Forward made = whole_forward(layer, op, sampled(layer, traded));
  made.context = trade_output(layer, op, by_head(made.flash.output), own);
  return made;
}

Forward context_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  return by_kind(
      layer, [&] { return gathered_forward(layer, op, own); },
      [&] { return ring_forward(layer, op, own); }, [&] { return traded_forward(layer, op, own); });
}

// ---- Backward: gradients of the own queries, keys and values, by head. ----

struct Backward {
  Heads heads;  ///< as saved, [samples, heads, positions, size]
  FlashOutput forward;
  at::Tensor gradient;  ///< of the output, [tokens, features]
};

at::Tensor gradient_by_sample(const CoreAttention& layer, const Backward& of) {
  const models::Model& model = *layer.scope().model;
  return heads_in(layer, of.gradient, 0, model.heads / layer.scope().split->tp);
}

Heads by_heads(const Heads& heads) {
  return {by_head(heads.query), by_head(heads.key), by_head(heads.value)};
}

Heads gathered_backward(const CoreAttention& layer, OpContext& op, const Backward& of) {
  const Heads own = by_heads(of.heads);
  GatheredKeys keys(layer, op, "cp.regather_kv", own);
  const at::Tensor parts =
      at::zeros({ranks_of(layer), own.key.numel() + own.value.numel()}, wide(own.key));
  Heads grads;
  op.compute("attention.backward", [&] {
    const FlashRows rows = flash_rows(gradient_by_sample(layer, of), of.forward);
    const at::Tensor query = wide_zeros(of.heads.query);
    for (int step = 0; step < ranks_of(layer); ++step) {
      const FlashBlock block = block_of(layer, own, keys.message(step), step);
      add_flash_gradients(block, rows, gradients_in(layer, parts[keys.source(step)], query, own));
    }
    grads.query = by_head(rounded(query, own.query));
  });
  unpack(op.reduce_scatter("cp.scatter_kv", rounded(parts, own.key)).view(-1), grads, own.key);
  return grads;
}

Heads ring_backward(const CoreAttention& layer, OpContext& op, const Backward& of) {
  const Heads own = by_heads(of.heads);
  FlashRows rows;
  const at::Tensor query = wide_zeros(of.heads.query);
  HomewardGradients homeward(op);
  walk_ring(layer, op, "cp.reexchange_kv", own, [&](int step, const at::Tensor& message) {
    homeward.send(step, op.compute("attention.backward" + at_step(step), [&] {
      if (step == 0) rows = flash_rows(gradient_by_sample(layer, of), of.forward);
      const at::Tensor part = wide_zeros(message);
      add_flash_gradients(block_of(layer, own, message, step), rows,
                          gradients_in(layer, part, query, own));
      return rounded(part, own.key);
    }));
  });
  Heads result{by_head(rounded(query, own.query)), {}, {}};
  unpack(homeward.wait(), result, own.key);
  return result;
}

Heads traded_backward(const CoreAttention& layer, OpContext& op, const Backward& of) {
  const at::Tensor own = by_head(gradient_by_sample(layer, of));
  const at::Tensor whole = trade_output_gradient(layer, op, own);
  const Heads grads = op.compute("attention.backward", [&] {
    const FlashGradients sums{wide_zeros(of.heads.query), wide_zeros(of.heads.key),
                              wide_zeros(of.heads.value)};
    add_flash_gradients(block_of(layer, of.heads, 0),
                        flash_rows(by_sample(layer, whole), of.forward), sums);
    return by_heads({rounded(sums.query, own), rounded(sums.key, own), rounded(sums.value, own)});
  });
  return trade_gradients_back(layer, op, grads);
}

Heads context_backward(const CoreAttention& layer, OpContext& op, const Backward& of) {
  return by_kind(
      layer, [&] { return gathered_backward(layer, op, of); },
      [&] { return ring_backward(layer, op, of); }, [&] { return traded_backward(layer, op, of); });
}

/// Without context parallelism: gradients are written where they belong, of rotary positions still
/// turned. fp32, [tokens, features].
at::Tensor whole_backward(const CoreAttention& layer, OpContext& op, const Backward& of,
                          std::int64_t features) {
  const at::Tensor result = at::zeros({of.gradient.size(0), features}, wide(of.gradient));
  op.compute("attention.backward", [&] {
    const Heads sums = views_of(layer, result);
    add_flash_gradients(block_of(layer, of.heads, 0),
                        flash_rows(gradient_by_sample(layer, of), of.forward),
                        {sums.query, sums.key, sums.value});
  });
  return result;
}

/// Gradients by head, in the layout of the layer's input.
at::Tensor placed(const CoreAttention& layer, const Heads& grads, std::int64_t tokens,
                  std::int64_t features) {
  const at::Tensor result = at::empty({tokens, features}, grads.query.options());
  const Heads places = views_of(layer, result);
  at::Tensor(places.query).copy_(by_sample(layer, grads.query));
  at::Tensor(places.key).copy_(by_sample(layer, grads.key));
  at::Tensor(places.value).copy_(by_sample(layer, grads.value));
  return result;
}

bool is_rotary(const CoreAttention& layer) {
  return layer.scope().model->positions == models::Positions::Rotary;
}

struct FlashFunction : torch::autograd::Function<FlashFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor qkv, const CoreAttention* layer) {
    OpContext& op = layer->scope().context();
    Heads own;
    if (is_rotary(*layer)) {
      op.compute("rope", [&] {
        own = layer->split(qkv);
        layer->rotate(own.query, 1);
        layer->rotate(own.key, 1);
      });
    }
    Forward made;
    if (layer->scope().split->cp > 1) {
      if (!own.query.defined()) own = layer->split(qkv);
      made = context_forward(*layer, op, own);
    } else {
      const bool has_own = own.query.defined();
      made = whole_forward(*layer, op, has_own ? sampled(*layer, own) : views_of(*layer, qkv));
    }
    variable_list saved{made.heads.query, made.heads.key, made.heads.value, made.flash.output,
                        made.flash.log_sum};
    FORESAIL_EXPECT(saved.size() == kSavedAlways);
    for (const at::Tensor& state : made.flash.device_state) saved.push_back(state);
    graph->save_for_backward(saved);
    graph->saved_data["features"] = qkv.size(1);
    ModulePointer<CoreAttention>::save(graph, layer);
    return made.context;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const CoreAttention& layer = ModulePointer<CoreAttention>::load(graph);
    OpContext& op = layer.scope().context();
    const variable_list saved = graph->get_saved_variables();
    Backward of{{saved[0], saved[1], saved[2]}, {saved[3], saved[4], {}}, grads[0]};
    const std::int64_t features = graph->saved_data["features"].toInt();
    of.forward.device_state.assign(saved.begin() + kSavedAlways, saved.end());
    if (layer.scope().split->cp > 1) {
      Heads own = context_backward(layer, op, of);
      const auto place = [&] { return placed(layer, own, grads[0].size(0), features); };
      if (!is_rotary(layer)) return {place(), at::Tensor()};
      return {op.compute("rope.backward",
                         [&] {
                           layer.rotate(own.query, -1);
                           layer.rotate(own.key, -1);
                           return place();
                         }),
              at::Tensor()};
    }
    const at::Tensor result = whole_backward(layer, op, of, features);
    if (is_rotary(layer)) {
      op.compute("rope.backward", [&] {
        const Heads turned = views_of(layer, result);
        for (const at::Tensor& part : {turned.query, turned.key}) {
          at::Tensor straight = part;
          layer.rotate(straight, -1);
          at::Tensor(part).copy_(straight);
        }
      });
    }
    return {rounded(result, grads[0]), at::Tensor()};
  }
};

}  // namespace

at::Tensor flash_attend(const CoreAttention& layer, const at::Tensor& qkv) {
  return FlashFunction::apply(qkv, &layer);
}

}  // namespace foresail::runtime
