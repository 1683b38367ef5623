#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "described_ops.h"
#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using program::Op;
using program::OpId;
using program::OpKind;
using program::Payload;
using program::Program;
using testing::ElementsAre;

std::vector<std::string> communicators(const Program& program) {
  std::vector<std::string> names;
  for (const auto& communicator : program.communicators) names.push_back(communicator.name);
  return names;
}

const Kernel* kernel(const Program& program, const std::string& list, const std::string& name) {
  for (const auto& candidate : program.kernel_lists) {
    if (candidate.name != list) continue;
    for (const Kernel& found : candidate.kernels) {
      if (found.name == name) return &found;
    }
  }
  return nullptr;
}

/// tp 2 with sequence parallelism, dp 2, pp 2, ZeRO-1, tied embeddings, everything overlapped.
Layout megatron_like() {
  Layout layout = pipeline(2, 1, 0);
  layout.tp = 2;
  layout.dp = 2;
  layout.sequence_parallel = true;
  layout.zero_stage = 1;
  layout.overlap.dp = true;
  return layout;
}

TEST(Lower, OneProcessOnlyComputes) {
  const Program program = lower(plan_of(plain_model(2), Layout{}, 2));
  EXPECT_TRUE(program.communicators.empty());
  EXPECT_EQ(program.chunks, 1);
  EXPECT_THAT(lane(program, 0, Lane::Host), ElementsAre("host load_batch"));
  EXPECT_THAT(
      lane(program, 0, Lane::Compute),
      ElementsAre("compute forward chunk 0 microbatch 0", "compute backward chunk 0 microbatch 0",
                  "compute forward chunk 0 microbatch 1", "compute backward chunk 0 microbatch 1",
                  "compute optimizer"));
  EXPECT_EQ(program.stages[0].ops.size(), 6u);
  EXPECT_THAT(awaited(program, 0, "compute forward chunk 0 microbatch 0"),
              ElementsAre("host load_batch"));
}

TEST(Lower, CommunicatorsStandInOneOrderAndHaveMembers) {
  EXPECT_THAT(communicators(lower(plan_of(plain_model(4), megatron_like(), 2))),
              ElementsAre("tp", "dp", "pp", "embedding", "world"));
  Layout layout = megatron_like();
  layout.cp = 2;
  layout.dp = 1;
  models::Model untied = plain_model(4);
  untied.tied_embeddings = false;
  EXPECT_THAT(communicators(lower(plan_of(untied, layout, 2))),
              ElementsAre("tp", "cp", "dp", "pp", "world"));
}

TEST(Lower, EndOfStepFollowsMegatronsOrder) {
  const Program program = lower(plan_of(plain_model(4), megatron_like(), 2));
  EXPECT_TRUE(program::verify(program).empty());
  for (const std::size_t stage : {0u, 1u}) {
    EXPECT_THAT(
        lane(program, stage, Lane::Dp),
        ElementsAre("all_gather embedding_parameters", "all_gather chunk_parameters chunk 0",
                    "reduce_scatter chunk_gradients chunk 0", "reduce_scatter embedding_gradients",
                    "all_reduce step_scalars"));
    EXPECT_EQ(lane(program, stage, Lane::Pp).back(), "all_reduce embedding_gradients");
    EXPECT_THAT(lane(program, stage, Lane::Tp), ElementsAre("all_reduce replicated_gradients"));
    EXPECT_THAT(awaited(program, stage, "reduce_scatter embedding_gradients"),
                ElementsAre("all_reduce embedding_gradients"));
    EXPECT_THAT(awaited(program, stage, "all_reduce step_scalars"),
                ElementsAre("all_reduce replicated_gradients", "reduce_scatter embedding_gradients",
                            "compute backward chunk 0 microbatch 1"));
    EXPECT_THAT(awaited(program, stage, "compute optimizer"),
                ElementsAre("all_reduce step_scalars"));
  }
  EXPECT_THAT(awaited(program, 0, "compute forward chunk 0 microbatch 0"),
              ElementsAre("host load_batch", "all_gather chunk_parameters chunk 0",
                          "all_gather embedding_parameters"));
}

