#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/base/error.h"
#include "kernels.h"

namespace foresail::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// h = 64, 4 heads: queries and keys of 16 + 8, values of 12; latents of 32 and 48.
Model small() {
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
  model.positions = Positions::Rotary;
  model.latent = {.kv_rank = 32, .query_rank = 48, .rope_head_size = 8, .value_head_size = 12};
  return model;
}

Split split_of(int tp = 1) {
  Split split;
  split.tp = tp;
  split.sequence_parallel = tp > 1;
  split.microbatch_size = 2;
  split.sequence_length = 8;
  return split;
}

TEST(LatentAttention, ProjectsDownAndUp) {
  const Work work = layer_work(small(), split_of());
  EXPECT_THAT(names(work.forward), ElementsAre("norm1", "q_down", "q_norm", "kv_down", "kv_norm",
                                               "q_up", "kv_up", "rope", "attention", "proj", "add1",
                                               "norm2", "fc1", "activation", "fc2", "add2"));
  EXPECT_EQ(shape(work.forward, "q_down"), "16 48 64");
  EXPECT_EQ(shape(work.forward, "q_up"), "16 96 48");     // 4 heads of 16 + 8
  EXPECT_EQ(shape(work.forward, "kv_down"), "16 40 64");  // 32 + the shared key's 8
  EXPECT_EQ(shape(work.forward, "kv_up"), "16 112 32");   // 4 heads of 16 + 12
  EXPECT_EQ(shape(work.forward, "proj"), "16 64 48");     // 4 heads of 12
  EXPECT_EQ(kernel(work.forward, "attention").head_size, 24);
  // Causal pairs of 8 tokens: 36; 2 FLOPs per pair and element of a query (24) and of a value (12).
  EXPECT_EQ(kernel(work.forward, "attention").flops.count(), 2 * 36 * 2 * 4 * (24 + 12));
}

TEST(LatentAttention, WithoutAQueryRankProjectsQueriesDirectly) {
  Model model = small();
  model.latent.query_rank = 0;
  const Work work = layer_work(model, split_of());
  EXPECT_EQ(shape(work.forward, "q"), "16 96 64");
}

// Ranks project their own tokens down; the latents, not the hidden states, are gathered.
TEST(LatentAttention, GathersTheNarrowTensors) {
  const Work work = layer_work(small(), split_of(2));
  EXPECT_EQ(shape(work.forward, "q_down"), "8 48 64");
  EXPECT_EQ(shape(work.forward, "q_up"), "16 48 48");
  EXPECT_EQ(kernel(work.forward, "tp.gather_q_up").bytes.count(), 16 * 48 * 2);
  EXPECT_EQ(kernel(work.forward, "tp.gather_kv_up").bytes.count(), 16 * 40 * 2);
  EXPECT_EQ(kernel(work.backward, "tp.scatter_kv_up").bytes.count(), 16 * 40 * 2);
  EXPECT_EQ(kernel(work.backward, "tp.regather_q_up").bytes.count(), 16 * 48 * 2);
}

TEST(LatentAttention, ParametersAreThoseOfItsMatrices) {
  const std::int64_t down = 64 * 48 + 64 * 40;
  const std::int64_t cut = 48 * 96 + 32 * 112 + 48 * 64;
  const std::int64_t norms = 48 + 32;
  Model model = small();
  model.norm = Norm::RmsNorm;
  const RankParameters one = layer_parameters(model, 1);
  EXPECT_EQ(one.total(), down + cut + norms + 2 * 64 * 256 + 2 * 64);
  const RankParameters two = layer_parameters(model, 2);
  EXPECT_EQ(two.sharded, (cut + 2 * 64 * 256) / 2);
  EXPECT_EQ(two.replicated, down + norms + 2 * 64);
}

// DeepSeek-V2's own attention: 187,107,328 parameters of V3's layer with its norms.
TEST(LatentAttention, CountsDeepSeekV3sLayer) {
  const Model model = catalogue_model("deepseek_v3");
  const std::int64_t mlp = 3 * model.hidden * model.ffn;
  const std::int64_t norms = 2 * model.hidden;
  EXPECT_EQ(layer_parameters(model, 1).total() - mlp - norms, 187'107'328);
}

TEST(LatentAttention, ImpossibleOnesAreNamed) {
  const auto refusal = [](const Model& model) -> std::string {
    try {
      check(model);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Model model = small();
  model.kv_heads = 2;
  EXPECT_THAT(refusal(model), HasSubstr("a key for each of 4 heads, but kv_heads is 2"));
  model = small();
  model.positions = Positions::Alibi;
  EXPECT_THAT(refusal(model), HasSubstr("needs positions rotary, but they are alibi"));
  model = small();
  model.latent.rope_head_size = 7;
  EXPECT_THAT(refusal(model), HasSubstr("rope_head_size 7 is odd"));
}

}  // namespace
}  // namespace foresail::models
