#include "context_attention.h"

#include <limits>
#include <string>

#include "context_exchange.h"

namespace foresail::runtime {
namespace {

using models::ContextParallel;
/// The gradients of one block of keys, and where they go.
struct Block {
  std::string suffix;
  Heads heads;
  at::Tensor probabilities;
  at::Tensor row_sums;  ///< of gradient * output; undefined: of this block alone
};

Heads block_backward(const CoreAttention& layer, OpContext& op, const Block& block,
                     const at::Tensor& grad) {
  const Heads& heads = block.heads;
  const std::string& suffix = block.suffix;
  const at::Tensor grad_probabilities = op.compute(
      "attention.context.dgrad_probabilities" + suffix,
      [&] { return batched_product(grad, layer.repeated(heads.value).transpose(1, 2)); });
  Heads grads;
  grads.value = op.compute("attention.context.dgrad_values" + suffix, [&] {
    return layer.sum_repeats(batched_product(block.probabilities.transpose(1, 2), grad));
  });
  const at::Tensor grad_scores = op.compute("softmax.backward" + suffix, [&] {
    if (!block.row_sums.defined()) {
      return layer.softmax_backward(grad_probabilities, block.probabilities);
    }
    at::Tensor scaled = widened(grad_probabilities);
    scaled.sub_(block.row_sums).mul_(block.probabilities).mul_(layer.scale());
    return rounded(scaled, grad_probabilities);
  });
  grads.query = op.compute("attention.scores.dgrad_query" + suffix,
                           [&] { return batched_product(grad_scores, layer.repeated(heads.key)); });
  grads.key = op.compute("attention.scores.dgrad_key" + suffix, [&] {
    return layer.sum_repeats(
        batched_product(heads.query.transpose(1, 2), grad_scores).transpose(1, 2));
  });
  return grads;
}

at::Tensor attend_whole(const CoreAttention& layer, OpContext& op, const Heads& heads,
                        at::Tensor& probabilities) {
  probabilities = layer.attend(op, [&] { return heads; });
  return op.compute("attention.context",
                    [&] { return batched_product(probabilities, layer.repeated(heads.value)); });
}

ContextResult gathered_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  const Heads heads = gather_keys(layer, op, "cp.gather_kv", own);
  at::Tensor probabilities;
  const at::Tensor context = attend_whole(layer, op, heads, probabilities);
  return {layer.merge(context), {own.query, own.key, own.value, probabilities}};
}

Heads gathered_backward(const CoreAttention& layer, OpContext& op, const variable_list& saved,
                        const at::Tensor& grad) {
  const Heads own{saved[0], saved[1], saved[2]};
  const Heads heads = gather_keys(layer, op, "cp.regather_kv", own);
  const Heads grads =
      block_backward(layer, op, {"", heads, saved[3], at::Tensor()}, layer.split_output(grad));
  return scatter_key_gradients(layer, op, grads, own);
}

ContextResult traded_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  const Heads heads = trade_heads(layer, op, own);
  at::Tensor probabilities;
  const at::Tensor context = attend_whole(layer, op, heads, probabilities);
  const at::Tensor parts =
      op.all_to_all("cp.gather_heads", cut_positions(context, ranks_of(layer)));
  const std::int64_t samples = layer.scope().split->microbatch_size;
  const at::Tensor whole = join_heads(parts, own.query.sizes(), samples);
  return {layer.merge(whole), {heads.query, heads.key, heads.value, probabilities}};
}

Heads traded_backward(const CoreAttention& layer, OpContext& op, const variable_list& saved,
                      const at::Tensor& grad) {
  const std::int64_t samples = layer.scope().split->microbatch_size;
  const at::Tensor parts = op.all_to_all(
      "cp.scatter_grad_heads", cut_heads(layer.split_output(grad), samples, ranks_of(layer)));
  const at::Tensor whole = widen(layer, parts, saved[0].size(2));
  const Heads grads = block_backward(
      layer, op, {"", {saved[0], saved[1], saved[2]}, saved[3], at::Tensor()}, whole);
  return trade_gradients_back(layer, op, grads);
}

/// What a block of a ring knows of its softmax, [samples * heads, queries, .]. All but the
/// exponentials are fp32.
struct RingBlock {
  at::Tensor exponentials;  ///< of scores less the row's maximum
  at::Tensor maximum, sum;
  at::Tensor output;  ///< exponentials * values
};

RingBlock exponentiate(const CoreAttention& layer, const at::Tensor& scores, int step) {
  at::Tensor wide = widened(scores);
  layer.mask(wide, step);
  RingBlock block;
  block.maximum = wide.amax(-1, true);
  // A row may see nothing of a block: its maximum is -infinity, and its exponentials are 0.
  const at::Tensor finite = block.maximum.clamp_min(std::numeric_limits<float>::lowest());
  wide.sub_(finite).exp_();
  block.sum = wide.sum(-1, true);
  block.exponentials = rounded(wide, scores);
  return block;
}

