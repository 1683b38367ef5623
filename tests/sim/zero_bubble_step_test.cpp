// Steps of zero-bubble, V-shaped and mirrored schedules on a network.
#include <gtest/gtest.h>

#include "foresail/program/verifier.h"
#include "test_plans.h"

namespace foresail::sim {
namespace {

using planner::Plan;
using planner::ScheduleKind;

// 16 layers on 4 stages of 2 replicas, 8 microbatches each.
Plan plan_with(ScheduleKind kind) {
  Plan plan = test::make_plan(8, 4, 1);
  plan.layout.schedule = kind;
  if (kind == ScheduleKind::ZbV || kind == ScheduleKind::DualPipe) plan.layout.v = 2;
  // Without the head, which would make one stage the slowest of any schedule.
  plan.model.vocab = 128;
  // Passes long enough that DualPipe's bubble saves more than its second copy costs in gradients.
  plan.layout.microbatch_size = 8;
  plan.training.global_batch_size *= 8;
  return plan;
}

Duration step(ScheduleKind kind, Fold fold = Fold::Auto) {
  const Plan plan = plan_with(kind);
  EXPECT_TRUE(planner::check(plan).broken.empty());
  EXPECT_TRUE(program::verify(planner::lower(plan)).empty());
  SimulatorOptions options;
  options.network.routing = topologies::Routing::Spray;
  options.fold = fold;
  return test::run(plan, options).iteration;
}

TEST(ZeroBubbleStep, FoldedEqualsUnfolded) {
  for (const auto kind :
       {ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbV, ScheduleKind::DualPipe}) {
    EXPECT_EQ(step(kind), step(kind, Fold::Off)) << to_string(kind);
  }
}

// Bubbles of 9, 3, 3 (0 without the warm-up), 1.5 and 2 passes on top of 24.
TEST(ZeroBubbleStep, FasterThanOneForwardOneBackward) {
  const Duration plain = step(ScheduleKind::OneForwardOneBackward);
  EXPECT_LT(step(ScheduleKind::ZbH1), plain);
  EXPECT_LT(step(ScheduleKind::ZbH2), step(ScheduleKind::ZbH1));
  EXPECT_LT(step(ScheduleKind::ZbV), plain);
  EXPECT_LT(step(ScheduleKind::DualPipe), plain);
}

}  // namespace
}  // namespace foresail::sim
