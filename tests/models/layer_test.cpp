#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels.h"

namespace foresail::models {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// h = 64, 4 heads of 16, ffn 256: small enough to redo every number by hand.
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
  return model;
}

// 2 samples of 8 tokens: T = 16.
Split split_of(int tp = 1) {
  Split split;
  split.tp = tp;
  split.microbatch_size = 2;
  split.sequence_length = 8;
  return split;
}

Split unfused_core(int tp = 1) {
  Split split = split_of(tp);
  split.stack.flash_attention = false;
  return split;
}

TEST(LayerWork, SerialBlockRunsInOrder) {
  const Work work = layer_work(small(), split_of());
  EXPECT_THAT(names(work.forward), ElementsAre("norm1", "qkv", "attention", "proj", "add1", "norm2",
                                               "fc1", "activation", "fc2", "add2"));
  EXPECT_THAT(
      names(work.backward),
      ElementsAre("add2.backward", "fc2.dgrad", "fc2.wgrad", "activation.backward", "fc1.dgrad",
                  "fc1.wgrad", "norm2.backward", "add1.backward", "proj.dgrad", "proj.wgrad",
                  "attention.backward", "qkv.dgrad", "qkv.wgrad", "norm1.backward"));
}

TEST(LayerWork, GemmsHaveTheShapesOfTheSplitLayers) {
  const Work work = layer_work(small(), split_of(2));
  EXPECT_EQ(shape(work.forward, "qkv"), "16 96 64");
  EXPECT_EQ(shape(work.forward, "proj"), "16 64 32");
  EXPECT_EQ(shape(work.forward, "fc1"), "16 128 64");
  EXPECT_EQ(shape(work.forward, "fc2"), "16 64 128");
  EXPECT_EQ(shape(work.backward, "qkv.dgrad"), "16 64 96");
  EXPECT_EQ(shape(work.backward, "qkv.wgrad"), "96 64 16");
  EXPECT_EQ(shape(work.backward, "proj.dgrad"), "16 32 64");
  EXPECT_EQ(shape(work.backward, "proj.wgrad"), "64 32 16");
  EXPECT_EQ(shape(work.backward, "fc1.dgrad"), "16 64 128");
  EXPECT_EQ(shape(work.backward, "fc1.wgrad"), "128 64 16");
  EXPECT_EQ(shape(work.backward, "fc2.dgrad"), "16 128 64");
  EXPECT_EQ(shape(work.backward, "fc2.wgrad"), "64 128 16");
}

TEST(LayerWork, UnfusedAttentionIsBatchedProducts) {
  const Work work = layer_work(small(), unfused_core(2));
  // 2 samples x 2 local heads.
  EXPECT_EQ(shape(work.forward, "attention.scores"), "4 x 8 8 16");
  EXPECT_EQ(shape(work.forward, "attention.context"), "4 x 8 16 8");
  EXPECT_EQ(shape(work.backward, "attention.context.dgrad_probabilities"), "4 x 8 8 16");
  EXPECT_EQ(shape(work.backward, "attention.context.dgrad_values"), "4 x 8 16 8");
  EXPECT_EQ(shape(work.backward, "attention.scores.dgrad_query"), "4 x 8 16 8");
  EXPECT_EQ(shape(work.backward, "attention.scores.dgrad_key"), "4 x 16 8 8");
}

TEST(LayerWork, GroupedQueriesNarrowKeysAndValuesOnly) {
  Model model = small();
  model.kv_heads = 2;
  model.positions = Positions::Rotary;
  const Work work = layer_work(model, split_of(2));
  EXPECT_EQ(shape(work.forward, "qkv"), "16 64 64");  // 32 + 2 * 16
  EXPECT_EQ(shape(work.forward, "proj"), "16 64 32");
  EXPECT_EQ(kernel(work.forward, "rope").bytes.count(), 16 * (32 + 16) * 4);
}

TEST(LayerWork, GatedMlpHasTwiceTheColumns) {
  Model model = small();
  model.activation = Activation::SwiGlu;
  const Work work = layer_work(model, split_of());
  EXPECT_EQ(shape(work.forward, "fc1"), "16 512 64");
  EXPECT_EQ(shape(work.forward, "fc2"), "16 64 256");
  EXPECT_EQ(kernel(work.forward, "activation").bytes.count(), 16 * 256 * 6);
  EXPECT_EQ(kernel(work.backward, "activation.backward").bytes.count(), 16 * 256 * 10);
}

