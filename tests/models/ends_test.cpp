// Embedding of the first stage, head and loss of the last.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "kernels.h"

namespace foresail::models {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Model tiny() {
  return catalogue_model("gpt_tiny");
}  // h 128, vocab 256

Split split_of(int tp) {
  Split split;
  split.tp = tp;
  split.microbatch_size = 2;
  split.sequence_length = 16;  // T = 32
  return split;
}

TEST(EmbeddingWork, AddsPositionsToLookedUpRows) {
  const Work work = embedding_work(tiny(), split_of(1));
  EXPECT_THAT(names(work.forward), ElementsAre("embedding", "embedding.positions"));
  EXPECT_THAT(names(work.backward),
              ElementsAre("embedding.positions.backward", "embedding.backward"));
  EXPECT_EQ(kernel(work.forward, "embedding").bytes.count(), 32 * 128 * 4);
  EXPECT_EQ(work.saved_bytes().count(), 8 * 32);
}

TEST(EmbeddingWork, ReducesOverTheVocabularysParts) {
  const Work whole = embedding_work(tiny(), split_of(2));
  EXPECT_EQ(kernel(whole.forward, "tp.reduce_embedding").collective, Collective::AllReduce);
  EXPECT_THAT(awaited(whole.forward, "embedding.positions"), ElementsAre("tp.reduce_embedding"));
  EXPECT_THAT(names_of_kind(whole.backward, KernelKind::Collective), IsEmpty());
  Split split = split_of(2);
  split.sequence_parallel = true;
  const Work shard = embedding_work(tiny(), split);
  EXPECT_EQ(kernel(shard.forward, "tp.reduce_embedding").collective, Collective::ReduceScatter);
  EXPECT_EQ(kernel(shard.forward, "tp.reduce_embedding").bytes.count(), 32 * 128 * 2);
  EXPECT_THAT(awaited(shard.backward, "embedding.backward"),
              ElementsAre("tp.gather_grad_embedding"));
}

// Megatron's estimator: 8 s b bytes of token ids and s b h of dropout mask, / t under SP.
TEST(EmbeddingWork, KeepsTokensAndTheDropoutMask) {
  Model model = tiny();
  model.dropout = true;
  Split split = split_of(2);
  EXPECT_EQ(embedding_work(model, split).saved_bytes().count(), 8 * 32 + 32 * 128);
  split.sequence_parallel = true;
  EXPECT_EQ(embedding_work(model, split).saved_bytes().count(), 8 * 32 + 32 * 128 / 2);
}

TEST(HeadWork, RunsNormOutputLayerAndLoss) {
  const Work work = head_work(tiny(), split_of(1));
  EXPECT_THAT(names(work.forward), ElementsAre("final_norm", "head", "cross_entropy"));
  EXPECT_THAT(names(work.backward), ElementsAre("cross_entropy.backward", "head.dgrad",
                                                "head.wgrad", "final_norm.backward"));
  EXPECT_EQ(shape(work.forward, "head"), "32 256 128");
  EXPECT_EQ(kernel(work.forward, "cross_entropy").bytes.count(), 14 * 32 * 256);
  EXPECT_EQ(kernel(work.backward, "cross_entropy.backward").bytes.count(), 10 * 32 * 256);
}

// Megatron-LM's vocab_parallel_cross_entropy, operator by operator.
TEST(HeadWork, UnfusedLossPassesOverTheLogitsAgainAndAgain) {
  Split split = split_of(1);
  split.stack.fused_cross_entropy = false;
  const Work work = head_work(tiny(), split);
  EXPECT_EQ(kernel(work.forward, "cross_entropy").bytes.count(),
            (6 + 4 + 8 + 8 + 4 + 8) * 32 * 256);
  EXPECT_EQ(kernel(work.backward, "cross_entropy.backward").bytes.count(), (8 + 6) * 32 * 256);
}

TEST(HeadWork, PadsTheVocabularyBeforeSplittingIt) {
  const Work work = head_work(tiny(), split_of(4));  // 256 -> 512
  EXPECT_EQ(shape(work.forward, "head"), "32 128 128");
  EXPECT_EQ(shape(work.backward, "head.wgrad"), "128 128 32");
  EXPECT_EQ(shape(work.backward, "head.dgrad"), "32 128 128");
}

TEST(HeadWork, ReducesThreeScalarsPerToken) {
  const Work work = head_work(tiny(), split_of(2));
  for (const char* name : {"tp.max", "tp.target", "tp.sum"}) {
    EXPECT_EQ(kernel(work.forward, name).collective, Collective::AllReduce);
    EXPECT_EQ(kernel(work.forward, name).bytes.count(), 4 * 32);
  }
  EXPECT_THAT(awaited(work.forward, "tp.max"), ElementsAre("head"));
  EXPECT_THAT(awaited(work.forward, "cross_entropy"), ElementsAre("tp.max"));
  EXPECT_THAT(awaited(work.forward, "tp.sum"), ElementsAre("cross_entropy"));
  EXPECT_THAT(names_of_kind(work.backward, KernelKind::Collective), ElementsAre("tp.reduce_head"));
  EXPECT_THAT(awaited(work.backward, "final_norm.backward"), ElementsAre("tp.reduce_head"));
}

TEST(HeadWork, GathersItsInputUnderSequenceParallelismAndIsNeverCut) {
  Split split = split_of(2);
  split.sequence_parallel = true;
  split.overlap_tp = true;
  const Work work = head_work(tiny(), split);
  EXPECT_THAT(awaited(work.forward, "head"), ElementsAre("tp.gather_head"));
  EXPECT_THAT(names_of_kind(work.backward, KernelKind::Collective),
              ElementsAre("tp.regather_head", "tp.scatter_head"));
}

// Megatron's estimator for the last stage: 4 s b h (1 + V/h) = norm and head input, fp32 logits.
TEST(HeadWork, KeepsInputsAndFp32Logits) {
  EXPECT_EQ(head_work(tiny(), split_of(1)).saved_bytes().count(), 4 * 32 * 128 + 4 * 32 * 256);
}

}  // namespace
}  // namespace foresail::models
