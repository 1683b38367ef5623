// bf16 with fp32 masters: layouts agree with one process as closely as the format allows.
#include <gtest/gtest.h>

#include <algorithm>

#include "drawn_jobs.h"
#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using models::ContextParallel;
using planner::Layout;
using planner::ScheduleKind;

constexpr int kSteps = 30;

void use_larger_batch(planner::Plan& plan) {
  plan.training.global_batch_size = kBf16Batch;
}

void use_bf16(planner::Plan& plan) {
  use_larger_batch(plan);
  plan.training.precision = DType::Bf16;
}

struct Degrees {
  int tp = 1, cp = 1, dp = 1, pp = 1;
};

Layout layout_of(const Degrees& degrees) {
  Layout layout;
  layout.tp = degrees.tp;
  layout.cp = degrees.cp;
  layout.dp = degrees.dp;
  layout.pp = degrees.pp;
  return layout;
}

/// The first few run by default.
std::vector<Layout> layouts() {
  Layout shards = layout_of({.tp = 2, .dp = 2});
  shards.sequence_parallel = true;
  shards.zero_stage = 3;
  shards.overlap.dp = true;
  Layout ring = layout_of({.cp = 2, .dp = 2});
  ring.cp_kind = ContextParallel::Ring;
  ring.zero_stage = 1;
  Layout groups = layout_of({.dp = 4});
  groups.zero_stage = 2;
  groups.shard_size = 2;
  Layout pipeline = layout_of({.tp = 2, .pp = 2});
  pipeline.recompute = models::Recompute::Full;
  Layout split = layout_of({.dp = 2, .pp = 2});
  split.schedule = ScheduleKind::ZbH1;
  split.zero_stage = 2;
  Layout trade = layout_of({.tp = 2, .cp = 2});
  trade.cp_kind = ContextParallel::AllToAll;
  Layout mirrored = layout_of({.pp = 2});
  mirrored.schedule = ScheduleKind::DualPipe;
  mirrored.v = 2;
  return {shards, ring, split, groups, pipeline, trade, mirrored};
}

const Curve& one_process() {
  static const Curve kCurve = train({.layout = {}, .change = use_bf16}, kSteps);
  return kCurve;
}

TEST(Bf16Parity, OneProcessLearnsAsInFp32WithinTheFormat) {
  const Curve whole = train({.layout = {}, .change = use_larger_batch}, kSteps);
  const Curve& curve = one_process();
  EXPECT_LE(curve.back().loss, 0.85 * curve.front().loss);
  const Distance apart = distance(curve, whole);
  EXPECT_LE(apart.loss, 5e-3);
  EXPECT_GE(apart.loss, 1e-6);  // it is another format
}

TEST(Bf16Parity, LayoutsEqualOneProcess) {
  std::vector<Layout> all = layouts();
  all.resize(static_cast<std::size_t>(std::min(parity_layouts(3), static_cast<int>(all.size()))));
  for (const Layout& layout : all) {
    SCOPED_TRACE(describe(layout));
    expect_equal_in_bf16(train({.layout = layout, .change = use_bf16}, kSteps), one_process());
  }
}

TEST(Bf16Parity, OpsBytesAndGemmsAreThoseOfTheProgramOnEveryRank) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    expect_step_of_program(cli::make_job(make_plan({.layout = layout, .change = use_bf16})));
  }
}

}  // namespace
}  // namespace foresail::testing