// Bytes per element at 16 bits: norm 4 and 8, bias + dropout + add 8 and 11, plain add 6 and 6,
// GeLU 4 and 6, unfused softmax with dropout 9 and 11.
TEST(LayerWork, MemoryBoundKernelsMoveTheBytesOfTheirTensors) {
  Model model = small();
  model.dropout = true;
  const Work work = layer_work(model, unfused_core());
  const std::int64_t hidden = 16 * 64;
  const std::int64_t scores = 2 * 4 * 8 * 8;
  EXPECT_EQ(kernel(work.forward, "norm1").bytes.count(), 4 * hidden);
  EXPECT_EQ(kernel(work.backward, "norm1.backward").bytes.count(), 8 * hidden);
  EXPECT_EQ(kernel(work.forward, "add1").bytes.count(), 8 * hidden);
  EXPECT_EQ(kernel(work.backward, "add1.backward").bytes.count(), 11 * hidden);
  EXPECT_EQ(kernel(work.forward, "activation").bytes.count(), 4 * 16 * 256);
  EXPECT_EQ(kernel(work.backward, "activation.backward").bytes.count(), 6 * 16 * 256);
  EXPECT_EQ(kernel(work.forward, "softmax").bytes.count(), 9 * scores);
  EXPECT_EQ(kernel(work.backward, "softmax.backward").bytes.count(), 11 * scores);
  const Work plain = layer_work(small(), split_of());
  EXPECT_EQ(kernel(plain.forward, "add1").bytes.count(), 6 * hidden);
  EXPECT_EQ(kernel(plain.backward, "add1.backward").bytes.count(), 6 * hidden);
}

// 2 samples of 2 heads under tp 2 are 4 pairs.
TEST(LayerWork, AFusedSoftmaxThatDoesNotTakeSoManyPairsGoesThroughFp32) {
  Model model = small();
  Split split = unfused_core(2);
  split.stack.fused_softmax_multiple = 4;
  EXPECT_THAT(names(layer_work(model, split).forward), Contains("softmax"));
  EXPECT_THAT(names(layer_work(model, split).forward), Not(Contains("attention.widen")));
  split.stack.fused_softmax_multiple = 8;
  const Work work = layer_work(model, split);
  const std::int64_t scores = 2 * 2 * 8 * 8;
  const auto steps = [&](const std::vector<Kernel>& list) {
    std::vector<std::string> found;
    for (const Kernel& each : list) {
      if (each.kind != KernelKind::Elementwise) continue;
      if (each.name.starts_with("attention.") || each.name.starts_with("softmax")) {
        found.push_back(each.name + " " + std::to_string(each.bytes.count() / scores));
      }
    }
    return found;
  };
  EXPECT_THAT(steps(work.forward),
              ElementsAre("attention.widen 6", "attention.scale 8", "attention.mask 8", "softmax 8",
                          "attention.narrow 6"));
  EXPECT_THAT(
      steps(work.backward),
      ElementsAre("attention.narrow.backward 6", "softmax.backward 12", "attention.mask.backward 8",
                  "attention.scale.backward 8", "attention.widen.backward 6"));
  const auto kept = [&](const std::string& name) {
    const auto found = std::ranges::find(work.saved, name, &SavedTensor::name);
    return found == work.saved.end() ? 0 : found->bytes.count();
  };
  EXPECT_EQ(kept("softmax.wide_output"), 4 * scores);
  EXPECT_EQ(kept("softmax.output"), 2 * scores);
}

TEST(LayerWork, WithoutFusedKernelsEachStepIsAKernel) {
  Model model = small();
  model.dropout = true;
  Split split = unfused_core();
  split.stack.fused_kernels = false;
  const Work work = layer_work(model, split);
  EXPECT_THAT(names(work.forward),
              ElementsAre("norm1", "qkv", "attention.scores", "attention.scale", "attention.mask",
                          "softmax", "attention.dropout", "attention.context", "proj", "proj.bias",
                          "dropout1", "add1", "norm2", "fc1", "fc1.bias", "activation", "fc2",
                          "fc2.bias", "dropout2", "add2"));
  EXPECT_THAT(names(work.backward), Contains("fc1.bias.backward"));
  EXPECT_THAT(names(work.backward), Contains("dropout1.backward"));
}

