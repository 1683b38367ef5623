#include "attention.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "shape.h"

namespace foresail::models {
namespace {

// Backward runs 5 products where forward runs 2 (the scores are computed again): 2.5 times.
constexpr double kBackwardFlops = 2.5;
/// What one run of the core works on: all of a rank's attention, or its queries against one block
/// of keys.
struct Core {
  std::string suffix;  ///< of the names of its kernels
  std::int64_t queries = 1, keys = 1;
  std::int64_t parts = 1;         ///< a rank's heads and widths are cut into (all_to_all)
  double share_of_pairs = 1;      ///< of the whole sequence's (query, key) pairs
  std::int64_t zigzag_parts = 1;  ///< pieces that queries and keys of a block come in
};

// Context parallelism gives each rank an equal share of the pairs (zigzag: chunks i and 2c-1-i),
// and in a ring each block of keys an equal share of those: two pairs of chunks.
Core core_of(const Share& share) {
  Core core;
  core.queries = share.queries;
  core.keys = share.sequence;
  core.share_of_pairs = 1.0 / share.cp;
  if (!share.is_context_parallel) return core;
  if (share.cp_kind == ContextParallel::AllToAll) {
    core.queries = share.sequence;
    core.parts = share.cp;
    core.share_of_pairs = 1;
  } else if (share.cp_kind == ContextParallel::Ring) {
    core.keys = share.queries;
    core.share_of_pairs /= share.cp;
    core.zigzag_parts = 2;
  }
  return core;
}

std::int64_t padded(std::int64_t head_size) {
  constexpr std::uint64_t kSmallest = 32;
  return static_cast<std::int64_t>(
      std::bit_ceil(std::max(kSmallest, static_cast<std::uint64_t>(head_size))));
}

// 2 FLOPs for each attended pair and element of a query and of a value.
Flops fused_flops(const Model& model, const Share& share, const Stack& stack, const Core& core) {
  const double pairs =
      static_cast<double>(attended_pairs(model, share.sequence)) * core.share_of_pairs;
  std::int64_t widths = (share.query_width + share.context_width) / core.parts;
  if (stack.padded_heads) {
    widths = share.heads / core.parts * (padded(share.head_size) + padded(share.value_head_size));
  }
  return Flops(2 * pairs * static_cast<double>(share.samples * widths));
}

// Forward and backward draw the same mask, one number for each attended pair and head.
std::int64_t drawn_scores(const Model& model, const Share& share, const Core& core) {
  const double pairs =
      static_cast<double>(attended_pairs(model, share.sequence)) * core.share_of_pairs;
  return std::llround(pairs * static_cast<double>(share.samples * share.heads / core.parts));
}

Kernel fused_kernel(const Model& model, const Share& share, const Stack& stack, const Core& core) {
  Kernel kernel;
  kernel.kind = KernelKind::Attention;
  kernel.dtype = share.dtype;
  kernel.batch = share.samples * core.zigzag_parts;
  kernel.heads = share.heads / core.parts;
  kernel.query_length = core.queries / core.zigzag_parts;
  kernel.key_length = core.keys / core.zigzag_parts;
  kernel.head_size = share.head_size;
  kernel.flops = fused_flops(model, share, stack, core);
  if (model.dropout) kernel.draws = drawn_scores(model, share, core);
  return kernel;
}

// Bytes of queries, keys, values and outputs, `times` times.
Bytes operand_bytes(const Share& share, const Core& core, std::int64_t times) {
  const std::int64_t queries = core.queries * (share.query_width + share.context_width);
  const std::int64_t keys = core.keys * (share.key_width + share.value_width);
  return Bytes(times * share.samples * (queries + keys) / core.parts * share.element);
}

// Keys and values of all cp ranks, or (ring) of one.
std::int64_t kv_bytes(const Share& share, std::int64_t keys) {
  return share.samples * keys * (share.key_width + share.value_width) * share.element;
}

void softmax_forward(PassKernels& pass, const Model& model, const Stack& stack, const Core& core,
                     std::int64_t scores) {
  const std::int64_t element = pass.share().element;
  const std::int64_t dropout = model.dropout ? scores * (2 * element + 1) : 0;
  if (pass.share().is_softmax_wide) {
    pass.elementwise("attention.widen" + core.suffix, scores * (element + kFp32));
    pass.elementwise("attention.scale" + core.suffix, scores * 2 * kFp32);
    pass.elementwise("attention.mask" + core.suffix, scores * 2 * kFp32);
    pass.elementwise("softmax" + core.suffix, scores * 2 * kFp32);
    pass.elementwise("attention.narrow" + core.suffix, scores * (element + kFp32) + dropout);
    return;
  }
  if (stack.fused_kernels) {
    pass.elementwise("softmax" + core.suffix, scores * 2 * element + dropout);
    return;
  }
  pass.elementwise("attention.scale" + core.suffix, scores * 2 * element);
  pass.elementwise("attention.mask" + core.suffix, scores * 2 * element);
  pass.elementwise("softmax" + core.suffix, scores * 2 * element);
  if (model.dropout) pass.elementwise("attention.dropout" + core.suffix, dropout);
}

void softmax_backward(PassKernels& pass, const Model& model, const Stack& stack, const Core& core,
                      std::int64_t scores) {
  const std::int64_t element = pass.share().element;
  const std::int64_t dropout = model.dropout ? scores * (2 * element + 1) : 0;
  if (pass.share().is_softmax_wide) {
    pass.elementwise("attention.narrow.backward" + core.suffix,
                     scores * (element + kFp32) + dropout);
    pass.elementwise("softmax.backward" + core.suffix, scores * 3 * kFp32);
    pass.elementwise("attention.mask.backward" + core.suffix, scores * 2 * kFp32);
    pass.elementwise("attention.scale.backward" + core.suffix, scores * 2 * kFp32);
    pass.elementwise("attention.widen.backward" + core.suffix, scores * (element + kFp32));
    return;
  }
  if (stack.fused_kernels) {
    pass.elementwise("softmax.backward" + core.suffix, scores * 3 * element + dropout);
    return;
  }
  if (model.dropout) pass.elementwise("attention.dropout.backward" + core.suffix, dropout);
  pass.elementwise("softmax.backward" + core.suffix, scores * 3 * element);
  pass.elementwise("attention.mask.backward" + core.suffix, scores * 2 * element);
  pass.elementwise("attention.scale.backward" + core.suffix, scores * 2 * element);
}

void unfused_forward(PassKernels& pass, const Model& model, const Stack& stack, const Core& core) {
  const Share& share = pass.share();
  const std::int64_t batch = share.samples * share.heads / core.parts;
  pass.gemm("attention.scores" + core.suffix, share.dtype,
            {core.queries, core.keys, share.head_size, batch});
  softmax_forward(pass, model, stack, core, batch * core.queries * core.keys);
  pass.gemm("attention.context" + core.suffix, share.dtype,
            {core.queries, share.value_head_size, core.keys, batch});
}

void unfused_backward(PassKernels& pass, const Model& model, const Stack& stack, const Core& core) {
  const Share& share = pass.share();
  const std::int64_t batch = share.samples * share.heads / core.parts;
  pass.gemm("attention.context.dgrad_probabilities" + core.suffix, share.dtype,
            {core.queries, core.keys, share.value_head_size, batch});
  pass.gemm("attention.context.dgrad_values" + core.suffix, share.dtype,
            {core.keys, share.value_head_size, core.queries, batch});
  softmax_backward(pass, model, stack, core, batch * core.queries * core.keys);
  pass.gemm("attention.scores.dgrad_query" + core.suffix, share.dtype,
            {core.queries, share.head_size, core.keys, batch});
  // The transposed gradient Q^T dS: the form in which autograd computes the second operand's
  // gradient of scores = Q K^T.
  pass.gemm("attention.scores.dgrad_key" + core.suffix, share.dtype,
            {share.head_size, core.keys, core.queries, batch});
}

void core_forward(PassKernels& pass, const Model& model, const Stack& stack, const Core& core) {
  if (!stack.flash_attention) {
    unfused_forward(pass, model, stack, core);
    return;
  }
  Kernel kernel = fused_kernel(model, pass.share(), stack, core);
  kernel.name = "attention" + core.suffix;
  kernel.bytes = operand_bytes(pass.share(), core, 1);
  pass.compute(kernel);
}

// Operands and the gradients of all of them.
void core_backward(PassKernels& pass, const Model& model, const Stack& stack, const Core& core) {
  if (!stack.flash_attention) {
    unfused_backward(pass, model, stack, core);
    return;
  }
  Kernel kernel = fused_kernel(model, pass.share(), stack, core);
  kernel.name = "attention.backward" + core.suffix;
  kernel.is_backward = true;
  kernel.flops = kBackwardFlops * kernel.flops;
  kernel.bytes = operand_bytes(pass.share(), core, 2);
  pass.compute(kernel);
}

// One all-gather of keys and values. The fused kernel works on its own keys meanwhile, so only what
// follows it waits: a modelling choice that holds while attention takes longer than the exchange.
// Unfused attention waits at once. Answers with what is still to be awaited.
std::vector<int> gather_keys(PassKernels& pass, const std::string& name, const Stack& stack) {
  const Share& share = pass.share();
  const int gather =
      pass.collective(name, Collective::AllGather, kv_bytes(share, share.sequence), Lane::Cp);
  if (stack.flash_attention) return {gather};
  pass.await({gather});
  return {};
}

// The blocks of a ring, each with its exchange of keys and values beside it.
template <class Block>
void run_ring(PassKernels& pass, const std::string& exchange, const Block& block) {
  const Share& share = pass.share();
  int before = -1;
  for (int step = 0; step < share.cp; ++step) {
    if (step > 0) pass.await({before});
    if (step + 1 < share.cp) {
      before = pass.collective(part_name(exchange, step, share.cp), Collective::SendRecv,
                               kv_bytes(share, share.queries), Lane::Cp);
    }
    Core core = core_of(share);
    core.suffix = "." + std::to_string(step);
    block(core, step);
  }
}

void ring_forward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  run_ring(pass, "cp.exchange_kv",
           [&](const Core& core, int) { core_forward(pass, model, stack, core); });
  // The blocks' outputs, in fp32, are weighted by their softmax sums and added.
  pass.elementwise("attention.merge", (share.cp + 1) * share.tokens * share.context_width * kFp32);
}

// Gradients of keys and values travel on behind each block and come home with the last exchange.
void ring_backward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  std::vector<int> exchanged;
  run_ring(pass, "cp.reexchange_kv", [&](const Core& core, int step) {
    core_backward(pass, model, stack, core);
    exchanged.push_back(pass.collective(part_name("cp.exchange_grad_kv", step, share.cp),
                                        Collective::SendRecv, kv_bytes(share, share.queries),
                                        Lane::Cp));
  });
  pass.await(exchanged);
}