// vocab 128 padded to 256, so each of 2 tp ranks holds 128 rows of 1024: 131072 parameters. Layers
// of 2 stages: 2 each, 12 h^2 / 2 sharded and biases; positions 64 rows on the first stage alone.
TEST(Lower, BytesAreThoseOfTheBuckets) {
  const Program program = lower(plan_of(plain_model(4), megatron_like(), 2));
  EXPECT_EQ(op(program, 0, "all_reduce embedding_gradients").bytes, Bytes(4 * 131072));
  EXPECT_EQ(op(program, 0, "reduce_scatter embedding_gradients").bytes, Bytes(4 * 131072));
  EXPECT_EQ(op(program, 0, "all_gather embedding_parameters").bytes, Bytes(2 * 131072));
  const std::int64_t h = 1024;
  const std::int64_t sharded = 12 * h * h / 2 + (3 * h + 4 * h) / 2;  // qkv and fc1 biases
  const std::int64_t replicated = 4 * h + 2 * h;  // two norms; proj and fc2 biases
  const std::int64_t first = 2 * (sharded + replicated) + 64 * h;
  const std::int64_t last = 2 * (sharded + replicated) + 2 * h;
  EXPECT_EQ(op(program, 0, "reduce_scatter chunk_gradients chunk 0").bytes, Bytes(4 * first));
  EXPECT_EQ(op(program, 1, "reduce_scatter chunk_gradients chunk 0").bytes, Bytes(4 * last));
  EXPECT_EQ(op(program, 0, "all_gather chunk_parameters chunk 0").bytes, Bytes(2 * first));
  EXPECT_EQ(op(program, 0, "all_reduce replicated_gradients").bytes,
            Bytes(4 * (2 * replicated + 64 * h)));
  EXPECT_EQ(op(program, 0, "all_reduce step_scalars").bytes, Bytes(8));
  const Kernel* update = kernel(program, "stage0.optimizer", "optimizer");
  ASSERT_NE(update, nullptr);
  EXPECT_EQ(update->m, first / 2 + 131072 / 2);  // a shard of each bucket
  EXPECT_EQ(update->bytes, Bytes(28 * update->m));
}

// With 11 replicas a bucket that 11 does not divide is padded to the next multiple.
TEST(Lower, ShardedBucketsArePadded) {
  Layout layout;
  layout.dp = 11;
  layout.zero_stage = 1;
  Plan plan = plan_of(plain_model(1), layout, 1);
  const std::int64_t scattered =
      op(lower(plan), 0, "reduce_scatter chunk_gradients chunk 0").bytes.count() / 4;
  plan.layout.zero_stage = 0;
  const std::int64_t reduced =
      op(lower(plan), 0, "all_reduce chunk_gradients chunk 0").bytes.count() / 4;
  EXPECT_NE(reduced % 11, 0);
  EXPECT_EQ(scattered, (reduced / 11 + 1) * 11);
}

TEST(Lower, GradientsWaitForTheirOwnChunkOnlyWithOverlap) {
  Layout layout = pipeline(2, 2, 2);
  layout.dp = 2;
  models::Model model = plain_model(4);
  model.tied_embeddings = false;
  for (const bool overlaps : {false, true}) {
    layout.overlap.dp = overlaps;
    const Program program = lower(plan_of(model, layout, 2));
    EXPECT_TRUE(program::verify(program).empty());
    EXPECT_THAT(lane(program, 0, Lane::Dp),
                ElementsAre("all_reduce chunk_gradients chunk 1",
                            "all_reduce chunk_gradients chunk 0", "all_reduce step_scalars"));
    EXPECT_THAT(awaited(program, 0, "all_reduce chunk_gradients chunk 1"),
                ElementsAre(overlaps ? "compute backward chunk 1 microbatch 1"
                                     : "compute backward chunk 0 microbatch 1"));
  }
}

TEST(Lower, ParametersAreGatheredAtTheEndWithoutOverlap) {
  Layout layout = pipeline(2, 2, 2);
  layout.dp = 2;
  layout.zero_stage = 2;
  const Program program = lower(plan_of(plain_model(4), layout, 2));
  EXPECT_THAT(
      lane(program, 0, Lane::Dp),
      ElementsAre("reduce_scatter chunk_gradients chunk 1",
                  "reduce_scatter chunk_gradients chunk 0", "reduce_scatter embedding_gradients",
                  "all_reduce step_scalars", "all_gather embedding_parameters",
                  "all_gather chunk_parameters chunk 0", "all_gather chunk_parameters chunk 1"));
  EXPECT_THAT(awaited(program, 0, "all_gather chunk_parameters chunk 0"),
              ElementsAre("compute optimizer"));
  EXPECT_THAT(awaited(program, 0, "compute forward chunk 0 microbatch 0"),
              ElementsAre("host load_batch"));
}