TEST(LayerWork, WeightGradientsAccumulateInFp32) {
  const Work work = layer_work(small(), split_of());
  EXPECT_EQ(kernel(work.backward, "fc1.wgrad").bytes.count(),
            2 * (256 * 16 + 16 * 64) + 8 * 256 * 64);
  EXPECT_EQ(kernel(work.forward, "fc1").bytes.count(), 2 * (16 * 64 + 64 * 256 + 16 * 256));
  EXPECT_EQ(kernel(work.forward, "fc1").flops.count(), 2.0 * 16 * 256 * 64);
}

// Fused attention skips the causal half: 8 * 9 / 2 = 36 pairs of 64, per sample and head.
TEST(LayerWork, FusedAttentionCountsAttendedPairs) {
  const Work work = layer_work(small(), split_of());
  const Kernel& forward = kernel(work.forward, "attention");
  EXPECT_EQ(forward.flops.count(), 4.0 * 36 * 16 * 4 * 2);
  EXPECT_EQ(forward.heads, 4);
  EXPECT_EQ(forward.query_length, 8);
  EXPECT_EQ(forward.key_length, 8);
  EXPECT_EQ(forward.batch, 2);
  EXPECT_EQ(forward.bytes.count(), 4 * 16 * 64 * 2);
  const Kernel& backward = kernel(work.backward, "attention.backward");
  EXPECT_TRUE(backward.is_backward);
  EXPECT_EQ(backward.flops.count(), 2.5 * forward.flops.count());
}

// FlashAttention 1 runs heads of 96 as heads of 128, those of 16 as 32, and those of 64 as they
// are. The tensors stay as they were.
TEST(LayerWork, PaddedHeadsRunAsTheNextPowerOfTwo) {
  for (const auto& [size, runs_as] : {std::pair{96, 128}, {16, 32}, {64, 64}, {128, 128}}) {
    Model model = small();
    model.head_size = size;
    Split split = split_of();
    const Work plain = layer_work(model, split);
    split.stack.padded_heads = true;
    const Work padded = layer_work(model, split);
    for (const char* pass : {"attention", "attention.backward"}) {
      const bool is_forward = std::string(pass) == "attention";
      const Kernel& before = kernel(is_forward ? plain.forward : plain.backward, pass);
      const Kernel& after = kernel(is_forward ? padded.forward : padded.backward, pass);
      EXPECT_EQ(after.flops.count() * size, before.flops.count() * runs_as) << size;
      EXPECT_EQ(after.bytes, before.bytes);
      EXPECT_EQ(after.head_size, size);
    }
  }
}

// A window of 3 in 8: 1 + 2 + 6 * 3 = 21 pairs. Unfused attention still computes the square.
TEST(LayerWork, WindowsShortenFusedAttentionOnly) {
  Model model = small();
  model.attention = Attention::SlidingWindow;
  model.window = 3;
  EXPECT_EQ(kernel(layer_work(model, split_of()).forward, "attention").flops.count(),
            4.0 * 21 * 16 * 4 * 2);
  EXPECT_EQ(kernel(layer_work(model, unfused_core()).forward, "attention.scores").flops.count(),
            2.0 * 64 * 16 * 4 * 2);
}

struct CollectiveCounts {
  int all_reduce, all_gather, reduce_scatter;
  bool operator==(const CollectiveCounts&) const = default;
};

CollectiveCounts counts(const std::vector<Kernel>& list) {
  return {count_of(list, Collective::AllReduce), count_of(list, Collective::AllGather),
          count_of(list, Collective::ReduceScatter)};
}

