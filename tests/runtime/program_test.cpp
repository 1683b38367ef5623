// What runs is what the Program says: ops, kernels, GEMM shapes.
#include <gtest/gtest.h>

#include "foresail/base/error.h"
#include "observed_step.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using runtime::Job;

struct NamedPlan {
  std::string name;
  TinyPlan tiny;
};

planner::Layout layout_of(int tp, int pp, int dp, int v) {
  planner::Layout layout;
  layout.tp = tp;
  layout.pp = pp;
  layout.dp = dp;
  layout.v = v;
  layout.overlap.pp = v > 1;
  if (v > 1) layout.schedule = planner::ScheduleKind::Interleaved;
  return layout;
}

planner::Layout with_shards(planner::Layout layout) {
  layout.sequence_parallel = true;
  return layout;
}

void use_narrow_llama(planner::Plan& plan) {
  use_llama_parts(plan);
  plan.model.ffn = 256;
}

/// MegaScale's model: parallel block, sliding window.
void use_megascale_parts(planner::Plan& plan) {
  plan.model.block = models::Block::Parallel;
  plan.model.attention = models::Attention::SlidingWindow;
  plan.model.window = 16;
}

planner::Layout with_schedule(planner::Layout layout, planner::ScheduleKind kind) {
  layout.schedule = kind;
  return layout;
}

std::vector<NamedPlan> plans() {
  return {
      {"one process", {.layout = {}}},
      {"tp 2", {.layout = layout_of(2, 1, 1, 1)}},
      {"tp 2, sequence parallel", {.layout = with_shards(layout_of(2, 1, 1, 1))}},
      {"tp 4, sequence parallel", {.layout = with_shards(layout_of(4, 1, 1, 1))}},
      {"tp 2 pp 2 v 2", {.layout = layout_of(2, 2, 1, 2)}},
      {"pp 4", {.layout = layout_of(1, 4, 1, 1)}},
      {"dp 2 pp 2", {.layout = layout_of(1, 2, 2, 1)}},
      {"tied, tp 2 pp 2", {.layout = with_shards(layout_of(2, 2, 1, 1)), .model = "gpt_tiny_tied"}},
      {"synchronous tp",
       {.layout = with_shards(layout_of(2, 1, 1, 1)),
        .change = [](planner::Plan& plan) { plan.stack.async_tensor_parallel = false; }}},
      {"two samples per microbatch",
       {.layout = with_shards(layout_of(2, 1, 1, 1)),
        .change = [](planner::Plan& plan) { plan.layout.microbatch_size = 2; }}},
      {"full recomputation",
       {.layout = with_shards(layout_of(2, 1, 1, 1)),
        .change = [](planner::Plan& plan) { plan.layout.recompute = models::Recompute::Full; }}},
      {"selective recomputation",
       {.layout = layout_of(2, 1, 1, 1),
        .change =
            [](planner::Plan& plan) { plan.layout.recompute = models::Recompute::Selective; }}},
      {"parallel block, tp 2 pp 2",
       {.layout = layout_of(2, 2, 1, 1), .change = use_megascale_parts}},
      {"parallel block, zero bubble",
       {.layout = with_schedule(with_shards(layout_of(2, 2, 1, 1)), planner::ScheduleKind::ZbH1),
        .change = use_megascale_parts}},
      {"zero bubble V",
       {.layout = with_schedule(with_shards(layout_of(2, 2, 1, 2)), planner::ScheduleKind::ZbV)}},
      {"dualpipe",
       {.layout = with_schedule(layout_of(1, 4, 1, 2), planner::ScheduleKind::DualPipe)}},
      {"llama", {.layout = with_shards(layout_of(2, 1, 1, 1)), .change = use_narrow_llama}}};
}

TEST(Program, OpsAndGemmsOfAStepAreThoseOfTheProgramOnEveryRank) {
  for (const NamedPlan& plan : plans()) {
    SCOPED_TRACE(plan.name);
    expect_step_of_program(cli::make_job(make_plan(plan.tiny)));
  }
}

