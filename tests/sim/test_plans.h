/// \file
/// Plans that the simulator's tests share.
#pragma once

#include "foresail/planner/plan.h"
#include "foresail/sim/simulator.h"
#include "test_clusters.h"

namespace foresail::sim::test {

// GPT of 16 layers on `nodes` nodes of 8: tp 8 inside the node, the rest dp x pp.
inline planner::Plan make_plan(int nodes, int pp, int v) {
  planner::Plan plan;
  plan.model.name = "test";
  plan.model.layers = 16;
  plan.model.hidden = 4096;
  plan.model.heads = plan.model.kv_heads = 32;
  plan.model.head_size = 128;
  plan.model.ffn = 16384;
  plan.model.vocab = 51200;
  plan.model.max_positions = 2048;
  plan.cluster = small_clos(nodes);
  plan.layout.tp = 8;
  plan.layout.pp = pp;
  plan.layout.dp = nodes / pp;
  plan.layout.v = v;
  plan.layout.schedule =
      v > 1 ? planner::ScheduleKind::Interleaved : planner::ScheduleKind::OneForwardOneBackward;
  plan.layout.sequence_parallel = true;
  plan.layout.zero_stage = 1;
  plan.layout.overlap = {false, true, true};
  plan.training.global_batch_size = 8 * plan.layout.dp;
  plan.training.sequence_length = 2048;
  plan.placement = program::Placement::identity(8 * nodes);
  return plan;
}

inline StepOutcome run(const planner::Plan& plan, const SimulatorOptions& options) {
  const topologies::Cluster cluster(plan.cluster);
  return Simulator(cluster, options).run(planner::lower(plan), plan.placement);
}

}  // namespace foresail::sim::test
