// What runs is what the Program says: ops, kernels, GEMM shapes.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <tuple>

#include "foresail/base/error.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using runtime::Job;
using runtime::Trainer;

/// batch, m, n, k
using GemmShape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

/// GEMMs that torch ran in this thread.
thread_local std::vector<GemmShape> recorded;

std::unique_ptr<at::ObserverContext> record(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name != "aten::mm" && name != "aten::addmm" && name != "aten::bmm") return nullptr;
  // addmm has the summand in front.
  const std::size_t first = name == "aten::addmm" ? 1 : 0;
  const at::Tensor a = function.inputs()[first].toTensor();
  const at::Tensor b = function.inputs()[first + 1].toTensor();
  const bool is_batched = name == "aten::bmm";
  recorded.emplace_back(is_batched ? a.size(0) : 1, a.size(-2), b.size(-1), a.size(-1));
  return nullptr;
}

std::vector<GemmShape> sorted(std::vector<GemmShape> shapes) {
  std::ranges::sort(shapes);
  return shapes;
}

std::vector<GemmShape> gemms_of_program(const Job& job, RankId rank) {
  std::vector<GemmShape> shapes;
  for (const program::Op& op : job.program.of(rank).ops) {
    if (op.kind != program::OpKind::Compute) continue;
    for (const Kernel& kernel : job.program.kernel_lists[op.kernels.value].kernels) {
      if (kernel.kind != KernelKind::Gemm) continue;
      shapes.emplace_back(kernel.batch, kernel.m, kernel.n, kernel.k);
    }
  }
  return sorted(shapes);
}

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

/// Llama's parts: rotary positions, grouped queries, SwiGLU, RMSNorm, no biases.
void use_llama_parts(planner::Plan& plan) {
  plan.model.kv_heads = 2;
  plan.model.ffn = 256;
  plan.model.activation = models::Activation::SwiGlu;
  plan.model.norm = models::Norm::RmsNorm;
  plan.model.positions = models::Positions::Rotary;
  plan.model.max_positions = 0;
  plan.model.biases = false;
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
      {"llama", {.layout = with_shards(layout_of(2, 1, 1, 1)), .change = use_llama_parts}}};
}

/// What one rank did in one step.
struct Observed {
  std::vector<GemmShape> gemms;
  std::map<Lane, std::vector<program::OpId>> executed;
  std::string digest;
};

std::map<RankId, Observed> observe_step(const Job& job) {
  JobHooks hooks;
  hooks.before = [](Trainer& trainer, RankId) {
    trainer.run_on_compute_lane([] {
      recorded.clear();
      at::addThreadLocalCallback(at::RecordFunctionCallback(record).needsInputs(true));
    });
  };
  std::mutex mutex;
  std::map<RankId, Observed> by_rank;
  hooks.after = [&](Trainer& trainer, RankId rank) {
    trainer.run_on_compute_lane([&] {
      const std::scoped_lock lock(mutex);
      by_rank[rank].gemms = sorted(recorded);
      by_rank[rank].executed = trainer.executed();
    });
  };
  const std::vector<RankResult> results = run_job(job, 1, hooks);
  for (auto& [rank, observed] : by_rank) {
    observed.digest = results[rank.value].steps.front().executed_digest;
  }
  return by_rank;
}

Observed expected_of(const Job& job, RankId rank) {
  Observed expected;
  expected.gemms = gemms_of_program(job, rank);
  program::ProgramDigest digest;
  const auto& ops = job.program.of(rank).ops;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    expected.executed[ops[program::OpId{i}].lane].push_back(program::OpId{i});
    digest.add(job.program, rank, program::OpId{i});
  }
  expected.digest = digest.hex();
  return expected;
}

TEST(Program, OpsAndGemmsOfAStepAreThoseOfTheProgramOnEveryRank) {
  for (const NamedPlan& plan : plans()) {
    SCOPED_TRACE(plan.name);
    const Job job = cli::make_job(make_plan(plan.tiny));
    const std::map<RankId, Observed> ranks = observe_step(job);
    EXPECT_EQ(static_cast<int>(ranks.size()), job.program.grid.world_size());
    for (const auto& [rank, observed] : ranks) {
      SCOPED_TRACE(rank.value);
      const Observed expected = expected_of(job, rank);
      EXPECT_FALSE(observed.gemms.empty());
      EXPECT_EQ(observed.gemms, expected.gemms);
      EXPECT_EQ(observed.executed, expected.executed);
      EXPECT_EQ(observed.digest, expected.digest);
    }
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
  EXPECT_EQ(refusal([](planner::Plan& plan) { plan.model.dropout = true; }),
            "model.dropout: true cannot be executed by this version, only false");
  EXPECT_EQ(refusal([](planner::Plan& plan) {
              plan.model.experts = {.count = 4, .per_token = 2, .ffn = 32};
              plan.layout.sequence_parallel = plan.layout.tp > 1;
            }),
            "model.experts.count: 4 cannot be executed by this version, only dense models");
  EXPECT_EQ(refusal([](planner::Plan& plan) {
              plan.model.biases = false;
              plan.model.positions = models::Positions::Rotary;
              plan.model.latent = {.kv_rank = 16, .rope_head_size = 8, .value_head_size = 16};
            }),
            "model.latent_attention.kv_rank: 16 cannot be executed by this version, only ordinary "
            "attention");
  EXPECT_EQ(refusal([](planner::Plan& plan) { plan.training.precision = DType::Bf16; }),
            "training.precision: bf16 cannot be executed by this version, only fp32");
  EXPECT_EQ(refusal([](planner::Plan& plan) { plan.stack.flash_attention = true; }),
            "stack.flash_attention: true cannot be executed by this version, only false");
  EXPECT_EQ(refusal([](planner::Plan& plan) { plan.layout.zero_stage = 3; }),
            "layout.zero_stage: 3 cannot be executed by this version, only 0, 1, 2");
}

}  // namespace
}  // namespace foresail::testing