TEST(Lower, ZeroTwoWithoutPipelineReducesEveryMicrobatch) {
  Layout layout;
  layout.dp = 2;
  layout.zero_stage = 2;
  layout.overlap.dp = true;
  const Program program = lower(plan_of(plain_model(2), layout, 2));
  EXPECT_TRUE(program::verify(program).empty());
  EXPECT_THAT(lane(program, 0, Lane::Dp),
              ElementsAre("all_gather chunk_parameters chunk 0",
                          "reduce_scatter chunk_gradients chunk 0 microbatch 0",
                          "reduce_scatter chunk_gradients chunk 0 microbatch 1",
                          "all_reduce step_scalars"));
}

TEST(Lower, ZeroThreeGathersEveryPassOneAhead) {
  Layout layout;
  layout.dp = 2;
  layout.zero_stage = 3;
  layout.overlap.dp = true;
  models::Model model = plain_model(2);
  model.tied_embeddings = false;
  const Program program = lower(plan_of(model, layout, 1));
  EXPECT_TRUE(program::verify(program).empty());
  EXPECT_EQ(program.chunks, 2);
  const std::string forward0 = "all_gather chunk_parameters chunk 0 microbatch 0";
  const std::string forward1 = "all_gather chunk_parameters chunk 1 microbatch 0";
  EXPECT_THAT(lane(program, 0, Lane::Dp),
              ElementsAre(forward0, forward1, forward1, forward0,
                          "reduce_scatter chunk_gradients chunk 1 microbatch 0",
                          "reduce_scatter chunk_gradients chunk 0 microbatch 0",
                          "all_reduce step_scalars"));
  // The gather for the third pass may start when the first is over.
  const auto& ops = program.stages[0].ops;
  std::vector<OpId> gathers;
  for (std::uint32_t at = 0; at < ops.size(); ++at) {
    if (ops[OpId{at}].payload == Payload::ChunkParameters) gathers.push_back(OpId{at});
  }
  EXPECT_TRUE(ops[gathers[1]].after.empty());
  EXPECT_THAT(ops[gathers[2]].after,
              ElementsAre(find(program, 0, "compute forward chunk 0 microbatch 0")));
  EXPECT_THAT(op(program, 0, "compute backward chunk 1 microbatch 0").after,
              ElementsAre(gathers[2]));
}

TEST(Lower, MessagesAreShardsOfATensorParallelGroup) {
  const Bytes whole(64 * 1024 * 2);  // T * h * 2 bytes
  Layout layout = pipeline(2, 1, 0);
  layout.tp = 2;
  Plan plan = plan_of(plain_model(4), layout, 2);
  const std::string send = "send activation chunk 0 microbatch 0 to stage 1";
  const std::string gather = "tp.gather_input";

  plan.stack.scatter_gather = false;
  Program program = lower(plan);
  EXPECT_EQ(op(program, 0, send).bytes, whole);
  EXPECT_EQ(kernel(program, "stage1.chunk0.forward", gather), nullptr);

  plan.stack.scatter_gather = true;
  program = lower(plan);
  EXPECT_EQ(2 * op(program, 0, send).bytes, whole);
  for (const std::string list : {"stage1.chunk0.forward", "stage0.chunk0.backward"}) {
    const Kernel* found = kernel(program, list, gather);
    ASSERT_NE(found, nullptr) << list;
    EXPECT_EQ(found->bytes, whole);
    EXPECT_EQ(found->lane, Lane::Tp);
  }
  // Ends of the pipeline receive nothing.
  EXPECT_EQ(kernel(program, "stage0.chunk0.forward", gather), nullptr);
  EXPECT_EQ(kernel(program, "stage1.chunk0.backward", gather), nullptr);

  plan.layout.sequence_parallel = true;
  program = lower(plan);
  EXPECT_EQ(2 * op(program, 0, send).bytes, whole);
  EXPECT_EQ(kernel(program, "stage1.chunk0.forward", gather), nullptr);
}

