// Every layout trains the same model: weights, data and loss depend on the seed alone.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "parity.h"

namespace foresail::testing {
namespace {

constexpr int kSteps = 20;        // of every legal layout
constexpr int kVariantSteps = 8;  // of its variants

/// One process is the truth; trained once per model.
const Curve& one_process(const std::string& model) {
  static std::map<std::string, Curve> curves;
  if (!curves.contains(model)) curves[model] = train({.layout = {}, .model = model}, kSteps);
  return curves[model];
}

TEST(Parity, OneProcessLearns) {
  const Curve& curve = one_process("gpt_tiny");
  EXPECT_NEAR(curve.front().loss, std::log(256.0), 0.1);
  EXPECT_LE(curve.back().loss, 0.85 * curve.front().loss);
}

TEST(Parity, EveryLegalLayoutOfFourRanksEqualsOneProcess) {
  const std::vector<planner::Layout> layouts = legal_layouts(4);
  EXPECT_GE(layouts.size(), 13u);
  for (const planner::Layout& layout : layouts) {
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout}, kSteps), one_process("gpt_tiny"));
  }
}

TEST(Parity, SequenceParallelismChangesNothing) {
  for (planner::Layout layout : legal_layouts(4)) {
    if (layout.tp == 1) continue;
    layout.sequence_parallel = true;
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout}, kVariantSteps), one_process("gpt_tiny"));
  }
}

TEST(Parity, ShardedOptimizersChangeNothing) {
  for (planner::Layout layout : legal_layouts(4)) {
    if (layout.dp == 1) continue;
    for (const int zero_stage : {1, 2}) {
      layout.zero_stage = zero_stage;
      layout.sequence_parallel = layout.tp > 1;
      layout.overlap.dp = zero_stage == 2;
      SCOPED_TRACE(describe(layout));
      expect_equal(train({.layout = layout}, kVariantSteps), one_process("gpt_tiny"));
    }
  }
}

/// Schedules that split backward passes, or lay chunks out in a V or twice, on so many ranks.
std::vector<planner::Layout> split_layouts(int ranks) {
  using planner::ScheduleKind;
  std::vector<planner::Layout> legal;
  const planner::Plan plan = make_plan({});
  for (const ScheduleKind kind : {ScheduleKind::Gpipe, ScheduleKind::ZbH1, ScheduleKind::ZbH2,
                                  ScheduleKind::ZbV, ScheduleKind::DualPipe}) {
    for (int pp = 2; pp <= ranks; pp *= 2) {
      planner::Layout layout;
      layout.pp = pp;
      layout.schedule = kind;
      layout.v = kind == ScheduleKind::ZbV || kind == ScheduleKind::DualPipe ? 2 : 1;
      legal.push_back(layout);
      if (2 * pp > ranks) continue;
      layout.tp = 2;
      layout.sequence_parallel = true;
      legal.push_back(layout);
      layout.tp = 1;
      layout.sequence_parallel = false;
      layout.dp = 2;
      layout.zero_stage = 2;
      layout.overlap.dp = true;
      legal.push_back(layout);
    }
  }
  std::erase_if(legal, [&](const planner::Layout& layout) {
    return !planner::check_laws(plan.model, layout, plan.training, layout.world_size()).empty();
  });
  return legal;
}

TEST(Parity, SplitBackwardPassesChangeNothing) {
  const std::vector<planner::Layout> layouts = split_layouts(4);
  EXPECT_GE(layouts.size(), 18u);
  for (const planner::Layout& layout : layouts) {
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout}, kVariantSteps), one_process("gpt_tiny"));
  }
}

void use_megascale_parts(planner::Plan& plan) {
  plan.model.block = models::Block::Parallel;
  plan.model.attention = models::Attention::SlidingWindow;
  plan.model.window = 16;
}

TEST(Parity, ParallelBlocksAndWindowsAreSplitAlike) {
  const Curve truth = train({.layout = {}, .change = use_megascale_parts}, kVariantSteps);
  EXPECT_GT(std::abs(truth.back().loss - one_process("gpt_tiny")[kVariantSteps - 1].loss), 1e-3);
  std::vector<planner::Layout> layouts = legal_layouts(4);
  for (const planner::Layout& layout : split_layouts(4)) layouts.push_back(layout);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    planner::Layout& layout = layouts[i];
    layout.sequence_parallel = layout.tp > 1 && i % 2 == 0;
    if (i % 3 == 0) layout.recompute = models::Recompute::Full;
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout, .change = use_megascale_parts}, kVariantSteps), truth);
  }
}

TEST(Parity, TiedEmbeddingsChangeNothingUnderSplitSchedules) {
  for (const planner::Layout& layout : split_layouts(4)) {
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout, .model = "gpt_tiny_tied"}, kVariantSteps),
                 one_process("gpt_tiny_tied"));
  }
}

TEST(Parity, TiedEmbeddingsChangeNothing) {
  for (planner::Layout layout : legal_layouts(4)) {
    if (layout.pp == 1 && layout.tp == 1) continue;
    layout.zero_stage = layout.dp > 1 ? 1 : 0;
    SCOPED_TRACE(describe(layout));
    expect_equal(train({.layout = layout, .model = "gpt_tiny_tied"}, kVariantSteps),
                 one_process("gpt_tiny_tied"));
  }
}

}  // namespace
}  // namespace foresail::testing
