// The bound against the simulator, and the search against trying everything.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/search.h"
#include "random_plans.h"

namespace foresail::scenarios {
namespace {

using planner::BoundKind;
using planner::Candidate;
using planner::Layout;
using planner::Plan;
using planner::ScheduleKind;
using planner::SearchOutcome;
using planner::SearchProblem;

bool is_legal(const Plan& plan) {
  return planner::check_laws(plan.model, plan.layout, plan.training,
                             plan.cluster.nodes * plan.cluster.node.devices)
      .empty();
}

TEST(StepBound, NeverExceedsTheSimulatedStep) {
  int legal = 0;
  double tightness = 0;
  std::map<ScheduleKind, int> kinds;
  for (std::uint64_t seed = 0; legal < 600; ++seed) {
    Draw draw(seed);
    Plan plan = random_job(draw);
    plan.layout = random_layout(draw, plan);
    if (!is_legal(plan)) continue;
    ++legal;
    ++kinds[plan.layout.schedule];
    const topologies::Cluster cluster(plan.cluster);
    const auto cost = search_cost(plan, cluster);
    plan.message_cost = planner::message_cost(plan, *cost);
    const double step = to_seconds(cost->step(planner::lower(plan), plan.placement));
    const double coarse = planner::step_bound(plan, BoundKind::Coarse, *cost);
    const double fine = planner::step_bound(plan, BoundKind::Fine, *cost);
    const std::string what = fmt::format("seed {}: {}", seed, describe(plan.layout));
    ASSERT_GT(coarse, 0) << what;
    ASSERT_LE(coarse, fine) << what;
    ASSERT_LE(fine, step) << what << ", by " << fine - step << " s";
    tightness += fine / step;
  }
  // Not only true, but of use: on average within a fifth of the step.
  EXPECT_GT(tightness / legal, 0.8);
  EXPECT_EQ(kinds.size(), 7u);
  for (const auto& [kind, count] : kinds) EXPECT_GE(count, 20) << to_string(kind);
}

// Collisions and hashing only lengthen a step: the bound also holds for the scenario's own routes.
TEST(StepBound, HoldsUnderHashedRoutes) {
  int legal = 0;
  for (std::uint64_t seed = 5000; legal < 60; ++seed) {
    Draw draw(seed);
    Plan plan = random_job(draw);
    plan.layout = random_layout(draw, plan);
    if (!is_legal(plan)) continue;
    ++legal;
    plan.network.routing = topologies::Routing::Ecmp;
    const topologies::Cluster cluster(plan.cluster);
    const double bound = planner::step_bound(plan, BoundKind::Fine, *search_cost(plan, cluster));
    const sim::StepOutcome outcome = predict(plan, {.fold = sim::Fold::Off}).outcome;
    ASSERT_LE(bound, to_seconds(outcome.iteration))
        << fmt::format("seed {}: {}", seed, describe(plan.layout));
  }
}

planner::Recomputation block_of(int layers) {
  planner::Recomputation made(models::Recompute::Full);
  made.method = planner::CheckpointMethod::Block;
  made.layers = layers;
  return made;
}

/// Some of the choices of every axis.
SearchProblem random_problem(Draw& draw) {
  SearchProblem problem;
  problem.base = random_job(draw);
  // Little memory, so that some layouts do not fit.
  if (draw.coin()) problem.base.cluster.device.memory = Bytes(draw.of({1, 4, 16}) * 1'000'000'000L);
  planner::SearchSpace& space = problem.space;
  space.tp = draw.coin() ? std::vector{1, 2} : std::vector{2, 4};
  space.pp = draw.coin() ? std::vector{1, 2} : std::vector{4};
  space.v = {1, 2};
  space.schedule = draw.of<std::vector<planner::ScheduleKind>>(
      {{ScheduleKind::Gpipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::Interleaved},
       {ScheduleKind::ZbH1, ScheduleKind::ZbV, ScheduleKind::Interleaved},
       {ScheduleKind::ZbH2, ScheduleKind::DualPipe},
       {ScheduleKind::DualPipe, ScheduleKind::ZbH1, ScheduleKind::OneForwardOneBackward}});
  space.microbatch_size =
      draw.coin() ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{2, 1};
  space.sequence_parallel = {draw.between(0, 1)};
  space.zero_stage = draw.coin() ? std::vector{1, 2} : std::vector{0, 3};
  space.recompute = {draw.of({models::Recompute::None, models::Recompute::Full})};
  if (draw.coin()) space.recompute.push_back(block_of(draw.between(1, 2)));
  space.overlap_tp = {draw.between(0, 1)};
  space.overlap_pp = {1};
  using Messages = std::vector<planner::DataMessages>;
  const planner::DataMessages gradients(true, false), parameters(false, true);
  space.overlap_dp = draw.of({Messages{true, false}, Messages{true}, Messages{gradients, true},
                              Messages{parameters, gradients}});
  space.overlap_aligned = draw.of(
      {Messages{false}, Messages{false, true}, Messages{gradients, false}, Messages{parameters}});
  if (draw.coin()) space.gpus = {8, problem.base.cluster.nodes * problem.base.cluster.node.devices};
  if (space.gpus.size() == 2 && space.gpus[1] == 8) space.gpus = {8};
  if (draw.coin()) space.shard_size = {0, 2};
  if (draw.coin()) {
    problem.base.model.layers -= 1;
    space.stages.resize(3);
    space.stages[0].account_for_loss = true;
    space.stages[1].last = 1;
  }
  if (!problem.base.cluster.node.host.empty() && draw.coin()) {
    space.optimizer_offload = {0, 1};
    // Little of that, too.
    if (draw.coin()) problem.base.cluster.node.host.memory = Bytes(1'000'000'000);
  }
  problem.objective = draw.of({planner::Objective::StepTime, planner::Objective::TokensPerGpu});
  return problem;
}

/// Every layout of the space, one by one, without laws of its own: what planner::check says.
std::vector<Candidate> try_everything(const SearchProblem& problem,
                                      const program::CostModel& cost) {
  const planner::SearchSpace& space = problem.space;
  const int devices = problem.base.cluster.nodes * problem.base.cluster.node.devices;
  std::vector<Candidate> all = {{}};
  const auto vary = [&](const auto& choices, const auto& set) {
    std::vector<Candidate> more;
    for (const Candidate& each : all) {
      for (const auto& choice : choices) {
        more.push_back(each);
        set(more.back().layout, choice);
      }
    }
    all = std::move(more);
  };
  vary(space.gpus.empty() ? std::vector{devices} : space.gpus, [](Layout& l, int n) { l.dp = n; });
  vary(space.tp, [](Layout& l, int n) { l.tp = n; });
  vary(space.pp, [](Layout& l, int n) { l.pp = n; });
  vary(space.v, [](Layout& l, int n) { l.v = n; });
  vary(space.schedule, [](Layout& l, ScheduleKind kind) { l.schedule = kind; });
  vary(space.microbatch_size, [](Layout& l, std::int64_t n) { l.microbatch_size = n; });
  vary(space.sequence_parallel, [](Layout& l, int n) { l.sequence_parallel = n != 0; });
  vary(space.zero_stage, [](Layout& l, int n) { l.zero_stage = n; });
  vary(space.stages, [](Layout& l, const planner::StageLayers& s) { l.stages = s; });
  vary(space.shard_size, [](Layout& l, int n) { l.shard_size = n; });
  vary(space.optimizer_offload, [](Layout& l, double n) { l.optimizer_offload = n; });
  vary(space.recompute, [](Layout& l, const planner::Recomputation& r) { l.recompute = r; });
  vary(space.overlap_tp, [](Layout& l, int n) { l.overlap.tp = n != 0; });
  vary(space.overlap_pp, [](Layout& l, int n) { l.overlap.pp = n != 0; });
  vary(space.overlap_dp, [](Layout& l, planner::DataMessages m) { l.overlap.dp = m; });
  vary(space.overlap_aligned, [](Layout& l, planner::DataMessages m) { l.overlap.aligned = m; });
  std::vector<Candidate> feasible;
  for (Candidate& each : all) {
    const int gpus = each.layout.dp;
    if (gpus % (each.layout.tp * each.layout.pp) != 0) continue;
    each.layout.dp = gpus / (each.layout.tp * each.layout.pp);
    Plan plan = problem.base;
    plan.layout = each.layout;
    plan.placement = program::Placement::identity(gpus);
    if (!planner::check(plan).is_feasible()) continue;
    plan.message_cost = planner::message_cost(plan, cost);
    each.step_s = to_seconds(cost.step(planner::lower(plan), plan.placement));
    const bool is_per_gpu = problem.objective == planner::Objective::TokensPerGpu;
    each.objective = each.step_s * (is_per_gpu ? gpus : 1);
    feasible.push_back(each);
  }
  return feasible;
}

TEST(Search, EqualsExhaustiveSearchOn200Spaces) {
  int infeasible = 0;
  std::int64_t simulated = 0;
  std::size_t tried = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Draw draw(10'000 + seed);
    const SearchProblem problem = random_problem(draw);
    const topologies::Cluster cluster(problem.base.cluster);
    const auto cost = search_cost(problem.base, cluster);
    const SearchOutcome outcome = planner::search(problem, {}, *cost);
    const std::vector<Candidate> all = try_everything(problem, *cost);
    ASSERT_TRUE(outcome.is_proved) << "seed " << seed;
    ASSERT_EQ(outcome.simulated.empty(), all.empty()) << "seed " << seed;
    simulated += static_cast<std::int64_t>(outcome.simulated.size());
    tried += all.size();
    if (all.empty()) {
      ++infeasible;
      continue;
    }
    const auto best = std::ranges::min_element(all, {}, &Candidate::objective);
    ASSERT_EQ(outcome.simulated.front().objective, best->objective)
        << "seed " << seed << ": found " << describe(outcome.simulated.front().layout) << ", best "
        << describe(best->layout);
  }
  EXPECT_GT(infeasible, 0);
  EXPECT_LT(infeasible, 100);
  // The bound must spare most of the work, or it is no search.
  EXPECT_LT(static_cast<double>(simulated), 0.6 * static_cast<double>(tried));
}

}  // namespace
}  // namespace foresail::scenarios
