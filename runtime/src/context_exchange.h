/// \file
/// What the ranks of a context-parallel group send each other for attention: keys and values, or
/// heads for positions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core_attention.h"

namespace foresail::runtime {

using Heads = CoreAttention::Heads;

/// What `gathered`, `ring` or `traded` makes, by the layer's kind of context parallelism.
template <class Gathered, class Ring, class Traded>
auto by_kind(const CoreAttention& layer, const Gathered& gathered, const Ring& ring,
             const Traded& traded) {
  switch (layer.scope().split->context_parallel) {
    case models::ContextParallel::AllGather:
      return gathered();
    case models::ContextParallel::Ring:
      return ring();
    case models::ContextParallel::AllToAll:
      break;
  }
  return traded();
}

int ranks_of(const CoreAttention& layer);

/// Keys and values in one message, and back.
at::Tensor pack(const at::Tensor& key, const at::Tensor& value);
void unpack(const at::Tensor& message, Heads& heads, const at::Tensor& like);

/// Keys and values of all ranks in the order of ranks, and the sums of their gradients.
Heads gather_keys(const CoreAttention& layer, OpContext& op, std::string_view name,
                  const Heads& own);
Heads scatter_key_gradients(const CoreAttention& layer, OpContext& op, const Heads& grads,
                            const Heads& own);

/// Own positions of all heads -> all positions of own heads.
Heads trade_heads(const CoreAttention& layer, OpContext& op, const Heads& own);
/// The output of all positions of own heads, [heads, positions, size], as features of the own
/// tokens; `own` was traded. The same of a gradient, the other way.
at::Tensor trade_output(const CoreAttention& layer, OpContext& op, const at::Tensor& output,
                        const Heads& own);
at::Tensor trade_output_gradient(const CoreAttention& layer, OpContext& op,
                                 const at::Tensor& by_head);
/// All positions of own heads -> own positions of all heads, of queries, keys and values.
Heads trade_gradients_back(const CoreAttention& layer, OpContext& op, const Heads& grads);

/// Sends keys and values round the ring by exchanges of that name; `block(step, message)` works on
/// those of the rank `step` places before, beside the exchange that brings the next.
void walk_ring(const CoreAttention& layer, OpContext& op, const std::string& exchange,
               const Heads& own, const std::function<void(int, const at::Tensor&)>& block);

/// Gradients of keys and values that travel on behind each block of a ring, every rank adding its
/// own (cp.exchange_grad_kv), and come home with the last exchange.
class HomewardGradients {
 public:
  explicit HomewardGradients(OpContext& op) : op_(op) {}
  /// `own` is added to.
  void send(int step, const at::Tensor& own);
  /// What has come home.
  at::Tensor wait();

 private:
  OpContext& op_;
  at::Tensor travelled_;
  std::vector<Pending> travelling_;
};

/// ".0", ".1", ...: of the kernels of a ring's steps.
std::string at_step(int step);

}  // namespace foresail::runtime