// The table of collectives per layer (Megatron-LM, Korthikanti et al. 2022, MegaScale).
TEST(LayerWork, IssuesTheCollectivesOfItsMode) {
  Model parallel = small();
  parallel.block = Block::Parallel;
  Split split = split_of(2);
  Work work = layer_work(small(), split);
  EXPECT_EQ(counts(work.forward), (CollectiveCounts{2, 0, 0}));
  EXPECT_EQ(counts(work.backward), (CollectiveCounts{2, 0, 0}));
  work = layer_work(parallel, split);
  EXPECT_EQ(counts(work.forward), (CollectiveCounts{1, 0, 0}));
  EXPECT_EQ(counts(work.backward), (CollectiveCounts{1, 0, 0}));
  split.recompute = Recompute::Full;
  EXPECT_EQ(counts(layer_work(small(), split).backward), (CollectiveCounts{4, 0, 0}));
  split.sequence_parallel = true;
  EXPECT_EQ(counts(layer_work(small(), split).backward), (CollectiveCounts{0, 6, 4}));
  split.recompute = Recompute::None;
  work = layer_work(small(), split);
  EXPECT_EQ(counts(work.forward), (CollectiveCounts{0, 2, 2}));
  EXPECT_EQ(counts(work.backward), (CollectiveCounts{0, 4, 2}));
  work = layer_work(parallel, split);
  EXPECT_EQ(counts(work.forward), (CollectiveCounts{0, 1, 1}));
  EXPECT_EQ(counts(work.backward), (CollectiveCounts{0, 2, 1}));
}

TEST(LayerWork, CollectivesCarryTheFullTensor) {
  Split split = split_of(4);
  split.sequence_parallel = true;
  const Work work = layer_work(small(), split);
  for (const std::vector<Kernel>& list : {work.forward, work.backward}) {
    for (const Kernel& entry : list) {
      if (entry.kind != KernelKind::Collective) continue;
      EXPECT_EQ(entry.bytes.count(), 16 * 64 * 2) << entry.name;
      EXPECT_EQ(entry.lane, Lane::Tp) << entry.name;
    }
  }
}

TEST(LayerWork, OneRankAloneNeedsNoCollective) {
  Split split = split_of();
  split.sequence_parallel = true;
  split.overlap_tp = true;
  const Work work = layer_work(small(), split);
  EXPECT_THAT(names_of_kind(work.forward, KernelKind::Collective), IsEmpty());
  EXPECT_THAT(names_of_kind(work.backward, KernelKind::Collective), IsEmpty());
}

TEST(LayerWork, ParallelBlockKeepsOneNormOneGatherAndOneAdd) {
  Model model = small();
  model.block = Block::Parallel;
  Split split = split_of(2);
  split.sequence_parallel = true;
  const Work work = layer_work(model, split);
  EXPECT_THAT(names(work.forward),
              ElementsAre("norm1", "tp.gather_qkv", "qkv", "attention", "proj", "fc1", "activation",
                          "fc2", "tp.reduce_fc2", "add2"));
  EXPECT_THAT(names(work.backward),
              ElementsAre("add2.backward", "tp.gather_grad_fc2", "fc2.dgrad", "fc2.wgrad",
                          "activation.backward", "proj.dgrad", "proj.wgrad", "attention.backward",
                          "tp.regather_qkv", "fc1.dgrad", "qkv.dgrad", "tp.scatter_qkv",
                          "fc1.wgrad", "qkv.wgrad", "norm1.backward"));
}

TEST(LayerWork, FullRecomputationRepeatsTheForward) {
  Split split = split_of(2);
  split.recompute = Recompute::Full;
  const Work work = layer_work(small(), split);
  std::vector<std::string> expected;
  for (const std::string& name : names(work.forward)) expected.push_back(name + ".recompute");
  std::vector<std::string> found = names(work.backward);
  found.resize(expected.size());
  EXPECT_EQ(found, expected);
}

TEST(LayerWork, EarlyStopLeavesTheLastGemmOut) {
  Split split = split_of(2);
  split.recompute = Recompute::Full;
  split.stack.early_stop_recompute = true;
  const std::vector<std::string> found = names(layer_work(small(), split).backward);
  EXPECT_THAT(found, Contains("activation.recompute"));
  EXPECT_THAT(found, Not(Contains("fc2.recompute")));
  EXPECT_THAT(found, Not(Contains("tp.reduce_fc2.recompute")));
  EXPECT_THAT(found, Contains("tp.reduce_proj.recompute"));
}

