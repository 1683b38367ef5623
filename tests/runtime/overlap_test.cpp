// Each overlap switch of a layout hides communication that is exposed without it, by the spans of a
// run over a network whose every transfer takes 10 ms.
#include <gtest/gtest.h>

#include "foresail/report/breakdown.h"
#include "slow_network.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;

constexpr int kSteps = 3;

/// A run of `layout` as a Trace; its first step is left out.
report::Breakdown breakdown_of(const Layout& layout) {
  const planner::Plan plan = make_plan({.layout = layout, .change = [](planner::Plan& made) {
                                          made.training.sequence_length = 256;
                                        }});
  const runtime::Job job = cli::make_job(plan);
  runtime::LocalNetwork network{std::chrono::seconds(60)};
  JobHooks hooks;
  hooks.endpoint = [&](RankId) { return slow_endpoint({.network = network}); };
  std::vector<runtime::RankMeasurement> ranks;
  for (RankResult& rank : run_job(job, kSteps, hooks)) {
    runtime::RankMeasurement& made = ranks.emplace_back();
    made.rank = RankId{static_cast<std::uint32_t>(ranks.size() - 1)};
    made.steps = std::move(rank.steps);
    made.spans = std::move(rank.spans);
  }
  return report::break_down(job.program, runtime::make_trace(job, "test", ranks));
}

// Fully sharded: layers are gathered in front of every pass and reduced behind every backward pass.
TEST(Overlap, ParametersArePrefetchedAndGradientsLeaveDuringBackwardPasses) {
  Layout layout;
  layout.dp = 2;
  layout.zero_stage = 3;
  const double without = to_seconds(breakdown_of(layout).dp_exposed);
  layout.overlap.dp = true;
  EXPECT_LT(to_seconds(breakdown_of(layout).dp_exposed), 0.8 * without);
}

TEST(Overlap, PassesDoNotWaitForTheirOwnSends) {
  Layout layout;
  layout.pp = 2;
  const double without = to_seconds(breakdown_of(layout).pp_exposed);
  layout.overlap.pp = true;
  EXPECT_LT(to_seconds(breakdown_of(layout).pp_exposed), 0.9 * without);
}

}  // namespace
}  // namespace foresail::testing