void trade(PassKernels& pass, const std::string& name, std::int64_t width) {
  const Share& share = pass.share();
  pass.await({pass.collective(name, Collective::AllToAll, share.tokens * width * share.element,
                              Lane::Cp)});
}

bool has_kind(const Share& share, ContextParallel kind) {
  return share.is_context_parallel && share.cp_kind == kind;
}

}  // namespace

void attention_forward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  if (has_kind(share, ContextParallel::Ring)) {
    ring_forward(pass, model, stack);
    return;
  }
  const bool trades = has_kind(share, ContextParallel::AllToAll);
  if (trades) trade(pass, "cp.scatter_heads", share.qkv_width);
  std::vector<int> gathered;
  if (has_kind(share, ContextParallel::AllGather)) {
    gathered = gather_keys(pass, "cp.gather_kv", stack);
  }
  core_forward(pass, model, stack, core_of(share));
  pass.await(gathered);
  if (trades) trade(pass, "cp.gather_heads", share.context_width);
}

void attention_backward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  if (has_kind(share, ContextParallel::Ring)) {
    ring_backward(pass, model, stack);
    return;
  }
  const bool trades = has_kind(share, ContextParallel::AllToAll);
  if (trades) trade(pass, "cp.scatter_grad_heads", share.context_width);
  std::vector<int> pending;
  const bool gathers = has_kind(share, ContextParallel::AllGather);
  if (gathers) pending = gather_keys(pass, "cp.regather_kv", stack);
  core_backward(pass, model, stack, core_of(share));
  if (gathers) {
    pending.push_back(pass.collective("cp.scatter_kv", Collective::ReduceScatter,
                                      kv_bytes(share, share.sequence), Lane::Cp));
  }
  pass.await(pending);
  if (trades) trade(pass, "cp.gather_grad_heads", share.qkv_width);
}

}  // namespace foresail::models
