// The fullest moments of layers with experts and with latent attention, counted by hand.
#include <gtest/gtest.h>

#include <vector>

#include "kernels.h"

namespace foresail::models {
namespace {

// h = 64, 4 heads of 16; 8 experts of width 32, 2 per token.
Model with_experts() {
  Model model;
  model.name = "small";
  model.layers = 1;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_size = 16;
  model.ffn = 256;
  model.vocab = 256;
  model.biases = false;
  model.experts = {.count = 8, .per_token = 2, .ffn = 32};
  return model;
}

// h = 64, 4 heads: queries and keys of 16 + 8, values of 12; latents of 32 and 48.
Model with_latent() {
  Model model = with_experts();
  model.experts = {};
  model.ffn = 8;  // so that attention is the fullest part
  model.positions = Positions::Rotary;
  model.latent = {.kv_rank = 32, .query_rank = 48, .rope_head_size = 8, .value_head_size = 12};
  return model;
}

// 2 samples of 8 tokens on each of 2 ranks: T = 16, so 32 copies.
Split split_of() {
  Split split;
  split.microbatch_size = 2;
  split.sequence_length = 8;
  return split;
}

Split split_over_experts() {
  Split split = split_of();
  split.ep = 2;
  return split;
}

constexpr std::int64_t kRow = 64 * 2;  // bytes of a hidden state

// Backward: all that is saved, the output's gradient (T rows), the gradients of 32 copies beside
// the copies. Forward: what comes home beside its copy in the experts' order; all else is saved.
TEST(LayerPeak, OfExpertsHoldsRowsOnTheirWay) {
  const Work work = expert_layer_work(with_experts(), split_over_experts(), {});
  const std::int64_t saved = work.saved_bytes().count();
  EXPECT_EQ(sum(work.backward_peak).count(), saved + (16 + 32) * kRow);
  EXPECT_EQ(sum(work.forward_peak).count(), saved + 32 * kRow);
}

// 3/4 of 64 copies for one rank: 48 rows received beside 48 rows by expert, the 32 copies gone.
TEST(LayerPeak, OfHotExpertsIsThatOfTheRankWithMostRows) {
  const double hot = 3.0 / 16, cold = 1.0 / 16;
  const std::vector<double> load{cold, cold, cold, cold, hot, hot, hot, hot};
  const Work work = expert_layer_work(with_experts(), split_over_experts(), load);
  EXPECT_EQ(sum(work.backward_peak).count(),
            work.saved_bytes().count() + (16 + 48 + 48 - 32) * kRow);
}

// Bytes per token and element, in attention: norm1's and q_down's input 2 h, latents and their
// normed selves 2 (48 + 32), queries, keys and values 96 + 96 + 48 and their gradients, those of
// norm2's input h and of the projection's input 48.
TEST(LayerPeak, OfLatentAttentionHoldsBothLatents) {
  const Work work = layer_work(with_latent(), split_of());
  EXPECT_EQ(sum(work.backward_peak).count(),
            16 * 2 * (2 * 64 + 2 * (48 + 32) + 2 * (96 + 96 + 48) + 64 + 48));
}

// The peak is that of fc2's backward pass. 16 tokens on 4 ranks: the largest slice of a shard of 4
// is 2 rows. 4 x 2 rows of h are under way, and 3 x 2 rows of the gathered gradient (h) and of the
// input's gradient (256 / 4 = h) stand beside the whole tensors.
TEST(LayerPeak, OfPipelinedLayersHoldsRowsOfOnePart) {
  Model model = with_experts();
  model.experts = {};
  Split split = split_of();
  split.tp = 4;
  split.sequence_parallel = true;
  const Work whole = layer_work(model, split);
  split.overlap_tp = true;
  const Work parts = layer_work(model, split);
  EXPECT_EQ(sum(parts.backward_peak).count() - sum(whole.backward_peak).count(),
            (8 + 6 + 6) * kRow);
  EXPECT_EQ(parts.saved_bytes(), whole.saved_bytes());
}

std::vector<Split> splits() {
  Split tensor_parallel = split_over_experts();
  tensor_parallel.tp = 2;
  tensor_parallel.sequence_parallel = true;
  Split overlapped = tensor_parallel;
  overlapped.overlap_ep = true;
  Split fp8 = tensor_parallel;
  fp8.dtype = DType::Fp8;
  Split expert_tp = tensor_parallel;
  expert_tp.ep = 1;
  expert_tp.expert_tp = 2;
  return {split_over_experts(), tensor_parallel, overlapped, fp8, expert_tp};
}

// Recomputed, all that would have been saved is there again, and the output that nobody needs: so
// the forward walk makes what is saved, neither more nor less.
TEST(LayerPeak, HoldsWhatIsRecomputed) {
  Model shared = with_experts();
  shared.experts.shared = 1;
  shared.experts.shared_ffn = 32;
  shared.experts.shared_gate = true;
  Model latent = shared;
  latent.positions = Positions::Rotary;
  latent.latent = with_latent().latent;
  for (const Model& model : {shared, latent}) {
    for (Split split : splits()) {
      split.stack.early_stop_recompute = false;
      const Work kept = expert_layer_work(model, split, {});
      split.recompute = Recompute::Full;
      const Work full = expert_layer_work(model, split, {});
      EXPECT_EQ(sum(full.backward_peak).count(),
                sum(kept.backward_peak).count() + 16 / split.tp * kRow)
          << split.tp << " " << split.ep << " " << split.overlap_ep;
      EXPECT_LT(sum(full.forward_peak), sum(kept.forward_peak));
    }
  }
}

}  // namespace
}  // namespace foresail::models
