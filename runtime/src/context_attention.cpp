#include "context_attention.h"

#include <string>

#include "attention_softmax.h"
#include "context_exchange.h"

namespace foresail::runtime {
namespace {

/// The gradients of one block of keys, and where they go.
struct Block {
  SoftmaxBlock softmax;
  Heads heads;
  Probabilities probabilities;
  at::Tensor row_sums;  ///< of gradient * output; undefined: of this block alone
};

Heads block_backward(const CoreAttention& layer, OpContext& op, const Block& block,
                     const at::Tensor& grad) {
  const Heads& heads = block.heads;
  const std::string& suffix = block.softmax.suffix;
  const at::Tensor grad_weights = op.compute("attention.context.dgrad_probabilities" + suffix, [&] {
    return batched_product(grad, layer.repeated(heads.value).transpose(1, 2));
  });
  Heads grads;
  grads.value = op.compute("attention.context.dgrad_values" + suffix, [&] {
    return layer.sum_repeats(batched_product(block.probabilities.weights.transpose(1, 2), grad));
  });
  const at::Tensor grad_scores =
      scores_gradient(layer, op, block.softmax, grad_weights, block.probabilities, block.row_sums);
  grads.query = op.compute("attention.scores.dgrad_query" + suffix,
                           [&] { return batched_product(grad_scores, layer.repeated(heads.key)); });
  grads.key = op.compute("attention.scores.dgrad_key" + suffix, [&] {
    return layer.sum_repeats(
        batched_product(heads.query.transpose(1, 2), grad_scores).transpose(1, 2));
  });
  return grads;
}

at::Tensor attend_whole(const CoreAttention& layer, OpContext& op, const Heads& heads,
                        Probabilities& probabilities) {
  probabilities = layer.attend(op, [&] { return heads; });
  return op.compute("attention.context", [&] {
    return batched_product(probabilities.weights, layer.repeated(heads.value));
  });
}

ContextResult gathered_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  const Heads heads = gather_keys(layer, op, "cp.gather_kv", own);
  Probabilities probabilities;
  const at::Tensor context = attend_whole(layer, op, heads, probabilities);
  ContextResult result{layer.merge(context), {own.query, own.key, own.value}};
  append(result.saved, probabilities);
  return result;
}

Heads gathered_backward(const CoreAttention& layer, OpContext& op, const variable_list& saved,
                        const at::Tensor& grad) {
  const Heads own{saved[0], saved[1], saved[2]};
  const Heads heads = gather_keys(layer, op, "cp.regather_kv", own);
  const Heads grads =
      block_backward(layer, op, {{}, heads, probabilities_in(layer, saved, 3, 0), at::Tensor()},
                     layer.split_output(grad));
  return scatter_key_gradients(layer, op, grads, own);
}

ContextResult traded_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  const Heads heads = trade_heads(layer, op, own);
  Probabilities probabilities;
  const at::Tensor context = attend_whole(layer, op, heads, probabilities);
  ContextResult result{trade_output(layer, op, context, own),
                       {heads.query, heads.key, heads.value}};
  append(result.saved, probabilities);
  return result;
}

Heads traded_backward(const CoreAttention& layer, OpContext& op, const variable_list& saved,
                      const at::Tensor& grad) {
  const at::Tensor whole = trade_output_gradient(layer, op, layer.split_output(grad));
  const Heads heads{saved[0], saved[1], saved[2]};
  const Heads grads = block_backward(
      layer, op, {{}, heads, probabilities_in(layer, saved, 3, 0), at::Tensor()}, whole);
  return trade_gradients_back(layer, op, grads);
}

/// What a block of a ring knows, [samples * heads, queries, .].
struct RingBlock {
  Exponentials softmax;
  at::Tensor output;  ///< exponentials * values, fp32
};

/// Scales every block's exponentials to probabilities over all keys, and adds up the outputs.
at::Tensor merge_blocks(std::vector<RingBlock>& blocks) {
  at::Tensor maximum = blocks.front().softmax.maximum;
  for (const RingBlock& block : blocks) maximum = at::maximum(maximum, block.softmax.maximum);
  at::Tensor sum = at::zeros_like(maximum);
  for (RingBlock& block : blocks) {
    block.softmax.maximum = (block.softmax.maximum - maximum).exp_();
    sum.add_(block.softmax.sum * block.softmax.maximum);
  }
  at::Tensor output = at::zeros_like(blocks.front().output);
  for (RingBlock& block : blocks) {
    const at::Tensor weight = block.softmax.maximum.div_(sum);
    Probabilities& parts = block.softmax.parts;
    parts.softmax.mul_(weight);
    if (parts.dropped.defined()) parts.weights.mul_(weight);
    output.add_(block.output.mul_(weight));
    block.output.reset();
  }
  return output;
}

ContextResult ring_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  std::vector<RingBlock> blocks;
  walk_ring(layer, op, "cp.exchange_kv", own, [&](int step, const at::Tensor& message) {
    Heads heads;
    unpack(message, heads, own.key);
    const at::Tensor scores = op.compute("attention.scores" + at_step(step), [&] {
      return batched_product(own.query, layer.repeated(heads.key).transpose(1, 2));
    });
    blocks.push_back({exponentials_of(layer, op, {step, at_step(step)}, scores), {}});
    blocks.back().output = op.compute("attention.context" + at_step(step), [&] {
      return at::bmm(widened(blocks.back().softmax.parts.weights),
                     widened(layer.repeated(heads.value)));
    });
  });
  ContextResult result;
  result.output = op.compute("attention.merge",
                             [&] { return rounded(layer.merge(merge_blocks(blocks)), own.query); });
  result.saved = {own.query, own.key, own.value};
  for (const RingBlock& block : blocks) append(result.saved, block.softmax.parts);
  return result;
}

Heads ring_backward(const CoreAttention& layer, OpContext& op, const ContextResult& result,
                    const at::Tensor& grad_output) {
  const variable_list& saved = result.saved;
  const Heads own{saved[0], saved[1], saved[2]};
  const at::Tensor grad = layer.split_output(grad_output);
  const at::Tensor row_sums = (widened(grad) * layer.split_output(result.output)).sum(-1, true);
  Heads sum;
  HomewardGradients homeward(op);
  walk_ring(layer, op, "cp.reexchange_kv", own, [&](int step, const at::Tensor& message) {
    Block block{{step, at_step(step)},
                {own.query, {}, {}},
                probabilities_in(layer, saved, 3, static_cast<std::size_t>(step)),
                row_sums};
    unpack(message, block.heads, own.key);
    const Heads grads = block_backward(layer, op, block, grad);
    sum.query = sum.query.defined() ? sum.query.add_(grads.query) : widened(grads.query);
    homeward.send(step, pack(grads.key, grads.value));
  });
  unpack(homeward.wait(), sum, own.key);
  sum.query = rounded(sum.query, grad);
  return sum;
}

}  // namespace

ContextResult context_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  return by_kind(
      layer, [&] { return gathered_forward(layer, op, own); },
      [&] { return ring_forward(layer, op, own); }, [&] { return traded_forward(layer, op, own); });
}

Heads context_backward(const CoreAttention& layer, OpContext& op, const ContextResult& result,
                       const at::Tensor& grad) {
  return by_kind(
      layer, [&] { return gathered_backward(layer, op, result.saved, grad); },
      [&] { return ring_backward(layer, op, result, grad); },
      [&] { return traded_backward(layer, op, result.saved, grad); });
}

}  // namespace foresail::runtime