TEST(Program, EveryKernelOfEveryPassHasASpanInsideItsOp) {
  const Job job = cli::make_job(make_plan({.layout = with_shards(layout_of(2, 2, 1, 2))}));
  const std::vector<RankResult> results = run_job(job, 1);
  for (std::uint32_t rank = 0; rank < results.size(); ++rank) {
    std::map<std::uint32_t, runtime::MeasuredSpan> ops;
    for (const runtime::MeasuredSpan& span : results[rank].spans) {
      if (span.kernel < 0) ops[span.op] = span;
    }
    EXPECT_EQ(ops.size(), job.program.of(RankId{rank}).ops.size());
    std::map<std::uint32_t, std::size_t> kernels;
    for (const runtime::MeasuredSpan& span : results[rank].spans) {
      if (span.kernel < 0) continue;
      ++kernels[span.op];
      EXPECT_LE(ops.at(span.op).start_ns, span.start_ns);
      EXPECT_LE(span.end_ns, ops.at(span.op).end_ns);
    }
    for (const auto& [op, count] : kernels) {
      const program::Op& described = job.program.of(RankId{rank}).ops[program::OpId{op}];
      EXPECT_EQ(count, job.program.kernel_lists[described.kernels.value].kernels.size());
    }
  }
}

TEST(Program, AStageThatRunsOtherKernelsThanPricedIsRefused) {
  Job job = cli::make_job(make_plan({}));
  job.program.kernel_lists[0].kernels[3].name = "proj";
  EXPECT_THROW(run_job(job, 1), ContractViolation);
}

TEST(Program, ACollectiveOfAnotherSizeThanPricedIsRefused) {
  Job job = cli::make_job(make_plan({.layout = layout_of(2, 1, 1, 1)}));
  for (program::KernelList& list : job.program.kernel_lists) {
    for (Kernel& kernel : list.kernels) {
      if (kernel.name == "tp.reduce_proj") kernel.bytes = kernel.bytes + Bytes(4);
    }
  }
  EXPECT_THROW(run_job(job, 1), ContractViolation);
}

TEST(Job, WhatCannotBeExecutedIsRefusedByKeyAndValue) {
  const auto refusal = [](const std::function<void(planner::Plan&)>& change) {
    try {
      runtime::check_supported(cli::make_job(make_plan({.layout = {}, .change = change})));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unsupported);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal([](planner::Plan&) {}), "accepted");
  EXPECT_EQ(refusal([](planner::Plan& plan) {
              plan.model.biases = false;
              plan.model.positions = models::Positions::Rotary;
              plan.model.latent = {.kv_rank = 16, .rope_head_size = 8, .value_head_size = 16};
            }),
            "model.latent_attention.kv_rank: 16 cannot be executed by this version, only ordinary "
            "attention");
  EXPECT_EQ(refusal([](planner::Plan& plan) { plan.training.precision = DType::Fp16; }),
            "training.precision: fp16 cannot be executed by this version, only fp32, bf16");
  EXPECT_EQ(refusal([](planner::Plan& plan) { plan.stack.fused_softmax_multiple = 4; }),
            "stack.fused_softmax_multiple: 4 cannot be executed by this version, only 1");
  EXPECT_EQ(refusal([](planner::Plan& plan) { plan.stack.padded_heads = true; }),
            "stack.padded_heads: true cannot be executed by this version, only false");
  EXPECT_EQ(refusal([](planner::Plan& plan) {
              plan.model.dropout = true;
              plan.stack.fused_kernels = false;
              plan.stack.fused_softmax_multiple = 4;  // of a kernel that is not there
            }),
            "accepted");
}

/// scenarios/megascale_175b_12288, with 4 of its 192 replicas, which a host has room for.
TEST(Job, MegaScalesPlanIsNotRefused) {
  planner::Layout layout;
  layout.tp = layout.pp = 8;
  layout.dp = 4;
  layout.v = 6;
  layout.schedule = planner::ScheduleKind::Interleaved;
  layout.sequence_parallel = true;
  layout.zero_stage = 2;
  layout.overlap = {.tp = true, .pp = true, .dp = true};
  const auto change = [](planner::Plan& plan) {
    plan.training.global_batch_size = 128;
    plan.training.sequence_length = 2048;
    plan.training.precision = DType::Bf16;
    plan.training.optimizer = program::Optimizer::Lamb;
    plan.stack.flash_attention = true;
    plan.stack.fused_cross_entropy = false;
  };
  const planner::Plan plan =
      make_plan({.layout = layout, .model = "megascale_175b_parallel_window", .change = change});
  EXPECT_TRUE(plan.model.dropout);
  EXPECT_NO_THROW(runtime::check_supported(cli::make_job(plan)));
}

}  // namespace
}  // namespace foresail::testing
