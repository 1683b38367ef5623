// Saved tensors against the closed forms of Korthikanti et al. 2022, section 4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "kernels.h"

namespace foresail::models {
namespace {

using ::testing::ElementsAre;

struct Shape {
  const char* model;
  double no_sp, sp, selective, full;  // MiB per layer, b = 1, s = 2048, t = 8
};

constexpr Shape kShapes[] = {{"gpt_22b", 316, 211, 51, 24},
                             {"gpt_175b", 552, 342, 102, 48},
                             {"gpt_530b", 840, 490, 170, 80},
                             {"gpt_1000b", 1050, 612.5, 212.5, 100}};

Split megatron(int tp) {
  Split split;
  split.tp = tp;
  split.sequence_length = 2048;
  split.dtype = DType::Fp16;
  split.stack.flash_attention = false;
  return split;
}

double saved_mib(const Model& model, const Split& split) {
  return static_cast<double>(layer_work(model, split).saved_bytes().count()) / (1 << 20);
}

TEST(SavedTensors, GiveThePublishedTable) {
  for (const Shape& shape : kShapes) {
    const Model model = catalogue_model(shape.model);
    Split split = megatron(8);
    EXPECT_NEAR(saved_mib(model, split), shape.no_sp, 0.5) << shape.model;
    split.recompute = Recompute::Full;
    EXPECT_NEAR(saved_mib(model, split), shape.full, 0.5) << shape.model;
    split.recompute = Recompute::None;
    split.sequence_parallel = true;
    EXPECT_NEAR(saved_mib(model, split), shape.sp, 0.5) << shape.model;
    split.recompute = Recompute::Selective;
    EXPECT_NEAR(saved_mib(model, split), shape.selective, 0.5) << shape.model;
  }
}

// Qi et al. 2024, table 1: 32 s b h from the input half to the weight half, where a forward keeps
// s b h (34 + 5 a s / h): inputs of the linear layers stay, the gradients of their outputs come.
TEST(SavedTensors, WeightHalvesRetainThirtyTwoBytes) {
  for (const Shape& shape : kShapes) {
    const Model model = catalogue_model(shape.model);
    const std::int64_t sbh = 2048 * model.hidden;
    EXPECT_EQ(layer_work(model, megatron(1)).retained_bytes().count(), 32 * sbh) << shape.model;
    // Widths are split; without sequence parallelism the 4 inputs and 4 gradients of width h stay.
    EXPECT_EQ(layer_work(model, megatron(8)).retained_bytes().count(), 8 * sbh + 24 * sbh / 8);
  }
}

// All terms are whole bytes for these shapes, so the sums are equal, not near.
TEST(SavedTensors, EqualTheClosedFormsExactly) {
  for (const Shape& shape : kShapes) {
    const Model model = catalogue_model(shape.model);
    const std::int64_t s = 2048;
    const std::int64_t sbh = s * model.hidden;
    const std::int64_t scores = 5 * model.heads * s * s;  // 5 a s^2 b
    for (const std::int64_t t : {1, 2, 4, 8}) {
      Split split = megatron(static_cast<int>(t));
      const auto saved = [&] { return layer_work(model, split).saved_bytes().count(); };
      EXPECT_EQ(saved(), 10 * sbh + 24 * sbh / t + scores / t);
      split.recompute = Recompute::Selective;
      EXPECT_EQ(saved(), 10 * sbh + 24 * sbh / t);
      split.recompute = Recompute::Full;
      EXPECT_EQ(saved(), 2 * sbh);
      split.sequence_parallel = true;
      EXPECT_EQ(saved(), 2 * sbh / t);
      split.recompute = Recompute::None;
      EXPECT_EQ(saved(), 34 * sbh / t + scores / t);
      split.stack.flash_attention = true;
      EXPECT_EQ(saved(), 34 * sbh / t);
    }
  }
}

// Llama-3 8B, s = 8192: per token norm 2 x 4096, qkv and fc1 input 2 x 4096, q 4096, k and v 1024
// each, projection input 4096, MLP 2 x 14336 and 14336; 2 bytes each, no dropout.
TEST(SavedTensors, FollowFromTheTensorsWhereTheClosedFormDoesNotHold) {
  Split split;
  split.sequence_length = 8192;
  const Work work = layer_work(catalogue_model("llama3_8b"), split);
  EXPECT_EQ(work.saved_bytes().count(),
            8192LL * 2 * (4 * 4096 + 4096 + 2 * 1024 + 4096 + 3 * 14336));
}

TEST(SavedTensors, ParallelBlockSharesOneNormAndOneMask) {
  const Work work = layer_work(catalogue_model("megascale_175b_parallel_window"), Split{});
  std::vector<std::string> found;
  for (const SavedTensor& tensor : work.saved) found.push_back(tensor.name);
  EXPECT_THAT(found, ElementsAre("norm1.input", "qkv.input", "query", "key", "value", "proj.input",
                                 "activation.input", "fc2.input", "dropout_mask2"));
}

TEST(SavedTensors, ShrinkWithTheContextParallelDegree) {
  Split split;
  split.sequence_length = 8192;
  const Model model = catalogue_model("llama3_8b");
  const Bytes whole = layer_work(model, split).saved_bytes();
  split.cp = 4;
  EXPECT_EQ(4 * layer_work(model, split).saved_bytes(), whole);
}

TEST(SavedTensors, Fp8HalvesTheInputsOfLinearLayers) {
  Split split;
  split.sequence_length = 8192;
  const Model model = catalogue_model("llama3_8b");
  const Bytes half = layer_work(model, split).saved_bytes();
  split.dtype = DType::Fp8;
  EXPECT_EQ((half - layer_work(model, split).saved_bytes()).count(), 8192LL * (3 * 4096 + 14336));
}

std::int64_t bytes_of(const std::vector<SavedTensor>& tensors, std::string_view name) {
  std::int64_t bytes = 0;
  for (const SavedTensor& tensor : tensors) {
    if (tensor.name == name) bytes += tensor.bytes.count();
  }
  return bytes;
}

// Gelu, serial, unfused, no dropout, t = 1, in units of a hidden state; P = a s / h for the
// probabilities. When fc1's output has its gradient (4), all but fc2's input (16 - 4 + P) is there,
// beside the gradients of fc2's input (4) and of the layer's output (1): 21 + P. In attention:
// norm1 and qkv input, queries, keys, values, probabilities (5 + P), the gradients of norm2's and
// of the projection's input (2), of the context, values, keys and queries by head (4), of
// probabilities and scores (2 P), and the last three merged (3) into one (3): 17 + 3 P.
TEST(BackwardPeak, LiesInTheMlpOrInAttentionWhicheverHoldsMore) {
  Model model = catalogue_model("gpt_22b");
  model.dropout = false;
  Split split = megatron(1);
  split.dtype = DType::Fp32;
  const auto peak = [&] {
    const std::int64_t sbh = 4 * split.sequence_length * model.hidden;
    const Bytes bytes = sum(layer_work(model, split).backward_peak);
    return static_cast<double>(bytes.count()) / static_cast<double>(sbh);
  };
  // P = 64 * 96 / 6144 = 1: 22 against 20.
  split.sequence_length = 96;
  EXPECT_DOUBLE_EQ(peak(), 22);
  // P = 8: 29 against 41.
  split.sequence_length = 768;
  EXPECT_DOUBLE_EQ(peak(), 41);
}

TEST(BackwardPeak, HoldsTheRecomputedTensors) {
  const Model model = catalogue_model("gpt_22b");
  Split split = megatron(8);
  const Work kept = layer_work(model, split);
  split.recompute = Recompute::Full;
  const Work full = layer_work(model, split);
  // All that would have been saved is there again, and the output that nobody needs.
  const std::int64_t output = bytes_of(full.backward_peak, "layer.output");
  EXPECT_EQ(output, 2LL * 2048 * 6144);
  EXPECT_EQ(sum(full.backward_peak).count(), sum(kept.backward_peak).count() + output);
  EXPECT_LT(sum(full.forward_peak), kept.saved_bytes());
  split.recompute = Recompute::Selective;
  const Work selective = layer_work(model, split);
  EXPECT_LT(selective.saved_bytes(), kept.saved_bytes());
  EXPECT_GT(bytes_of(selective.backward_peak, "softmax.output"), 0);
}

TEST(BackwardPeak, HoldsGatheredTensorsUnderSequenceParallelism) {
  Split split = megatron(8);
  split.sequence_parallel = true;
  split.stack.flash_attention = true;
  const Work work = layer_work(catalogue_model("gpt_22b"), split);
  EXPECT_EQ(bytes_of(work.backward_peak, "gathered_gradient") +
                bytes_of(work.backward_peak, "fc1.gathered_input"),
            2LL * 2048 * 6144);
}

}  // namespace
}  // namespace foresail::models
