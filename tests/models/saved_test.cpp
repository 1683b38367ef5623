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

TEST(WorkingSet, HoldsTheRecomputedTensors) {
  const Model model = catalogue_model("gpt_22b");
  Split split = megatron(8);
  const Work kept = layer_work(model, split);
  split.recompute = Recompute::Full;
  const Work full = layer_work(model, split);
  EXPECT_EQ(full.working_set - kept.working_set, kept.saved_bytes());
  split.recompute = Recompute::Selective;
  const Work selective = layer_work(model, split);
  EXPECT_EQ(selective.working_set - kept.working_set, kept.saved_bytes() - selective.saved_bytes());
}

TEST(WorkingSet, HoldsGatheredTensorsUnderSequenceParallelism) {
  const Model model = catalogue_model("gpt_22b");
  Split split = megatron(8);
  const Bytes whole = layer_work(model, split).working_set;
  split.sequence_parallel = true;
  EXPECT_EQ((layer_work(model, split).working_set - whole).count(), 2 * 2 * 2048LL * 6144);
}

}  // namespace
}  // namespace foresail::models
