// Dropout, and kernels one by one: layouts train what one process trains, run what the Program
// says, and fused forms equal those written out.
#include <gtest/gtest.h>

#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using models::ContextParallel;
using planner::Layout;
using planner::Plan;
using planner::ScheduleKind;
using Change = std::function<void(Plan&)>;

constexpr int kSteps = 2;

Layout with(const std::function<void(Layout&)>& change) {
  return changed(Layout{}, change);
}

Layout in_shards(int tp) {
  return with([&](Layout& layout) {
    layout.tp = tp;
    layout.sequence_parallel = true;
  });
}

Layout in_pipeline(ScheduleKind kind, int v) {
  return with([&](Layout& layout) {
    layout.pp = 2;
    layout.v = v;
    layout.schedule = kind;
    layout.overlap.pp = v > 1;
  });
}

Layout recomputed(Layout layout, models::Recompute recompute) {
  layout.recompute = recompute;
  return layout;
}

/// Over every axis, with everything that draws a mask again.
std::vector<Layout> layouts() {
  std::vector<Layout> all{
      with([](Layout& layout) { layout.tp = 2; }),
      changed(in_shards(2), [](Layout& layout) { layout.microbatch_size = 2; }),
      changed(recomputed(in_shards(4), models::Recompute::Selective),
              [](Layout& layout) { layout.overlap.tp = true; }),
      recomputed(in_pipeline(ScheduleKind::Interleaved, 2), models::Recompute::Full),
      in_pipeline(ScheduleKind::ZbH1, 1),
      in_pipeline(ScheduleKind::ZbV, 2),
      with([](Layout& layout) {
        layout.dp = 4;
        layout.zero_stage = 3;
        layout.shard_size = 2;
        layout.recompute = models::Recompute::Selective;
      })};
  for (const ContextParallel kind : kContextKinds) {
    all.push_back(recomputed(in_context(kind, 2, 2), models::Recompute::Selective));
  }
  all.push_back(in_context(ContextParallel::Ring, 4));
  return all;
}

std::vector<Layout> few_layouts() {
  return {changed(in_shards(2), [](Layout& layout) { layout.dp = 2; }),
          in_pipeline(ScheduleKind::ZbH1, 1), in_context(ContextParallel::Ring, 2),
          in_context(ContextParallel::AllToAll, 2)};
}

/// All `changes`, one behind the other.
Change both(const Change& first, const Change& second) {
  return [=](Plan& plan) {
    first(plan);
    second(plan);
  };
}

void use_dropout(Plan& plan) {
  plan.model.dropout = true;
}

void use_flash(Plan& plan) {
  plan.stack.flash_attention = true;
  plan.training.sequence_length = 192;  // three tiles
}

void use_kernels_one_by_one(Plan& plan) {
  plan.stack.fused_kernels = false;
}

void use_parallel_block(Plan& plan) {
  plan.model.block = models::Block::Parallel;
}

void use_bf16(Plan& plan) {
  plan.training.precision = DType::Bf16;
  plan.training.global_batch_size = kBf16Batch;
}

const Change kGptDropout = use_dropout;
const Change kLlamaDropout = both(use_wide_llama, use_dropout);

void expect_one_process(const Change& change, const std::vector<Layout>& layouts,
                        void (*equal)(const Curve&, const Curve&) = expect_equal) {
  const Curve truth = train({.layout = {}, .change = change}, kSteps);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(describe(layout));
    equal(train({.layout = layout, .change = change}, kSteps), truth);
  }
}

void expect_program(const Change& change, const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(describe(layout));
    expect_step_of_program(cli::make_job(make_plan({.layout = layout, .change = change})));
  }
}

TEST(DropoutParity, EveryLayoutEqualsOneProcess) {
  expect_one_process(kGptDropout, layouts());
}

TEST(DropoutParity, SoItIsWithFusedAttentionGroupedQueriesAndRotaryPositions) {
  std::vector<Layout> some{
      changed(in_shards(2), [](Layout& layout) { layout.microbatch_size = 2; }),
      recomputed(in_pipeline(ScheduleKind::Interleaved, 2), models::Recompute::Full),
      in_pipeline(ScheduleKind::ZbV, 2), in_context(ContextParallel::Ring, 4)};
  for (const ContextParallel kind : kContextKinds) some.push_back(in_context(kind, 2));
  expect_one_process(both(kLlamaDropout, use_flash), some);
}