TEST(LayerWork, SelectiveRecomputationRepeatsTheCoreOfUnfusedAttention) {
  Split split = unfused_core();
  split.recompute = Recompute::Selective;
  const Work work = layer_work(small(), split);
  const int at = index_of(work.backward, "attention.scores.recompute");
  EXPECT_EQ(work.backward[static_cast<std::size_t>(at) + 1].name, "softmax.recompute");
  EXPECT_EQ(work.backward[static_cast<std::size_t>(at) + 2].name, "attention.context.recompute");
  EXPECT_EQ(work.backward[static_cast<std::size_t>(at) + 3].name,
            "attention.context.dgrad_probabilities");
  split.stack.flash_attention = true;
  Split none = split;
  none.recompute = Recompute::None;
  EXPECT_EQ(layer_work(small(), split).backward, layer_work(small(), none).backward);
}

TEST(LayerWork, Fp8CastsTheOperandsOfBlockGemmsOnly) {
  Split split = unfused_core();
  split.dtype = DType::Fp8;
  const Work work = layer_work(small(), split);
  EXPECT_EQ(kernel(work.forward, "fc1").dtype, DType::Fp8);
  EXPECT_EQ(kernel(work.forward, "fc1").bytes.count(), 16 * 64 + 64 * 256 + 2 * 16 * 256);
  EXPECT_EQ(kernel(work.forward, "fc1.cast").bytes.count(), 4 * 16 * 64);
  EXPECT_EQ(kernel(work.backward, "fc1.cast_grad").bytes.count(), 4 * 16 * 256);
  EXPECT_EQ(kernel(work.forward, "attention.scores").dtype, DType::Bf16);
  EXPECT_EQ(kernel(work.forward, "norm1").bytes.count(), 4 * 16 * 64);
  EXPECT_EQ(kernel(head_work(small(), split).forward, "head").dtype, DType::Bf16);
}

TEST(LayerWork, ContextParallelRanksShareQueriesAndSeeAllKeys) {
  Model model = small();
  model.kv_heads = 2;
  Split split = split_of();
  split.cp = 2;
  const Work work = layer_work(model, split);
  EXPECT_EQ(shape(work.forward, "qkv"), "8 128 64");  // T = 2 * 8 / 2
  const Kernel& attention = kernel(work.forward, "attention");
  EXPECT_EQ(attention.query_length, 4);
  EXPECT_EQ(attention.key_length, 8);
  EXPECT_EQ(attention.flops.count(), 4.0 * 36 * 16 * 4 * 2 / 2);
  const Kernel& gather = kernel(work.forward, "cp.gather_kv");
  EXPECT_EQ(gather.lane, Lane::Cp);
  EXPECT_EQ(gather.bytes.count(), 2 * 8 * 2 * 32 * 2);  // K and V: s b 2 * 16 elements each
  EXPECT_THAT(awaited(work.forward, "cp.gather_kv"), ElementsAre("qkv"));
  EXPECT_THAT(awaited(work.forward, "attention"), IsEmpty());
  EXPECT_THAT(awaited(work.forward, "proj"), ElementsAre("cp.gather_kv"));
  EXPECT_EQ(kernel(work.backward, "cp.scatter_kv").bytes, gather.bytes);
  EXPECT_THAT(awaited(work.backward, "cp.scatter_kv"), ElementsAre("attention.backward"));
  EXPECT_THAT(awaited(work.backward, "qkv.dgrad"), ElementsAre("cp.regather_kv", "cp.scatter_kv"));
}

TEST(LayerWork, UnfusedAttentionWaitsForAllKeys) {
  Split split = unfused_core();
  split.cp = 2;
  const Work work = layer_work(small(), split);
  EXPECT_THAT(awaited(work.forward, "attention.scores"), ElementsAre("cp.gather_kv"));
  EXPECT_EQ(shape(work.forward, "attention.scores"), "8 x 4 8 16");
}

TEST(LayerWork, Fp32DoublesTheBytesOf16Bits) {
  Split split = split_of(2);
  const Work half = layer_work(small(), split);
  split.dtype = DType::Fp32;
  const Work full = layer_work(small(), split);
  for (const char* name : {"norm1", "qkv", "attention", "add1", "tp.reduce_proj"}) {
    EXPECT_EQ(kernel(full.forward, name).bytes, 2 * kernel(half.forward, name).bytes) << name;
  }
  EXPECT_EQ(full.saved_bytes(), 2 * half.saved_bytes());
}

}  // namespace
}  // namespace foresail::models