/// Scales every block's exponentials to probabilities over all keys, and adds up the outputs.
at::Tensor merge_blocks(std::vector<RingBlock>& blocks) {
  at::Tensor maximum = blocks.front().maximum;
  for (const RingBlock& block : blocks) maximum = at::maximum(maximum, block.maximum);
  at::Tensor sum = at::zeros_like(maximum);
  for (RingBlock& block : blocks) {
    block.maximum = (block.maximum - maximum).exp_();
    sum.add_(block.sum * block.maximum);
  }
  at::Tensor output = at::zeros_like(blocks.front().output);
  for (RingBlock& block : blocks) {
    const at::Tensor weight = block.maximum.div_(sum);
    block.exponentials.mul_(weight);
    output.add_(block.output.mul_(weight));
    block.output.reset();
  }
  return output;
}

ContextResult ring_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  const int ranks = ranks_of(layer);
  at::Tensor message = pack(own.key, own.value);
  std::vector<RingBlock> blocks;
  for (int step = 0; step < ranks; ++step) {
    at::Tensor arriving;
    Pending exchange;
    if (step + 1 < ranks) {
      arriving = at::empty_like(message);
      exchange = op.start_exchange(
          "cp.exchange_kv" + at_step(step), [message] { return message; }, arriving);
    }
    Heads heads;
    unpack(message, heads, own.key);
    const at::Tensor scores = op.compute("attention.scores" + at_step(step), [&] {
      return batched_product(own.query, layer.repeated(heads.key).transpose(1, 2));
    });
    blocks.push_back(
        op.compute("softmax" + at_step(step), [&] { return exponentiate(layer, scores, step); }));
    blocks.back().output = op.compute("attention.context" + at_step(step), [&] {
      return at::bmm(widened(blocks.back().exponentials), widened(layer.repeated(heads.value)));
    });
    exchange.wait();
    message = arriving;
  }
  ContextResult result;
  result.output = op.compute("attention.merge",
                             [&] { return rounded(layer.merge(merge_blocks(blocks)), own.query); });
  result.saved = {own.query, own.key, own.value};
  for (const RingBlock& block : blocks) result.saved.push_back(block.exponentials);
  return result;
}

/// Gradients of keys and values travel on behind each block, every rank adding its own, and come
/// home with the last exchange.
Heads ring_backward(const CoreAttention& layer, OpContext& op, const ContextResult& result,
                    const at::Tensor& grad_output) {
  const int ranks = ranks_of(layer);
  const variable_list& saved = result.saved;
  const at::Tensor grad = layer.split_output(grad_output);
  const at::Tensor row_sums = (widened(grad) * layer.split_output(result.output)).sum(-1, true);
  Heads sum;
  at::Tensor message = pack(saved[1], saved[2]);
  at::Tensor travelled;
  std::vector<Pending> travelling;
  for (int step = 0; step < ranks; ++step) {
    at::Tensor arriving;
    Pending exchange;
    if (step + 1 < ranks) {
      arriving = at::empty_like(message);
      exchange = op.start_exchange(
          "cp.reexchange_kv" + at_step(step), [message] { return message; }, arriving);
    }
    Block block{
        at_step(step), {saved[0], {}, {}}, saved[3 + static_cast<std::size_t>(step)], row_sums};
    unpack(message, block.heads, saved[1]);
    const Heads grads = block_backward(layer, op, block, grad);
    sum.query = sum.query.defined() ? sum.query.add_(grads.query) : widened(grads.query);
    const at::Tensor home = at::empty_like(message);
    travelling.push_back(op.start_exchange(
        "cp.exchange_grad_kv" + at_step(step),
        [own = pack(grads.key, grads.value), travelled]() mutable {
          return travelled.defined() ? own.add_(travelled) : own;
        },
        home));
    travelled = home;
    exchange.wait();
    message = arriving;
  }
  for (Pending& pending : travelling) pending.wait();
  unpack(travelled, sum, saved[1]);
  sum.query = rounded(sum.query, grad);
  return sum;
}

}  // namespace

ContextResult context_forward(const CoreAttention& layer, OpContext& op, const Heads& own) {
  switch (kind_of(layer)) {
    case ContextParallel::AllGather:
      return gathered_forward(layer, op, own);
    case ContextParallel::Ring:
      return ring_forward(layer, op, own);
    case ContextParallel::AllToAll:
      break;
  }
  return traded_forward(layer, op, own);
}

Heads context_backward(const CoreAttention& layer, OpContext& op, const ContextResult& result,
                       const at::Tensor& grad) {
  switch (kind_of(layer)) {
    case ContextParallel::AllGather:
      return gathered_backward(layer, op, result.saved, grad);
    case ContextParallel::Ring:
      return ring_backward(layer, op, result, grad);
    case ContextParallel::AllToAll:
      break;
  }
  return traded_backward(layer, op, result.saved, grad);
}

}  // namespace foresail::runtime
