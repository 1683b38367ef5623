// A sequence that is cut over ranks trains the same model.
#include <gtest/gtest.h>

#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using models::ContextParallel;
using planner::Layout;

constexpr int kSteps = 3;

struct Degrees {
  int cp = 2, tp = 1, pp = 1, dp = 1;
};

Layout layout_of(ContextParallel kind, const Degrees& degrees) {
  Layout layout;
  layout.cp = degrees.cp;
  layout.cp_kind = kind;
  layout.tp = degrees.tp;
  layout.sequence_parallel = degrees.tp > 1;
  layout.pp = degrees.pp;
  layout.dp = degrees.dp;
  return layout;
}

/// Groups of up to 8 ranks, with every other axis.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const ContextParallel kind : kContextKinds) {
    for (const Degrees& degrees : {Degrees{.cp = 2}, Degrees{.cp = 4}, Degrees{.cp = 2, .tp = 2},
                                   Degrees{.cp = 2, .pp = 2}, Degrees{.cp = 2, .dp = 2}}) {
      all.push_back(layout_of(kind, degrees));
    }
    Layout sharded = layout_of(kind, {.cp = 2, .dp = 2});
    sharded.zero_stage = 2;
    sharded.overlap.dp = true;
    all.push_back(sharded);
    sharded = layout_of(kind, {.cp = 2, .tp = 2, .pp = 2});
    sharded.zero_stage = 1;
    sharded.schedule = planner::ScheduleKind::ZbH1;
    all.push_back(sharded);
  }
  return all;
}

/// Rotary positions, grouped queries, SwiGLU, RMSNorm, a window.
void use_windowed_llama(planner::Plan& plan) {
  use_wide_llama(plan);
  plan.model.attention = models::Attention::SlidingWindow;
  plan.model.window = 24;
}

TEST(Context, EveryWayOfCuttingASequenceEqualsOneProcess) {
  const Curve truth = train({.layout = {}}, kSteps);
  for (const Layout& layout : layouts()) {
    if (layout.tp * layout.pp > 1) continue;
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout}, kSteps), truth);
  }
}

TEST(Context, WindowsAndGroupedQueriesSeeTruePositions) {
  const Curve truth = train({.layout = {}, .change = use_windowed_llama}, kSteps);
  for (Layout layout : layouts()) {
    if (layout.cp == 4) layout.recompute = models::Recompute::Selective;
    if (layout.tp == 2) layout.recompute = models::Recompute::Full;
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout, .change = use_windowed_llama}, kSteps), truth);
  }
}

TEST(Context, AWindowNarrowerThanAPieceLeavesBlocksOfARingEmpty) {
  const auto change = [](planner::Plan& plan) {
    plan.model.attention = models::Attention::SlidingWindow;
    plan.model.window = 3;
    plan.model.block = models::Block::Parallel;
    plan.layout.microbatch_size = 2;
  };
  const Curve truth = train({.layout = {}, .change = change}, kSteps);
  for (const ContextParallel kind : kContextKinds) {
    SCOPED_TRACE(to_string(kind));
    expect_equal(train({.layout = layout_of(kind, {.cp = 4}), .change = change}, kSteps), truth);
  }
}

TEST(Context, OpsAndGemmsOfAStepAreThoseOfTheProgramOnEveryRank) {
  for (Layout layout : layouts()) {
    if (layout.cp == 4) layout.recompute = models::Recompute::Selective;
    SCOPED_TRACE(describe(layout));
    expect_step_of_program(
        cli::make_job(make_plan({.layout = layout, .change = use_windowed_llama})));
  }
}

}  // namespace
}  // namespace foresail::testing
