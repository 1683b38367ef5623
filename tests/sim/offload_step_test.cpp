// What it costs a step that the host updates the parameters.
#include <gtest/gtest.h>

#include <cmath>

#include "foresail/planner/plan.h"
#include "foresail/sim/simulator.h"
#include "test_plans.h"

namespace foresail::sim {
namespace {

using planner::Plan;
using test::make_plan;
using test::run;

Plan offloaded(double share) {
  Plan plan = make_plan(8, 2, 1);  // tp 8, pp 2, dp 4: one bucket a stage
  plan.layout.optimizer_offload = share;
  plan.layout.overlap.dp = false;
  plan.cluster.node.host = {Bytes(2'000'000'000'000), Bandwidth::gigabytes_per_second(400),
                            Bandwidth::gigabytes_per_second(25)};
  return plan;
}

double seconds(const Plan& plan, Fold fold = Fold::Auto) {
  SimulatorOptions options;
  options.network.routing = topologies::Routing::Spray;
  options.fold = fold;
  return to_seconds(run(plan, options).iteration);
}

// Bytes of the kernels of that name that the first stage runs, which has the embedding.
double bytes_of(const program::Program& program, const char* name) {
  double bytes = 0;
  for (const program::KernelList& list : program.kernel_lists) {
    const Kernel& kernel = list.kernels.front();
    if (!list.name.starts_with("stage0.") || kernel.name != name) continue;
    bytes += static_cast<double>(kernel.bytes.count());
  }
  return bytes;
}

// Two buckets, with one tied matrix: down, update, up, one after the other, instead of the device's
// update. An eighth of 400 GB/s of host memory is each device's.
TEST(OptimizerOffload, AStepWaitsForCopiesAndTheHost) {
  const program::Program program = planner::lower(offloaded(1));
  const double down = bytes_of(program, "offload.gradients") / 25e9;  // chunk and tied matrix
  const double update = bytes_of(program, "offload.update") / (400e9 / 8);
  const double up = bytes_of(program, "offload.parameters") / 25e9;
  const Plan plan = offloaded(0);
  const topologies::Cluster cluster(plan.cluster);
  Kernel optimizer;
  optimizer.kind = KernelKind::Optimizer;
  optimizer.bytes = Bytes(std::llround(bytes_of(planner::lower(plan), "optimizer")));
  const double device = to_seconds(Simulator(cluster, {}).kernel(optimizer, 1));
  const double expected = down + update + up - device;
  EXPECT_NEAR(seconds(offloaded(1)) - seconds(plan), expected, 0.005 * expected);
}

TEST(OptimizerOffload, ASmallShareHidesBehindTheDevice) {
  const double none = seconds(offloaded(0));
  const double some = seconds(offloaded(0.05));
  const double all = seconds(offloaded(1));
  EXPECT_LT(some - none, 0.06 * (all - none));
}

TEST(OptimizerOffload, FoldedEqualsUnfoldedExactly) {
  EXPECT_EQ(seconds(offloaded(0.5)), seconds(offloaded(0.5), Fold::Off));
}

}  // namespace
}  // namespace foresail::sim
