#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "foresail/sim/simulator.h"
#include "test_clusters.h"
#include "test_plans.h"

namespace foresail::sim {
namespace {

using planner::Plan;
using test::make_plan;
using test::run;
using topologies::Routing;

SimulatorOptions with(Routing routing, Fold fold) {
  SimulatorOptions options;
  options.network.routing = routing;
  options.fold = fold;
  return options;
}

TEST(Step, FoldedEqualsUnfoldedExactlyUnderSpraying) {
  for (const auto& [nodes, pp, v] : {std::tuple{8, 2, 1}, {16, 4, 2}, {12, 2, 4}, {16, 1, 1}}) {
    Plan plan = make_plan(nodes, pp, v);
    if (pp == 2 && v > 1) plan.layout.overlap.pp = true;
    const StepOutcome folded = run(plan, with(Routing::Spray, Fold::Auto));
    const StepOutcome unfolded = run(plan, with(Routing::Spray, Fold::Off));
    EXPECT_LT(folded.units.size(), unfolded.units.size());
    EXPECT_EQ(folded.iteration, unfolded.iteration) << nodes << " nodes, pp " << pp;
    for (std::size_t u = 0; u < folded.units.size(); ++u) {
      const Unit& unit = folded.units[u];
      const auto twin = static_cast<std::size_t>(unit.replica * pp + unit.stage);
      for (std::size_t o = 0; o < folded.op_times[u].size(); ++o) {
        ASSERT_EQ(folded.op_times[u][o].end, unfolded.op_times[twin][o].end);
      }
    }
  }
}

TEST(Step, SaysWhyItDidNotFold) {
  Plan plan = make_plan(8, 2, 1);
  EXPECT_THAT(run(plan, with(Routing::Ecmp, Fold::Auto)).fold_note,
              ::testing::HasSubstr("hashed routes differ"));
  plan.cluster.fabric.leaf_uplinks = 2;  // 2:1
  EXPECT_THAT(run(plan, with(Routing::Spray, Fold::Auto)).fold_note,
              ::testing::HasSubstr("oversubscribed"));
}

TEST(Step, CollisionsOnlyEverCostTime) {
  const Plan plan = make_plan(16, 4, 2);
  const Duration sprayed = run(plan, with(Routing::Spray, Fold::Auto)).iteration;
  Duration hashed_sum{};
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SimulatorOptions options = with(Routing::Ecmp, Fold::Auto);
    options.seed = seed;
    const Duration hashed = run(plan, options).iteration;
    EXPECT_GE(hashed, sprayed);
    hashed_sum += hashed;
  }
  EXPECT_GT(hashed_sum, 5 * sprayed);  // 128 flows on 4 uplinks a leaf do collide
}

TEST(Step, FlowEqualsAnalyticWhereNothingContends) {
  // One replica, one message at a time: pp 2 of one microbatch.
  Plan plan = make_plan(2, 2, 1);
  plan.training.global_batch_size = 1;
  SimulatorOptions analytic = with(Routing::Spray, Fold::Auto);
  analytic.fidelity = Fidelity::Analytic;
  EXPECT_EQ(run(plan, analytic).iteration, run(plan, with(Routing::Spray, Fold::Auto)).iteration);
}

TEST(Step, SameInputSameOutputInEveryThread) {
  const Plan plan = make_plan(16, 4, 2);
  const StepOutcome here = run(plan, with(Routing::Ecmp, Fold::Off));
  std::vector<StepOutcome> there(3);
  {
    std::vector<std::jthread> threads;
    for (StepOutcome& outcome : there) {
      threads.emplace_back([&] { outcome = run(plan, with(Routing::Ecmp, Fold::Off)); });
    }
  }
  for (const StepOutcome& outcome : there) {
    EXPECT_EQ(outcome.iteration, here.iteration);
    EXPECT_EQ(outcome.events, here.events);
    for (std::size_t u = 0; u < here.op_times.size(); ++u) {
      for (std::size_t o = 0; o < here.op_times[u].size(); ++o) {
        ASSERT_EQ(outcome.op_times[u][o].end, here.op_times[u][o].end);
      }
    }
  }
}

TEST(Step, CarriedBytesAreThoseOfTheMessages) {
  // Without dp and tied embeddings all fabric traffic is point-to-point.
  Plan plan = make_plan(2, 2, 1);
  plan.model.tied_embeddings = false;
  const program::Program program = planner::lower(plan);
  std::int64_t sent = 0;
  for (const program::StageProgram& stage : program.stages) {
    for (const program::Op& op : stage.ops) {
      if (op.kind == program::OpKind::Send) sent += op.bytes.count();
    }
  }
  const StepOutcome outcome = run(plan, with(Routing::Ecmp, Fold::Off));
  std::int64_t arrived = 0;
  for (const LinkLoad& link : outcome.links) {
    if (link.name == "leaf0->node0.nic0" || link.name == "leaf0->node1.nic0") {
      arrived += link.carried.count();
    }
  }
  EXPECT_GT(sent, 0);
  EXPECT_EQ(arrived, sent);  // one rank's messages each way on rail 0
}

TEST(Step, SharedCoresSlowTheRanksThatOutnumberThem) {
  // Two ranks on one core take twice as long as on two cores: same work, half the speed.
  Plan plan = make_plan(1, 1, 1);
  plan.cluster.device.kind = topologies::DeviceKind::Cpu;
  plan.cluster.node = {.devices = 2, .nics = 0, .nic_bandwidth = {}, .cores = 2, .memory = 8_GiB};
  plan.cluster.fabric = {};
  plan.layout = {};
  plan.layout.dp = 2;
  plan.training.precision = DType::Fp32;
  plan.training.global_batch_size = 2;
  plan.stack.flash_attention = false;
  plan.placement = program::Placement::identity(2);
  const Duration two = run(plan, {}).iteration;
  plan.cluster.node.cores = 1;
  const Duration one = run(plan, {}).iteration;
  EXPECT_NEAR(to_seconds(one) / to_seconds(two), 2.0, 0.05);  // collectives do not double
}

TEST(Step, RefusesAPlacementOutsideTheCluster) {
  Plan plan = make_plan(2, 2, 1);
  plan.placement.device_of[RankId{3}] = DeviceId{99};
  EXPECT_THROW(run(plan, {}), Error);
}

}  // namespace
}  // namespace foresail::sim
