// The search over experts and kinds of context parallelism: the bound, and trying everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <vector>

#include "foresail/scenarios/search.h"
#include "random_plans.h"

namespace foresail::scenarios {
namespace {

using models::ContextParallel;
using planner::BoundKind;
using planner::Candidate;
using planner::Layout;
using planner::Plan;

Plan mixture_job(Draw& draw) {
  Plan plan = random_job(draw);
  models::Model& model = plan.model;
  model.biases = false;
  model.experts = {.count = 8, .per_token = 2, .ffn = model.hidden};
  model.experts.shared = draw.between(0, 1);
  if (model.experts.shared > 0) model.experts.shared_ffn = model.hidden;
  model.experts.every = draw.of({1, 1, 2});
  model.experts.first_dense_layers = draw.of({0, 1, 3});
  if (draw.coin()) plan.training.expert_load = {{0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}};
  if (draw.coin()) plan.training.optimizer = program::Optimizer::Lamb;
  plan.stack.early_stop_recompute = draw.coin();
  if (draw.coin()) return plan;
  model.positions = models::Positions::Rotary;
  model.kv_heads = model.heads;
  model.latent = {.kv_rank = 128, .query_rank = 0, .rope_head_size = 32, .value_head_size = 64};
  return plan;
}

void draw_experts(Draw& draw, const Plan& plan, Layout& layout) {
  layout.ep = draw.of({1, 2, 4, 8});
  layout.etp = draw.of({0, 1, 1, 2});
  layout.overlap.ep = plan.model.experts.shared > 0 && draw.coin();
  layout.sequence_parallel = layout.tp > 1;
  const int gpus = layout.world_size();
  layout.cp = draw.of({1, 2});
  layout.dp = std::max(1, gpus / (layout.tp * layout.pp * layout.cp));
  if (layout.cp == 1) return;
  layout.cp_kind =
      draw.of({ContextParallel::AllGather, ContextParallel::Ring, ContextParallel::AllToAll});
}

bool is_legal(const Plan& plan) {
  return planner::check_laws(plan.model, plan.layout, plan.training,
                             plan.cluster.nodes * plan.cluster.node.devices)
      .empty();
}

/// Plans of which the bound is held: FORESAIL_BOUND_PLANS, or these.
int bound_plans() {
  constexpr int kUsual = 120;
  const char* given = std::getenv("FORESAIL_BOUND_PLANS");
  return given == nullptr ? kUsual : std::atoi(given);
}

TEST(StepBound, HoldsForExpertsAndKindsOfContextParallelism) {
  int legal = 0;
  int in_groups = 0;
  int in_pieces = 0;
  std::map<ContextParallel, int> kinds;
  for (std::uint64_t seed = 20'000; legal < bound_plans(); ++seed) {
    Draw draw(seed);
    Plan plan = mixture_job(draw);
    plan.layout = random_layout(draw, plan);
    draw_experts(draw, plan, plan.layout);
    const bool needs_adam = plan.layout.optimizer_offload > 0;  // law optimizer_offload_needs_adam
    if (needs_adam) plan.training.optimizer = program::Optimizer::Adam;
    if (!is_legal(plan)) continue;
    ++legal;
    if (plan.layout.cp > 1) ++kinds[plan.layout.cp_kind];
    in_groups += plan.layout.has_copies_of_shards() ? 1 : 0;
    in_pieces += plan.layout.recompute.is_plain() ? 0 : 1;
    const topologies::Cluster cluster(plan.cluster);
    const auto cost = search_cost(plan, cluster);
    plan.message_cost = planner::message_cost(plan, *cost);
    const double step = to_seconds(cost->step(planner::lower(plan), plan.placement));
    const double coarse = planner::step_bound(plan, BoundKind::Coarse, *cost);
    const double fine = planner::step_bound(plan, BoundKind::Fine, *cost);
    const std::string what = "seed " + std::to_string(seed) + ": " + describe(plan.layout);
    ASSERT_GT(coarse, 0) << what;
    ASSERT_LE(coarse, fine) << what;
    ASSERT_LE(fine, step) << what << ", by " << fine - step << " s";
  }
  EXPECT_EQ(kinds.size(), 3u);
  EXPECT_GE(in_groups, 10);
  EXPECT_GE(in_pieces, 20);
}

planner::SearchProblem random_problem(Draw& draw) {
  planner::SearchProblem problem;
  problem.base = mixture_job(draw);
  planner::SearchSpace& space = problem.space;
  space.tp = {1, 2};
  space.pp = {draw.of({1, 2})};
  space.v = {1};
  space.cp = {1, 2};
  space.cp_kind = {ContextParallel::Ring, ContextParallel::AllGather, ContextParallel::AllToAll};
  space.ep = {1, 2, 8};
  space.etp = {0, 1};
  space.overlap_ep = {0};
  space.schedule = {planner::ScheduleKind::OneForwardOneBackward};
  space.microbatch_size = {1};
  space.sequence_parallel = {1, 0};
  space.zero_stage = {draw.of({0, 1, 3})};
  planner::Recomputation some(models::Recompute::Full);
  some.layers = 2;
  if (draw.coin()) some.method = planner::CheckpointMethod::Block;
  if (draw.coin()) {
    some = models::Recompute::Selective;
    some.modules = {.core_attention = false, .norm = true, .activation = true};
  }
  space.recompute = {models::Recompute::None, some};
  space.shard_size = {0, 2};
  space.overlap_tp = {0};
  space.overlap_pp = {1};
  space.overlap_dp = {draw.coin()};
  return problem;
}

/// The best of all layouts, by loops of its own; infinite if none is feasible.
double best_of_all(const planner::SearchProblem& problem, const program::CostModel& cost) {
  const planner::SearchSpace& space = problem.space;
  const int gpus = problem.base.cluster.nodes * problem.base.cluster.node.devices;
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Layout& layout) {
    Plan plan = problem.base;
    plan.layout = layout;
    if (!planner::check(plan).is_feasible()) return;
    plan.message_cost = planner::message_cost(plan, cost);
    best = std::min(best, to_seconds(cost.step(planner::lower(plan), plan.placement)));
  };
  const auto consider_states = [&](Layout layout) {
    for (const planner::Recomputation& recompute : space.recompute) {
      layout.recompute = recompute;
      for (const int size : space.shard_size) {
        layout.shard_size = size;
        consider(layout);
      }
    }
  };
  Layout layout;
  layout.pp = space.pp.front();
  layout.zero_stage = space.zero_stage.front();
  layout.overlap = {false, true, space.overlap_dp.front()};
  for (layout.tp = 1; layout.tp <= 2; ++layout.tp) {
    layout.sequence_parallel = layout.tp > 1;
    for (layout.cp = 1; layout.cp <= 2; ++layout.cp) {
      if (gpus % (layout.tp * layout.cp * layout.pp) != 0) continue;
      layout.dp = gpus / (layout.tp * layout.cp * layout.pp);
      for (const ContextParallel kind : space.cp_kind) {
        layout.cp_kind = kind;
        for (const int ep : space.ep) {
          layout.ep = ep;
          for (const int etp : space.etp) {
            layout.etp = etp;
            consider_states(layout);
          }
        }
      }
    }
  }
  return best;
}

// One replica of all else on 8 ranks of tp, but four copies of each expert: ZeRO matters.
TEST(ExpertSearch, CopiesOfExpertsWithinTpAreShardedToo) {
  Draw draw(30'000);
  planner::SearchProblem problem = random_problem(draw);
  planner::SearchSpace& space = problem.space;
  space.gpus = {8};
  space.tp = {8};
  space.pp = space.cp = {1};
  space.ep = {2};
  space.etp = {1};
  space.sequence_parallel = {1};
  space.zero_stage = {0, 1};
  space.shard_size = {0};
  space.recompute = {models::Recompute::None};
  space.overlap_dp = {false};
  const topologies::Cluster cluster(problem.base.cluster);
  planner::SearchOptions options;
  options.simulated_min = 2;
  const auto outcome = planner::search(problem, options, *search_cost(problem.base, cluster));
  EXPECT_EQ(outcome.equivalent, 0);
  ASSERT_EQ(outcome.simulated.size(), 2u);
  EXPECT_NE(outcome.simulated[0].peak, outcome.simulated[1].peak);
}

TEST(ExpertSearch, EqualsTryingEverything) {
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Draw draw(30'000 + seed);
    const planner::SearchProblem problem = random_problem(draw);
    const topologies::Cluster cluster(problem.base.cluster);
    const auto cost = search_cost(problem.base, cluster);
    const planner::SearchOutcome outcome = planner::search(problem, {}, *cost);
    ASSERT_TRUE(outcome.is_proved) << "seed " << seed;
    const double best = best_of_all(problem, *cost);
    ASSERT_EQ(outcome.simulated.empty(), std::isinf(best)) << "seed " << seed;
    if (outcome.simulated.empty()) continue;
    ++feasible;
    EXPECT_EQ(outcome.simulated.front().step_s, best)
        << "seed " << seed << ": found " << describe(outcome.simulated.front().layout);
  }
  EXPECT_GE(feasible, 4);
}

}  // namespace
}  // namespace foresail::scenarios
