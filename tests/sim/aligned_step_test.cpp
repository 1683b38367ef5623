// When the stages of an interleaved pipeline start what data parallelism sends, and what it is
// worth.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "test_plans.h"

namespace foresail::sim {
namespace {

using planner::DataMessages;
using planner::Plan;

constexpr int kChunks = 4;

// 16 layers in 4 chunks on each of 4 stages, 4 replicas. Without the head, which makes the passes
// of one stage longer.
Plan plan_with(DataMessages aligned) {
  Plan plan = test::make_plan(16, 4, kChunks);
  plan.model.vocab = 128;
  plan.layout.microbatch_size = 2;
  plan.training.global_batch_size *= 4;
  plan.layout.overlap.aligned = aligned;
  return plan;
}

StepOutcome step(const Plan& plan, Fold fold = Fold::Auto) {
  EXPECT_TRUE(planner::check(plan).broken.empty());
  SimulatorOptions options;
  options.network.routing = topologies::Routing::Spray;
  options.fold = fold;
  return test::run(plan, options);
}

/// Most time between the first and the last stage that starts a message of one chunk, of chunks
/// `from` to `end`.
double spread(const Plan& plan, program::Payload payload, int from, int end) {
  const StepOutcome outcome = step(plan);
  const program::Program program = planner::lower(plan);
  double widest = 0;
  for (int chunk = from; chunk < end; ++chunk) {
    double first = std::numeric_limits<double>::infinity();
    double last = 0;
    for (std::size_t unit = 0; unit < outcome.units.size(); ++unit) {
      const auto stage = static_cast<std::size_t>(outcome.units[unit].stage);
      const auto& ops = program.stages[stage].ops;
      for (std::uint32_t at = 0; at < ops.size(); ++at) {
        const program::Op& op = ops[program::OpId{at}];
        if (op.payload != payload || op.chunk != chunk) continue;
        const double start = to_seconds(outcome.op_times[unit][at].start - SimTime{});
        first = std::min(first, start);
        last = std::max(last, start);
      }
    }
    widest = std::max(widest, last - first);
  }
  return widest;
}

TEST(AlignedStep, StagesStartTheirReductionsTogether) {
  using program::Payload;
  const double alone = spread(plan_with(false), Payload::ChunkGradients, 1, kChunks);
  const double aligned = spread(plan_with(true), Payload::ChunkGradients, 1, kChunks);
  EXPECT_LT(aligned, 0.25 * alone);
  EXPECT_LT(spread(plan_with(true), Payload::ChunkParameters, 2, kChunks), 0.25 * alone);
}

// A pass is slower beside a reduction: if every stage has them at another moment, each holds up all
// others in turn.
TEST(AlignedStep, PassesThatAreSlowerTogetherCostLess) {
  EXPECT_LT(step(plan_with(DataMessages(true, false))).iteration, step(plan_with(false)).iteration);
}

TEST(AlignedStep, FoldedEqualsUnfolded) {
  EXPECT_EQ(step(plan_with(true)).iteration, step(plan_with(true), Fold::Off).iteration);
}

}  // namespace
}  // namespace foresail::sim
