// Worked values of Megatron-LM's estimator: 175B (h 12288, L 96, a 96, V 51200, s 2048, b 1) on
// tp 8 * pp 8 with sequence parallelism. Its 174.58e9 parameters leave out biases and positions, so
// the model here has none; then 2.797e9 stand on the loaded rank, tensor by tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "foresail/planner/plan.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using program::MemoryNeed;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

double gib(Bytes bytes) {
  return static_cast<double>(bytes.count()) / kGiB;
}
double states(const MemoryNeed& need) {
  return gib(need.parameters + need.gradients + need.optimizer);
}

models::Model gpt_175b() {
  models::Model model;
  model.name = "gpt_175b";
  model.layers = 96;
  model.hidden = 12288;
  model.heads = 96;
  model.kv_heads = 96;
  model.head_size = 128;
  model.ffn = 4 * 12288;
  model.vocab = 51200;
  model.biases = false;
  model.positions = models::Positions::Rotary;
  model.dropout = true;
  return model;
}

Plan plan_175b(int dp, int zero_stage) {
  Layout layout = pipeline(8, 1, 0);
  layout.tp = 8;
  layout.dp = dp;
  layout.sequence_parallel = true;
  layout.zero_stage = zero_stage;
  Plan plan = plan_of(gpt_175b(), layout, 64);
  plan.training.sequence_length = 2048;
  return plan;
}

// 18 bytes per parameter; with the distributed optimizer 6 + 12/d.
TEST(Memory, StatesOf175bAreThoseOfTheEstimator) {
  EXPECT_NEAR(states(memory_need(plan_175b(1, 0), 0)), 46.89, 0.005);
  struct Worked {
    int dp;
    double gib;
  };
  for (const Worked& row :
       {Worked{2, 31.26}, Worked{8, 19.54}, Worked{64, 16.12}, Worked{192, 15.79}}) {
    EXPECT_NEAR(states(memory_need(plan_175b(row.dp, 1), 0)), row.gib, 0.005) << row.dp;
  }
}

TEST(Memory, Fp32TakesSixteenBytesPerParameter) {
  Plan plan = plan_175b(1, 0);
  plan.training.precision = DType::Fp32;
  const MemoryNeed need = memory_need(plan, 0);
  EXPECT_EQ(need.gradients, need.parameters);
  EXPECT_EQ(need.optimizer, 2 * need.parameters);
  EXPECT_NEAR(gib(need.parameters), 46.89 * 4 / 18, 0.005);
  plan = plan_175b(8, 1);
  plan.training.precision = DType::Fp32;
  EXPECT_NEAR(states(memory_need(plan, 0)), 46.89 * (8 + 8.0 / 8) / 18, 0.005);
}

TEST(Memory, PipelineKeepsZeroTwosGradientsWhole) {
  EXPECT_EQ(memory_need(plan_175b(8, 2), 0), memory_need(plan_175b(8, 1), 0));
}

// Without a pipeline ZeRO-2 keeps a shard and one bucket on its way, ZeRO-3 also shards parameters.
TEST(Memory, ZeroTwoAndThreeShardWithoutPipeline) {
  Layout layout;
  layout.dp = 4;
  layout.overlap.dp = true;
  models::Model model = plain_model(8);
  model.tied_embeddings = false;
  Plan plan = plan_of(model, layout, 2);
  const MemoryNeed whole = memory_need(plan, 0);
  plan.layout.zero_stage = 2;
  const MemoryNeed two = memory_need(plan, 0);
  EXPECT_EQ(two.parameters, whole.parameters);
  EXPECT_NEAR(gib(4 * two.gradients), gib(whole.gradients), 1e-6);
  EXPECT_GT(two.buffers, whole.buffers);
  plan.layout.zero_stage = 3;
  const MemoryNeed three = memory_need(plan, 0);
  EXPECT_NEAR(gib(4 * three.parameters), gib(whole.parameters), 1e-6);
  EXPECT_NEAR(gib(4 * three.optimizer), gib(whole.optimizer), 1e-6);
  EXPECT_LT(three.peak(), two.peak());
}

// sbh(18 + 4 f/h) L / p for p microbatches = 34 sbh L, token ids 8 s b p and dropout sbh p of the
// embedding, all by t. We keep token ids whole on every tp rank: 8 * 8 s b = 131 kB more. Flash
// attention and selective recomputation drop the 5 a s term alike.
TEST(Memory, ActivationsOf175bAreThoseOfTheEstimator) {
  const Plan plan = plan_175b(8, 1);
  EXPECT_NEAR(gib(memory_need(plan, 0).activations), 9.59, 0.005);
  Plan unfused = plan;
  unfused.stack.flash_attention = false;
  unfused.layout.recompute = models::Recompute::Selective;
  EXPECT_EQ(memory_need(unfused, 0).activations, memory_need(plan, 0).activations);
}

// Times 1 + (p - 1)/(p v) with virtual stages.
TEST(Memory, InterleavedActivationsAreThoseOfTheEstimator) {
  Plan plan = plan_175b(8, 1);
  plan.layout.v = 6;
  plan.layout.schedule = ScheduleKind::Interleaved;
  // 55 chunks of 2 layers in flight; the embedding's masks count for the 20 of chunk 0 among them,
  // where the estimator multiplies p of them by 1 + (p - 1)/(p v): up to 0.04 GiB apart.
  EXPECT_NEAR(gib(memory_need(plan, 0).activations), 10.98, 0.04);
}

