// What stands before the first layer and behind the last: embedding, output layer and loss.
#include <utility>

#include "foresail/models/operators.h"
#include "linear.h"
#include "pass_kernels.h"

namespace foresail::models {
namespace {

constexpr std::int64_t kTokenId = 8;  // bytes of an int64
constexpr std::int64_t kFp32 = 4;

// Rows are looked up in the own part of the vocabulary and summed over tp.
std::vector<Kernel> embedding_forward(const Model& model, const Share& share) {
  PassKernels pass(share);
  const std::int64_t e = share.element;
  pass.memory_bound(KernelKind::Embedding, "embedding", share.hidden_elements() * 2 * e);
  if (share.is_tensor_parallel) {
    const Collective kind =
        share.is_sequence_parallel ? Collective::ReduceScatter : Collective::AllReduce;
    pass.await({pass.chunk("tp.reduce_embedding", kind, 0, 1)});
  }
  if (model.positions == Positions::Learned) {
    pass.elementwise("embedding.positions", share.shard_elements() * 3 * e);
  }
  if (model.dropout) {
    pass.elementwise("embedding.dropout", share.shard_elements() * (2 * e + 1));
  }
  return std::move(pass).take();
}

// Gradients are added to the fp32 gradient rows: read e, read and write 4.
std::vector<Kernel> embedding_backward(const Model& model, const Share& share) {
  PassKernels pass(share);
  const std::int64_t e = share.element;
  if (model.dropout) {
    pass.elementwise("embedding.dropout.backward", share.shard_elements() * (2 * e + 1));
  }
  if (model.positions == Positions::Learned) {
    pass.elementwise("embedding.positions.backward", share.shard_elements() * (e + 2 * kFp32));
  }
  if (share.is_sequence_parallel) {
    pass.await({pass.chunk("tp.gather_grad_embedding", Collective::AllGather, 0, 1)});
  }
  pass.memory_bound(KernelKind::Embedding, "embedding.backward",
                    share.hidden_elements() * (e + 2 * kFp32));
  return std::move(pass).take();
}

// The head is never cut into chunks: frameworks overlap the layers' linears alone.
Linear head_linear(const Share& share) {
  return {.name = "head", .in = share.hidden, .out = share.vocab, .dtype = share.dtype};
}

// Fused: local logits to fp32 and their maximum, then exp and sum: 14 bytes per 16-bit logit.
// Operator by operator (Megatron-LM's vocab_parallel_cross_entropy): cast 6, maximum 4, subtract 8,
// exp 8, sum 4, divide 8. Maximum, own predicted logit and sum of exponentials are reduced over tp.
void cross_entropy_forward(PassKernels& pass, const Stack& stack) {
  const Share& share = pass.share();
  const std::int64_t scalars = share.tokens * kFp32;
  if (share.is_tensor_parallel) {
    pass.await({pass.collective("tp.max", Collective::AllReduce, scalars)});
  }
  pass.memory_bound(
      KernelKind::CrossEntropy, "cross_entropy",
      share.tokens * share.vocab * (share.element + (stack.fused_cross_entropy ? 3 : 9) * kFp32));
  if (!share.is_tensor_parallel) return;
  pass.collective("tp.target", Collective::AllReduce, scalars);
  pass.collective("tp.sum", Collective::AllReduce, scalars);
}

std::vector<Kernel> head_forward(const Share& share, const Stack& stack) {
  PassKernels pass(share);
  pass.memory_bound(KernelKind::Norm, "final_norm", share.shard_elements() * 2 * share.element);
  column_forward(pass, head_linear(share));
  cross_entropy_forward(pass, stack);
  return std::move(pass).take();
}

// Softmax minus one-hot in fp32, cast back: 10 bytes per 16-bit logit; in two operators (scale 8,
// cast 6) 14.
std::vector<Kernel> head_backward(const Share& share, const Stack& stack) {
  PassKernels pass(share);
  pass.memory_bound(
      KernelKind::CrossEntropy, "cross_entropy.backward",
      share.tokens * share.vocab * (share.element + (stack.fused_cross_entropy ? 2 : 3) * kFp32));
  column_backward(pass, {head_linear(share)});
  pass.memory_bound(KernelKind::Norm, "final_norm.backward",
                    share.shard_elements() * 4 * share.element);
  return std::move(pass).take();
}

}  // namespace

Work embedding_work(const Model& model, const Split& split) {
  const Share share = share_of(model, split);
  Work work{.forward = embedding_forward(model, share),
            .backward = embedding_backward(model, share),
            .saved = {{"embedding.tokens", Bytes(kTokenId * share.tokens)}},
            .working_set = Bytes(share.hidden_elements() * share.element),
            .retained = {{"embedding.tokens", Bytes(kTokenId * share.tokens)},
                         {"embedding.gradient", Bytes(share.shard_elements() * share.element)}}};
  if (model.dropout) {
    work.saved.push_back({"embedding.dropout_mask", Bytes(share.shard_elements())});
  }
  return work;
}

Work head_work(const Model& model, const Split& split) {
  const Share share = share_of(model, split);
  const std::int64_t e = share.element;
  const std::int64_t logits = share.tokens * share.vocab;
  // The logits' gradient in activation precision, and the gathered input.
  const std::int64_t gathered = share.is_sequence_parallel ? share.hidden_elements() : 0;
  return {.forward = head_forward(share, split.stack),
          .backward = head_backward(share, split.stack),
          .saved = {{"final_norm.input", Bytes(share.shard_elements() * e)},
                    {"head.input", Bytes(share.shard_elements() * e)},
                    {"cross_entropy.probabilities", Bytes(logits * kFp32)}},
          .working_set = Bytes((logits + gathered) * e),
          .retained = {{"head.input", Bytes(share.shard_elements() * e)},
                       {"head.gradient", Bytes(logits * e)}}};
}

}  // namespace foresail::models
