// States sharded in groups and copied between them: who waits for whom, and what it costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "foresail/planner/plan.h"
#include "foresail/sim/simulator.h"
#include "test_plans.h"

namespace foresail::sim {
namespace {

using planner::Plan;
using test::make_plan;
using test::run;
using topologies::Routing;

SimulatorOptions folded(Fold fold) {
  SimulatorOptions options;
  options.network.routing = Routing::Spray;
  options.fold = fold;
  return options;
}

/// Fully sharded over `shard_size` of 64 GPUs.
Plan fully_sharded(int shard_size) {
  Plan plan = make_plan(8, 1, 1);
  plan.layout.tp = 1;
  plan.layout.dp = 64;
  plan.layout.sequence_parallel = false;
  plan.layout.zero_stage = 3;
  plan.layout.shard_size = shard_size;
  plan.training.sequence_length = 512;
  plan.training.global_batch_size = 512;
  return plan;
}

TEST(HybridSharding, FoldedEqualsUnfoldedExactly) {
  for (const int shard_size : {2, 4, 8}) {
    for (const int zero : {1, 3}) {
      Plan plan = make_plan(16, 2, 1);  // tp 8, pp 2, dp 8
      plan.layout.zero_stage = zero;
      plan.layout.shard_size = shard_size;
      const StepOutcome one = run(plan, folded(Fold::Auto));
      const StepOutcome all = run(plan, folded(Fold::Off));
      EXPECT_LT(one.units.size(), all.units.size());
      EXPECT_EQ(one.iteration, all.iteration) << "shard_size " << shard_size << " zero " << zero;
    }
  }
}

TEST(HybridSharding, FoldedEqualsUnfoldedWithASlowGpu) {
  Plan plan = make_plan(16, 2, 1);
  plan.layout.shard_size = 2;
  SimulatorOptions options = folded(Fold::Auto);
  options.faults = {{.kind = FaultKind::GpuSlow, .target = "node5.gpu3", .factor = 0.5}};
  const StepOutcome one = run(plan, options);
  options.fold = Fold::Off;
  const StepOutcome all = run(plan, options);
  EXPECT_LT(one.units.size(), all.units.size());
  EXPECT_EQ(one.iteration, all.iteration);
}

// Of 64 GPUs in nodes of 8 the parameters of every layer come over NVLink if 8 share them; with all
// 64 they cross the network in every microbatch. Of the gradients 1/8 crosses once in the first
// case.
TEST(HybridSharding, GroupsWithinANodeSpareTheNetwork) {
  SimulatorOptions options = folded(Fold::Off);
  options.keeps_all_links = true;
  const StepOutcome inside = run(fully_sharded(8), options);
  const StepOutcome everywhere = run(fully_sharded(0), options);
  EXPECT_LT(inside.iteration, everywhere.iteration);
  const auto over_nic = [](const StepOutcome& outcome) {
    std::int64_t bytes = 0;
    for (const LinkLoad& link : outcome.all_links) {
      if (link.name == "leaf0->node0.nic0") bytes += link.carried.count();
    }
    return bytes;
  };
  const program::Program program = planner::lower(fully_sharded(8));
  std::int64_t summed = 0;
  for (const program::Op& op : program.stages[0].ops) {
    if (op.payload == program::Payload::ShardGradients) summed += op.bytes.count();
  }
  // An all-reduce of S bytes over 8 nodes sends 2 * 7/8 S in a ring, up to 2 S in a tree.
  EXPECT_GT(over_nic(inside), 2 * 7 * summed / 8);
  EXPECT_LT(over_nic(inside), 2 * summed);
  EXPECT_GT(over_nic(everywhere), 4 * over_nic(inside));
}

// Jitter makes every replica end its passes at another time. Groups that shard wait for their own
// members first, and sum across behind that.
TEST(HybridSharding, PartsOfAGroupWaitForTheirOwnMembersOnly) {
  Plan plan = make_plan(16, 2, 1);
  plan.layout.shard_size = 2;
  SimulatorOptions options = folded(Fold::Off);
  options.jitter.sigma = 0.05;
  const program::Program program = planner::lower(plan);
  const topologies::Cluster cluster(plan.cluster);
  const StepOutcome outcome = Simulator(cluster, options).run(program, plan.placement);
  const auto ends = [&](Collective kind, program::Payload payload) {
    std::map<std::int64_t, std::set<int>> replicas;  // by end: those that ended together
    for (std::size_t u = 0; u < outcome.units.size(); ++u) {
      if (outcome.units[u].stage != 1) continue;
      std::size_t o = 0;
      for (const program::Op& op : program.stages[1].ops) {
        const bool is_wanted = op.collective == kind && op.payload == payload && op.chunk == 0;
        const auto end = outcome.op_times[u][o++].end.time_since_epoch().count();
        if (is_wanted && op.kind == program::OpKind::Collective) {
          replicas[end].insert(outcome.units[u].replica);
        }
      }
    }
    std::set<std::set<int>> sets;
    for (const auto& [end, together] : replicas) sets.insert(together);
    return sets;
  };
  using Sets = std::set<std::set<int>>;
  EXPECT_EQ(ends(Collective::ReduceScatter, program::Payload::ChunkGradients),
            (Sets{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  // Every sum across meets a member of every group, so both wait for the slowest group.
  EXPECT_EQ(ends(Collective::AllReduce, program::Payload::ShardGradients),
            (Sets{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

}  // namespace
}  // namespace foresail::sim
