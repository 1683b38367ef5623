// What stands before the first layer and behind the last: embedding, output layer and loss.
#include <utility>

#include "foresail/models/operators.h"
#include "linear.h"
#include "live_tensors.h"
#include "pass_kernels.h"

namespace foresail::models {
namespace {

constexpr std::int64_t kTokenId = 8;  // bytes of an int64
// Rows are looked up in the own part of the vocabulary and summed over tp.
std::vector<Kernel> embedding_forward(const Model& model, const Share& share) {
  PassKernels pass(share);
  const std::int64_t e = share.element;
  pass.memory_bound(KernelKind::Embedding, "embedding", share.hidden_elements() * 2 * e);
  if (share.is_tensor_parallel) {
    const Collective kind =
        share.is_sequence_parallel ? Collective::ReduceScatter : Collective::AllReduce;
    pass.await({pass.exchange("tp.reduce_embedding", kind, share.tokens)});
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
    pass.await({pass.exchange("tp.gather_grad_embedding", Collective::AllGather, share.tokens)});
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

std::vector<SavedTensor> embedding_saved(const Model& model, const Share& share) {
  std::vector<SavedTensor> saved{{"embedding.tokens", Bytes(kTokenId * share.tokens)}};
  if (model.dropout) saved.push_back({"embedding.dropout_mask", Bytes(share.shard_elements())});
  return saved;
}

// Rows of other ranks' words are masked out in a copy.
std::vector<SavedTensor> embedding_forward_peak(const Model& model, const Share& share) {
  LiveTensors live(embedding_saved(model, share));
  const std::int64_t full = share.hidden_elements() * share.element;
  if (share.is_tensor_parallel) live.make("embedding.rows", full);
  live.make("embedding.masked_rows", full);
  live.drop({"embedding.rows"});
  if (share.is_sequence_parallel || model.dropout) {
    live.make("embedding.output", share.shard_elements() * share.element);
  }
  return std::move(live).peak();
}

std::vector<SavedTensor> embedding_backward_peak(const Model& model, const Share& share) {
  LiveTensors live(embedding_saved(model, share));
  const std::int64_t full = share.hidden_elements() * share.element;
  live.make("embedding.gradient", share.shard_elements() * share.element);
  if (share.is_sequence_parallel) live.make("embedding.gathered_gradient", full);
  if (share.is_tensor_parallel) live.make("embedding.masked_gradient", full);
  return std::move(live).peak();
}

std::vector<SavedTensor> head_saved(const Share& share) {
  const Bytes shard(share.shard_elements() * share.element);
  return {{"final_norm.input", shard},
          {"head.input", shard},
          {"cross_entropy.probabilities", Bytes(share.tokens * share.vocab * kFp32)}};
}

// Logits of 16 bits become fp32 exponentials in a copy, those of fp32 in place.
std::vector<SavedTensor> head_forward_peak(const Share& share) {
  const std::int64_t e = share.element;
  const std::int64_t logits = share.tokens * share.vocab;
  LiveTensors live({head_saved(share)[0], head_saved(share)[1]});
  if (share.is_sequence_parallel) live.make("head.gathered_input", share.hidden_elements() * e);
  if (e < kFp32) live.make("logits", logits * e);
  live.drop({"head.gathered_input"});
  live.make("cross_entropy.probabilities", logits * kFp32);
  return std::move(live).peak();
}

std::vector<SavedTensor> head_backward_peak(const Share& share) {
  const std::int64_t e = share.element;
  LiveTensors live(head_saved(share));
  live.make("logits.gradient", share.tokens * share.vocab * e);
  live.drop({"cross_entropy.probabilities"});
  if (share.is_sequence_parallel) live.make("head.gathered_input", share.hidden_elements() * e);
  live.make("head.whole_input.gradient", share.hidden_elements() * e);
  if (share.is_sequence_parallel) live.make("head.input.gradient", share.shard_elements() * e);
  live.drop({"head.gathered_input", "head.input", "logits.gradient"});
  live.make("final_norm.input.gradient", share.shard_elements() * e);
  return std::move(live).peak();
}

}  // namespace

Work embedding_work(const Model& model, const Split& split) {
  const Share share = share_of(model, split);
  Work work{.forward = embedding_forward(model, share),
            .backward = embedding_backward(model, share),
            .saved = embedding_saved(model, share),
            .forward_peak = embedding_forward_peak(model, share),
            .backward_peak = embedding_backward_peak(model, share),
            .retained = {{"embedding.tokens", Bytes(kTokenId * share.tokens)},
                         {"embedding.gradient", Bytes(share.shard_elements() * share.element)}}};
  return work;
}

Work head_work(const Model& model, const Split& split) {
  const Share share = share_of(model, split);
  const std::int64_t e = share.element;
  const std::int64_t logits = share.tokens * share.vocab;
  return {.forward = head_forward(share, split.stack),
          .backward = head_backward(share, split.stack),
          .saved = head_saved(share),
          .forward_peak = head_forward_peak(share),
          .backward_peak = head_backward_peak(share),
          .retained = {{"head.input", Bytes(share.shard_elements() * e)},
                       {"head.gradient", Bytes(logits * e)}}};
}

}  // namespace foresail::models