TEST(Lower, PassesWaitForOwnSendsOnlyWithoutOverlap) {
  Layout layout = pipeline(2, 1, 0);
  const std::string second = "compute forward chunk 0 microbatch 1";
  EXPECT_TRUE(op(lower(plan_of(plain_model(2), layout, 2)), 0, second).after.empty());
  layout.overlap.pp = false;
  EXPECT_THAT(awaited(lower(plan_of(plain_model(2), layout, 2)), 0, second),
              ElementsAre("send activation chunk 0 microbatch 0 to stage 1"));
}

TEST(Lower, OnlyEndsOfThePipelineLoadTokens) {
  const Program program = lower(plan_of(plain_model(3), pipeline(3, 1, 0), 3));
  EXPECT_THAT(lane(program, 0, Lane::Host), ElementsAre("host load_batch"));
  EXPECT_TRUE(lane(program, 1, Lane::Host).empty());
  EXPECT_THAT(awaited(program, 2, "compute forward chunk 0 microbatch 0"),
              ElementsAre("recv activation chunk 0 microbatch 0 from stage 1", "host load_batch"));
}

TEST(Lower, MicrobatchesShareTheirKernelLists) {
  const Program program = lower(plan_of(plain_model(4), pipeline(2, 2, 2), 4));
  std::vector<std::string> names;
  for (const auto& list : program.kernel_lists) names.push_back(list.name);
  EXPECT_THAT(
      names, ElementsAre("stage0.chunk0.forward", "stage0.chunk0.backward", "stage0.chunk1.forward",
                         "stage0.chunk1.backward", "stage0.optimizer", "stage1.chunk0.forward",
                         "stage1.chunk0.backward", "stage1.chunk1.forward",
                         "stage1.chunk1.backward", "stage1.optimizer"));
}

// Layers of 12 h^2 = 50 M parameters for h = 2048: one per bucket of at least 40 M, and with 100
// replicas (buckets of 100 M) two.
TEST(Buckets, HoldAtLeastFortyMillionParameters) {
  models::Model model = plain_model(6);
  model.hidden = 2048;
  model.head_size = 256;
  model.ffn = 8192;
  Layout layout;
  layout.dp = 2;
  layout.overlap.dp = true;
  Plan plan = plan_of(model, layout, 1);
  EXPECT_EQ(chunk_count(plan), 6);
  EXPECT_TRUE(stage_part(plan, 0, 0).has_embedding);
  EXPECT_TRUE(stage_part(plan, 0, 5).has_head);
  EXPECT_FALSE(stage_part(plan, 0, 5).has_embedding);
  const Program program = lower(plan);
  EXPECT_TRUE(program::verify(program).empty());
  // Chunk 0 and chunk 5 use the tied matrix: a bucket of its own, after chunk 0's backward.
  EXPECT_THAT(awaited(program, 0, "all_reduce embedding_gradients"),
              ElementsAre("compute backward chunk 0 microbatch 0"));
  plan = plan_of(model, layout, 1);
  plan.layout.dp = 100;
  plan.training.global_batch_size = 100;
  EXPECT_EQ(chunk_count(plan), 3);
  plan.layout.overlap.dp = false;
  EXPECT_EQ(chunk_count(plan), 1);
  plan.layout.zero_stage = 3;
  EXPECT_EQ(chunk_count(plan), 6);
  plan.layout.dp = 1;
  EXPECT_EQ(chunk_count(plan), 1);
}

TEST(StagePart, ChunksGoRoundTheStages) {
  const Plan plan = plan_of(plain_model(16), pipeline(4, 2, 4), 8);
  EXPECT_EQ(stage_part(plan, 0, 0).first_layer, 0);
  EXPECT_EQ(stage_part(plan, 0, 0).end_layer, 2);
  EXPECT_EQ(stage_part(plan, 0, 1).first_layer, 8);
  EXPECT_EQ(stage_part(plan, 1, 0).first_layer, 2);
  EXPECT_EQ(stage_part(plan, 3, 1).end_layer, 16);
  EXPECT_TRUE(stage_part(plan, 3, 1).has_head);
  EXPECT_FALSE(stage_part(plan, 3, 0).has_head);
}

TEST(Lower, RefusesABrokenLayout) {
  Plan plan = plan_of(plain_model(3), pipeline(2, 1, 0), 2);
  EXPECT_THROW(lower(plan), ContractViolation);
}

}  // namespace
}  // namespace foresail::planner