// Stage r of 1F1B has p - r microbatches in flight; all have equal layers.
TEST(Memory, LaterStagesKeepFewerActivations) {
  const Plan plan = plan_175b(8, 1);
  const double unit = gib(memory_need(plan, 6).activations) / 2;
  for (int stage = 1; stage < 7; ++stage) {
    EXPECT_NEAR(gib(memory_need(plan, stage).activations), unit * (8 - stage), 1e-9) << stage;
  }
}

TEST(Memory, GpipeKeepsAllMicrobatches) {
  Plan plan = plan_175b(8, 1);
  plan.layout.schedule = ScheduleKind::Gpipe;
  const double one_f = gib(memory_need(plan_175b(8, 1), 1).activations);
  EXPECT_NEAR(gib(memory_need(plan, 1).activations), one_f * 64 / 7, 1e-9);
}

// 400,000 microbatches of 2^20 samples of 2^15 tokens are some 2^69 bytes: no crash, just too much.
TEST(Memory, AbsurdSumsSaturate) {
  Layout layout = pipeline(2, 1, 0);
  layout.schedule = ScheduleKind::Gpipe;
  layout.microbatch_size = 1 << 20;
  Plan plan = plan_of(plain_model(2), layout, 400'000);
  plan.training.sequence_length = 1 << 15;
  const Feasibility result = check(plan);
  EXPECT_TRUE(result.broken.empty());
  EXPECT_FALSE(result.is_feasible());
  EXPECT_EQ(result.memory.at(0).activations, Bytes(std::int64_t{1} << 60));
}

TEST(Memory, LongGroupsBufferWhatArrivesEarly) {
  Layout layout = pipeline(4, 2, 4);
  Plan plan = plan_of(plain_model(8), layout, 14);
  const auto buffers = [&](int group, int stage) {
    plan.layout.group_size = group;
    return memory_need(plan, stage).buffers;
  };
  const Bytes message(64 * 1024 * 2);
  // 14 = 7 + 7: G - p = 3 more tensors at both ends of the seam, none in the middle.
  EXPECT_EQ(buffers(7, 0), buffers(5, 0) + 2 * message);
  EXPECT_EQ(buffers(7, 3), buffers(5, 3) + 2 * message);
  EXPECT_EQ(buffers(7, 1), buffers(5, 1));
}

TEST(Feasibility, FittingPlanIsFeasible) {
  const Feasibility result = check(plan_of(plain_model(4), pipeline(2, 1, 0), 2));
  EXPECT_TRUE(result.is_feasible());
  EXPECT_EQ(result.memory.size(), 2u);
  EXPECT_EQ(result.memory_limit, Bytes(80'000'000'000));
  EXPECT_TRUE(result.out_of_memory.empty());
}

TEST(Feasibility, ExcessNamesTheWorstStageAndItsParts) {
  Plan plan = plan_175b(1, 0);
  plan.cluster.device.memory = 40_GiB;
  const Feasibility result = check(plan);
  EXPECT_TRUE(result.broken.empty());
  EXPECT_FALSE(result.is_feasible());
  EXPECT_THAT(result.out_of_memory,
              testing::MatchesRegex("stage 0 needs [0-9.]+ GiB of 40.0 GiB: parameters 5.21 GiB, "
                                    "gradients 10.4 GiB, optimizer 31.3 GiB, activations 9.59 GiB, "
                                    "buffers [0-9.]+ [GM]iB"));
}

TEST(Feasibility, BrokenLawsAreAnAnswer) {
  Plan plan = plan_of(plain_model(4), pipeline(2, 1, 0), 2);
  plan.model.layers = 3;
  const Feasibility result = check(plan);
  ASSERT_EQ(result.broken.size(), 1u);
  EXPECT_EQ(result.broken[0].name, "layers_by_stages");
  EXPECT_TRUE(result.memory.empty());
  EXPECT_FALSE(result.is_feasible());
}

TEST(Feasibility, PlacementMustBeOneToOne) {
  const Plan plan = plan_of(plain_model(4), pipeline(2, 1, 0), 2);
  const auto message = [&](std::vector<std::uint32_t> devices) {
    Plan changed = plan;
    changed.placement = {};
    for (const std::uint32_t device : devices) {
      changed.placement.device_of.push_back(DeviceId{device});
    }
    const auto broken = check(changed).broken;
    return broken.empty() ? "" : broken.front().message;
  };
  EXPECT_EQ(message({1, 0}), "");
  EXPECT_EQ(message({0}), "the placement has 1 ranks, must have 2");
  EXPECT_EQ(message({0, 2}), "rank 1 is placed on device 2, but the cluster has 2 devices");
  EXPECT_EQ(message({1, 1}), "ranks 0 and 1 are both placed on device 1");
}

TEST(Feasibility, RanksOfAHostShareItsMemory) {
  Plan plan = plan_of(plain_model(4), pipeline(2, 1, 0), 2);
  plan.cluster.node.memory = 8_GiB;
  EXPECT_EQ(check(plan).memory_limit, 4_GiB);
  plan.cluster.device.memory = 3_GiB;
  EXPECT_EQ(check(plan).memory_limit, 3_GiB);
}

}  // namespace
}  // namespace foresail::planner
