#include "share.h"

#include "foresail/base/error.h"
#include "shape.h"

namespace foresail::models {
namespace {

void expect_divisible(const Model& model, const Split& split) {
  FORESAIL_EXPECT(split.tp >= 1);
  FORESAIL_EXPECT(split.cp >= 1);
  FORESAIL_EXPECT(split.microbatch_size >= 1);
  FORESAIL_EXPECT(split.sequence_length >= 1);
  FORESAIL_EXPECT(split.dtype != DType::Int64);
  FORESAIL_EXPECT(model.heads % split.tp == 0);
  FORESAIL_EXPECT(model.kv_heads % split.tp == 0);
  if (expert_layers(model) < model.layers) FORESAIL_EXPECT(model.ffn % split.tp == 0);
  FORESAIL_EXPECT(split.sequence_length % split.cp == 0);
}

}  // namespace

Share share_of(const Model& model, const Split& split) {
  expect_divisible(model, split);
  const std::int64_t tp = split.tp;
  Share share;
  share.is_tensor_parallel = tp > 1;
  share.is_sequence_parallel = split.sequence_parallel && tp > 1;
  share.is_context_parallel = split.cp > 1;
  share.cp = split.cp;
  share.cp_kind = split.context_parallel;
  if (share.is_context_parallel && share.cp_kind == ContextParallel::AllToAll) {
    FORESAIL_EXPECT(model.heads % (split.tp * split.cp) == 0);
    FORESAIL_EXPECT(model.kv_heads % (split.tp * split.cp) == 0);
  }
  share.samples = split.microbatch_size;
  share.sequence = split.sequence_length;
  share.queries = split.sequence_length / split.cp;
  share.tokens = share.samples * share.queries;
  if (share.is_sequence_parallel) FORESAIL_EXPECT(share.tokens % tp == 0);
  share.shard_tokens = share.is_sequence_parallel ? share.tokens / tp : share.tokens;
  share.hidden = model.hidden;
  share.heads = model.heads / tp;
  share.head_size = query_head_size(model);
  share.value_head_size = value_head_size(model);
  share.query_width = query_width(model) / tp;
  share.key_width = key_width(model) / tp;
  share.value_width = value_width(model) / tp;
  share.context_width = context_width(model) / tp;
  share.qkv_width = share.query_width + share.key_width + share.value_width;
  share.fc1_width = fc1_width(model) / tp;
  share.ffn = model.ffn / tp;
  share.vocab = padded_vocab(model, split.tp) / tp;
  share.linear_dtype = split.dtype;
  share.dtype = split.dtype == DType::Fp8 ? DType::Bf16 : split.dtype;
  share.element = size_of(share.dtype);
  share.linear_element = size_of(share.linear_dtype);
  const bool trades_heads = share.is_context_parallel && share.cp_kind == ContextParallel::AllToAll;
  const std::int64_t pairs = share.samples * share.heads / (trades_heads ? share.cp : 1);
  share.is_softmax_wide = !split.stack.flash_attention && split.stack.fused_kernels &&
                          pairs % split.stack.fused_softmax_multiple != 0;
  const bool overlaps = split.overlap_tp && share.is_tensor_parallel;
  share.is_async = split.stack.async_tensor_parallel || overlaps;
  share.is_pipelined = overlaps;
  return share;
}

}  // namespace foresail::models
