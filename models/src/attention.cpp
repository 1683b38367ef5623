#include "attention.h"

#include "shape.h"

namespace foresail::models {
namespace {

// Backward runs 5 products where forward runs 2 (the scores are computed again): 2.5 times.
constexpr double kBackwardFlops = 2.5;

// 4 FLOPs (two products) per attended pair, head and element of a head. Context parallelism
// gives each rank an equal share of the pairs (zigzag: chunks i and 2c-1-i).
Flops fused_flops(const Model& model, const Share& share) {
  const auto pairs = static_cast<double>(attended_pairs(model, share.sequence)) *
                     static_cast<double>(share.queries) / static_cast<double>(share.sequence);
  return Flops(4 * pairs * static_cast<double>(share.samples * share.query_width));
}

Kernel fused_kernel(const Model& model, const Share& share) {
  Kernel kernel;
  kernel.kind = KernelKind::Attention;
  kernel.name = "attention";
  kernel.dtype = share.dtype;
  kernel.batch = share.samples;
  kernel.heads = share.heads;
  kernel.query_length = share.queries;
  kernel.key_length = share.sequence;
  kernel.head_size = share.head_size;
  kernel.flops = fused_flops(model, share);
  return kernel;
}

// Bytes of `query_tensors` tensors like the queries and `kv_tensors` like the keys of all cp ranks.
Bytes operand_bytes(const Share& share, std::int64_t query_tensors, std::int64_t kv_tensors) {
  const std::int64_t queries = share.tokens * share.query_width;
  const std::int64_t keys = share.samples * share.sequence * share.kv_width;
  return Bytes((query_tensors * queries + kv_tensors * keys) * share.element);
}

std::int64_t kv_bytes(const Share& share) {
  return 2 * share.samples * share.sequence * share.kv_width * share.element;
}

// One all-gather of keys and values stands for the ring exchange of context parallelism. The fused
// kernel works on its own keys meanwhile, so only what follows it waits: a modelling choice that
// holds while attention takes longer than the exchange. Unfused attention waits at once. Answers
// with what is still to be awaited.
std::vector<int> gather_keys(PassKernels& pass, const std::string& name, const Stack& stack) {
  if (!pass.share().is_context_parallel) return {};
  const int gather = pass.collective(name, Collective::AllGather, kv_bytes(pass.share()), Lane::Cp);
  if (stack.flash_attention) return {gather};
  pass.await({gather});
  return {};
}

void softmax_forward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  const std::int64_t element = share.element;
  const std::int64_t scores = share.scores();
  const std::int64_t dropout = model.dropout ? scores * (2 * element + 1) : 0;
  if (stack.fused_kernels) {
    pass.elementwise("softmax", scores * 2 * element + dropout);
    return;
  }
  pass.elementwise("attention.scale", scores * 2 * element);
  pass.elementwise("attention.mask", scores * 2 * element);
  pass.elementwise("softmax", scores * 2 * element);
  if (model.dropout) pass.elementwise("attention.dropout", dropout);
}

void softmax_backward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  const std::int64_t element = share.element;
  const std::int64_t scores = share.scores();
  const std::int64_t dropout = model.dropout ? scores * (2 * element + 1) : 0;
  if (stack.fused_kernels) {
    pass.elementwise("softmax.backward", scores * 3 * element + dropout);
    return;
  }
  if (model.dropout) pass.elementwise("attention.dropout.backward", dropout);
  pass.elementwise("softmax.backward", scores * 3 * element);
  pass.elementwise("attention.mask.backward", scores * 2 * element);
  pass.elementwise("attention.scale.backward", scores * 2 * element);
}

void unfused_forward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  const std::int64_t batch = share.samples * share.heads;
  pass.gemm("attention.scores", share.dtype,
            {share.queries, share.sequence, share.head_size, batch});
  softmax_forward(pass, model, stack);
  pass.gemm("attention.context", share.dtype,
            {share.queries, share.head_size, share.sequence, batch});
}

void unfused_backward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  const std::int64_t batch = share.samples * share.heads;
  pass.gemm("attention.context.dgrad_probabilities", share.dtype,
            {share.queries, share.sequence, share.head_size, batch});
  pass.gemm("attention.context.dgrad_values", share.dtype,
            {share.sequence, share.head_size, share.queries, batch});
  softmax_backward(pass, model, stack);
  pass.gemm("attention.scores.dgrad_query", share.dtype,
            {share.queries, share.head_size, share.sequence, batch});
  // The transposed gradient Q^T dS: the form in which autograd computes the second operand's
  // gradient of scores = Q K^T.
  pass.gemm("attention.scores.dgrad_key", share.dtype,
            {share.head_size, share.sequence, share.queries, batch});
}

}  // namespace

void attention_forward(PassKernels& pass, const Model& model, const Stack& stack) {
  const std::vector<int> gathered = gather_keys(pass, "cp.gather_kv", stack);
  if (stack.flash_attention) {
    Kernel kernel = fused_kernel(model, pass.share());
    kernel.bytes = operand_bytes(pass.share(), 2, 2);  // Q, output; K, V
    pass.compute(kernel);
  } else {
    unfused_forward(pass, model, stack);
  }
  pass.await(gathered);
}

void attention_backward(PassKernels& pass, const Model& model, const Stack& stack) {
  const Share& share = pass.share();
  std::vector<int> pending = gather_keys(pass, "cp.regather_kv", stack);
  if (stack.flash_attention) {
    Kernel kernel = fused_kernel(model, share);
    kernel.name = "attention.backward";
    kernel.is_backward = true;
    kernel.flops = kBackwardFlops * kernel.flops;
    kernel.bytes = operand_bytes(share, 4, 4);  // Q, output and both gradients; K, V and theirs
    pass.compute(kernel);
  } else {
    unfused_backward(pass, model, stack);
  }
  if (share.is_context_parallel) {
    pending.push_back(
        pass.collective("cp.scatter_kv", Collective::ReduceScatter, kv_bytes(share), Lane::Cp));
  }
  pass.await(pending);
}

}  // namespace foresail::models