TEST(DropoutParity, SoItIsInParallelBlocksAndOfExperts) {
  const auto with_experts = [](Layout layout) {
    layout.ep = layout.dp;
    return layout;
  };
  expect_one_process(both(use_parallel_block, use_dropout), few_layouts());
  const std::vector<Layout> some{
      with_experts(with([](Layout& layout) { layout.dp = 2; })),
      with_experts(changed(in_shards(2), [](Layout& layout) { layout.dp = 2; }))};
  expect_one_process(both(use_experts, use_dropout), some);
  expect_one_process(both(use_shared_experts, use_dropout), some);
}

TEST(DropoutParity, InBf16LayoutsEqualOneProcess) {
  expect_one_process(both(kGptDropout, use_bf16),
                     {in_shards(2), in_context(ContextParallel::Ring, 2)}, expect_equal_in_bf16);
  expect_one_process(both(both(kLlamaDropout, use_flash), use_bf16),
                     {in_context(ContextParallel::AllGather, 2)}, expect_equal_in_bf16);
}

TEST(DropoutParity, FusedAttentionEqualsTheScoresWrittenOut) {
  for (const Change& change : {kGptDropout, kLlamaDropout}) {
    const Change flash = both(change, use_flash);
    const auto written_out = [](Plan& plan) { plan.stack.flash_attention = false; };
    const Curve fused = train({.layout = {}, .change = flash}, kSteps);
    expect_equal(fused, train({.layout = {}, .change = both(flash, written_out)}, kSteps));
  }
}

TEST(DropoutParity, RecomputationDrawsTheSameMasks) {
  const Curve truth = train({.layout = {}, .change = kGptDropout}, kSteps);
  for (const auto recompute : {models::Recompute::Selective, models::Recompute::Full}) {
    const Layout layout = recomputed({}, recompute);
    const Curve again = train({.layout = layout, .change = kGptDropout}, kSteps);
    EXPECT_EQ(again.back().loss, truth.back().loss);
  }
}

TEST(DropoutParity, DropoutIsNoiseInTheFirstLoss) {
  const Curve plain = train({.layout = {}}, 1);
  const Curve dropped = train({.layout = {}, .change = kGptDropout}, 1);
  EXPECT_GT(std::abs(dropped[0].loss - plain[0].loss), 1e-4);
  EXPECT_NEAR(dropped[0].loss, plain[0].loss, 0.1);
}

TEST(DropoutParity, OpsAndGemmsAreThoseOfTheProgramOnEveryRank) {
  expect_program(kGptDropout, few_layouts());
  expect_program(both(kLlamaDropout, use_flash), {in_context(ContextParallel::AllGather, 2)});
  expect_program(both(use_parallel_block, use_dropout), {in_shards(2)});
}

TEST(KernelsOneByOne, LossesAreThoseOfFusedKernels) {
  for (const Change& model :
       {Change([](Plan&) {}), kGptDropout, kLlamaDropout, both(use_parallel_block, use_dropout),
        both(use_experts, use_dropout), Change(use_shared_experts)}) {
    const Curve fused = train({.layout = {}, .change = model}, kSteps);
    const Change change = both(model, use_kernels_one_by_one);
    expect_equal(train({.layout = {}, .change = change}, kSteps), fused);
  }
}

TEST(KernelsOneByOne, EveryLayoutEqualsOneProcess) {
  const Change change = both(kGptDropout, use_kernels_one_by_one);
  const Layout again =
      recomputed(in_context(ContextParallel::Ring, 2, 2), models::Recompute::Selective);
  expect_one_process(change, few_layouts());
  expect_one_process(
      both(kLlamaDropout, use_kernels_one_by_one),
      {again, recomputed(in_shards(2), models::Recompute::Full), in_pipeline(ScheduleKind::ZbV, 2),
       in_context(ContextParallel::AllGather, 2)});
  expect_one_process(both(change, use_bf16), {again}, expect_equal_in_bf16);
}

TEST(KernelsOneByOne, OpsAndGemmsAreThoseOfTheProgramOnEveryRank) {
  expect_program(both(kGptDropout, use_kernels_one_by_one), few_layouts());
  for (const Change& model :
       {Change([](Plan&) {}), kLlamaDropout, both(use_parallel_block, use_dropout)}) {
    expect_program(both(model, use_kernels_one_by_one),
                   {in_shards(2), in_pipeline(ScheduleKind::ZbH1, 1)});
  }
  expect_program(both(both(kLlamaDropout, use_flash), use_kernels_one_by_one),
                 {in_context(ContextParallel::AllGather, 2)});
  const Layout experts = with([](Layout& layout) { layout.dp = layout.ep = 2; });
  for (const Change& model : {Change(use_experts), Change(use_shared_experts)}) {
    const auto with_room = [](Plan& plan) { plan.model.experts.capacity_factor = 2; };
    expect_program(both(both(model, with_room), use_kernels_one_by_one), {experts});
  }
}

}  // namespace
}  // namespace foresail::testing
