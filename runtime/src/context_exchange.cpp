#include "context_exchange.h"

#include <string>

namespace foresail::runtime {

namespace {

/// [a * cp, n, d] <-> [cp, a * n * d]: part r is what belongs to rank r, along the heads or along
/// the positions.
at::Tensor cut_heads(const at::Tensor& by_head, std::int64_t samples, int ranks) {
  const std::int64_t heads = by_head.size(0) / samples / ranks;
  return by_head.reshape({samples, ranks, heads * by_head.size(1) * by_head.size(2)})
      .transpose(0, 1)
      .reshape({ranks, -1});
}

at::Tensor join_heads(const at::Tensor& parts, at::IntArrayRef shape, std::int64_t samples) {
  return parts.reshape({parts.size(0), samples, -1}).transpose(0, 1).reshape(shape);
}

at::Tensor cut_positions(const at::Tensor& by_head, int ranks) {
  return by_head.reshape({by_head.size(0), ranks, -1}).transpose(0, 1).reshape({ranks, -1});
}

at::Tensor join_positions(const at::Tensor& parts, std::int64_t rows, std::int64_t width) {
  return parts.reshape({parts.size(0), rows, -1}).transpose(0, 1).reshape({rows, -1, width});
}

std::int64_t samples_of(const CoreAttention& layer) {
  return layer.scope().split->microbatch_size;
}

/// Own positions of all heads -> all positions of own heads.
at::Tensor widen(const CoreAttention& layer, const at::Tensor& parts, std::int64_t width) {
  const std::int64_t own = layer.scope().split->sequence_length / layer.scope().split->cp;
  const std::int64_t rows = parts.size(1) / own / width;
  FORESAIL_EXPECT(rows % samples_of(layer) == 0);
  return join_positions(parts, rows, width);
}

}  // namespace

int ranks_of(const CoreAttention& layer) {
  return layer.scope().split->cp;
}

at::Tensor pack(const at::Tensor& key, const at::Tensor& value) {
  return at::cat({key.reshape({-1}), value.reshape({-1})});
}

void unpack(const at::Tensor& message, Heads& heads, const at::Tensor& like) {
  heads.key = message.narrow(0, 0, like.numel()).view_as(like);
  heads.value = message.narrow(0, like.numel(), like.numel()).view_as(like);
}

Heads gather_keys(const CoreAttention& layer, OpContext& op, std::string_view name,
                  const Heads& own) {
  const std::int64_t rows = own.key.size(0);
  const std::int64_t width = own.key.size(2);
  FORESAIL_EXPECT(own.value.sizes() == own.key.sizes());
  const at::Tensor all = op.all_gather(name, pack(own.key, own.value).unsqueeze(0));
  const std::int64_t count = all.size(1) / 2;
  FORESAIL_EXPECT(all.size(0) == ranks_of(layer));
  return {own.query, join_positions(all.narrow(1, 0, count), rows, width),
          join_positions(all.narrow(1, count, count), rows, width)};
}

Heads scatter_key_gradients(const CoreAttention& layer, OpContext& op, const Heads& grads,
                            const Heads& own) {
  const int ranks = ranks_of(layer);
  const at::Tensor parts =
      at::cat({cut_positions(grads.key, ranks), cut_positions(grads.value, ranks)}, 1);
  Heads result;
  result.query = grads.query;
  unpack(op.reduce_scatter("cp.scatter_kv", parts).view(-1), result, own.key);
  return result;
}

Heads trade_heads(const CoreAttention& layer, OpContext& op, const Heads& own) {
  const std::int64_t samples = samples_of(layer);
  const int ranks = ranks_of(layer);
  const at::Tensor query = cut_heads(own.query, samples, ranks);
  const at::Tensor key = cut_heads(own.key, samples, ranks);
  const at::Tensor value = cut_heads(own.value, samples, ranks);
  const at::Tensor all = op.all_to_all("cp.scatter_heads", at::cat({query, key, value}, 1));
  const std::int64_t width = own.query.size(2);
  const std::int64_t keys = query.size(1);
  return {widen(layer, all.narrow(1, 0, keys), width),
          widen(layer, all.narrow(1, keys, key.size(1)), width),
          widen(layer, all.narrow(1, keys + key.size(1), value.size(1)), width)};
}

at::Tensor trade_output(const CoreAttention& layer, OpContext& op, const at::Tensor& output,
                        const Heads& own) {
  const at::Tensor parts = op.all_to_all("cp.gather_heads", cut_positions(output, ranks_of(layer)));
  return layer.merge(join_heads(parts, own.query.sizes(), samples_of(layer)));
}

at::Tensor trade_output_gradient(const CoreAttention& layer, OpContext& op,
                                 const at::Tensor& by_head) {
  const at::Tensor parts = op.all_to_all("cp.scatter_grad_heads",
                                         cut_heads(by_head, samples_of(layer), ranks_of(layer)));
  return widen(layer, parts, by_head.size(2));
}

Heads trade_gradients_back(const CoreAttention& layer, OpContext& op, const Heads& grads) {
  const std::int64_t samples = samples_of(layer);
  const int ranks = ranks_of(layer);
  const at::Tensor query = cut_positions(grads.query, ranks);
  const at::Tensor key = cut_positions(grads.key, ranks);
  const at::Tensor value = cut_positions(grads.value, ranks);
  const at::Tensor all = op.all_to_all("cp.gather_grad_heads", at::cat({query, key, value}, 1));
  const auto joined = [&](std::int64_t first, const at::Tensor& of) {
    return join_heads(all.narrow(1, first, of.numel() / ranks),
                      {of.size(0) * ranks, of.size(1) / ranks, of.size(2)}, samples);
  };
  const std::int64_t first = query.size(1);
  return {joined(0, grads.query), joined(first, grads.key),
          joined(first + key.size(1), grads.value)};
}

void walk_ring(const CoreAttention& layer, OpContext& op, const std::string& exchange,
               const Heads& own, const std::function<void(int, const at::Tensor&)>& block) {
  at::Tensor message = pack(own.key, own.value);
  for (int step = 0; step < ranks_of(layer); ++step) {
    at::Tensor arriving;
    Pending pending;
    if (step + 1 < ranks_of(layer)) {
      arriving = at::empty_like(message);
      pending = op.start_exchange(
          exchange + at_step(step), [message] { return message; }, arriving);
    }
    block(step, message);
    pending.wait();
    message = arriving;
  }
}

void HomewardGradients::send(int step, const at::Tensor& own) {
  const at::Tensor home = at::empty_like(own);
  travelling_.push_back(op_.start_exchange(
      "cp.exchange_grad_kv" + at_step(step),
      [sum = own, travelled = travelled_]() mutable {
        return travelled.defined() ? sum.add_(travelled) : sum;
      },
      home));
  travelled_ = home;
}

at::Tensor HomewardGradients::wait() {
  for (Pending& pending : travelling_) pending.wait();
  return travelled_;
}

std::string at_step(int step) {
  return "." + std::to_string(step);
}

}  // namespace foresail::runtime
