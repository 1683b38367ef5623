// Scenarios of mixtures of experts.
#include <gtest/gtest.h>

#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {
namespace {

planner::Plan plan_of(const std::string& file) {
  const auto folder = std::filesystem::path(FORESAIL_SOURCE_DIR) / "scenarios";
  return load_scenario(folder / "mixtral_8x7b_256" / (file + ".yaml")).plan;
}

Answer answer_of(const planner::Plan& plan) {
  const planner::Feasibility feasibility = planner::check(plan);
  EXPECT_TRUE(feasibility.is_feasible()) << feasibility.out_of_memory;
  EXPECT_TRUE(program::verify(planner::lower(plan)).empty());
  return simulate(plan, {});
}

TEST(Mixtral, RunsOn256Gpus) {
  const Answer answer = answer_of(plan_of("uniform"));
  ASSERT_TRUE(answer.result.has_value());
  // No run is published for this layout: an MFU between that of a dense job on slow networks and
  // the best that Megatron-Core reports of mixtures.
  EXPECT_GT(answer.result->mfu, 0.25);
  EXPECT_LT(answer.result->mfu, 0.60);
  EXPECT_GT(answer.result->breakdown.ep_exposed.count(), 0);
}

TEST(Mixtral, HotExpertsAndExchangesBetweenNodesCostTime) {
  const Duration uniform = answer_of(plan_of("uniform")).result->iteration_time;
  const Answer across = answer_of(plan_of("across_nodes"));
  EXPECT_GT(answer_of(plan_of("hot")).result->iteration_time, uniform);
  EXPECT_GT(across.result->iteration_time, uniform);
  EXPECT_GT(across.result->breakdown.ep_exposed,
            answer_of(plan_of("uniform")).result->breakdown.ep_exposed);
}

// The counts stand in the Plan, not the name of their file.
TEST(Mixtral, ThePlanHoldsTheLoad) {
  const planner::Plan plan = plan_of("hot");
  const auto file = std::filesystem::path(::testing::TempDir()) / "foresail_mixtral_plan.yaml";
  planner::save_plan(plan, file);
  const planner::Plan loaded = planner::load_plan(file);
  std::filesystem::remove(file);
  EXPECT_EQ(loaded.digest(), plan.digest());
  EXPECT_EQ(loaded.training.expert_load, plan.training.expert_load);
  EXPECT_EQ(loaded.training.expert_load.front().front(), 0.2);
}

}  // namespace
}  // namespace foresail::scenarios
