// Each overlap switch of a layout hides communication that is exposed without it, by the spans of a
// run over a network whose every transfer takes 10 ms.
#include <gtest/gtest.h>

#include <algorithm>

#include "slow_network.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using runtime::MeasuredSpan;

constexpr int kSteps = 3;

/// Seconds for which an op of `lane` runs and no pass does, in the steps behind the first.
double exposed_seconds(const std::vector<MeasuredSpan>& spans, Lane lane) {
  struct Edge {
    std::int64_t time;
    int computing, communicating;
  };
  std::vector<Edge> edges;
  for (const MeasuredSpan& span : spans) {
    if (span.kernel >= 0 || span.step == 0) continue;
    const int computing = span.lane == static_cast<int>(Lane::Compute) ? 1 : 0;
    const int communicating = span.lane == static_cast<int>(lane) ? 1 : 0;
    edges.push_back({span.start_ns, computing, communicating});
    edges.push_back({span.end_ns, -computing, -communicating});
  }
  std::ranges::sort(edges, {}, &Edge::time);
  std::int64_t exposed = 0;
  int computing = 0;
  int communicating = 0;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (i > 0 && communicating > 0 && computing == 0) exposed += edges[i].time - edges[i - 1].time;
    computing += edges[i].computing;
    communicating += edges[i].communicating;
  }
  return 1e-9 * static_cast<double>(exposed);
}

/// Of all ranks together.
double exposed_seconds(const Layout& layout, Lane lane) {
  const planner::Plan plan = make_plan({.layout = layout, .change = [](planner::Plan& made) {
                                          made.training.sequence_length = 256;
                                        }});
  runtime::LocalNetwork network{std::chrono::seconds(60)};
  JobHooks hooks;
  hooks.endpoint = [&](RankId) { return slow_endpoint({.network = network}); };
  double sum = 0;
  for (const RankResult& rank : run_job(cli::make_job(plan), kSteps, hooks)) {
    sum += exposed_seconds(rank.spans, lane);
  }
  return sum;
}

// Fully sharded: layers are gathered in front of every pass and reduced behind every backward pass.
TEST(Overlap, ParametersArePrefetchedAndGradientsLeaveDuringBackwardPasses) {
  Layout layout;
  layout.dp = 2;
  layout.zero_stage = 3;
  const double without = exposed_seconds(layout, Lane::Dp);
  layout.overlap.dp = true;
  EXPECT_LT(exposed_seconds(layout, Lane::Dp), 0.8 * without);
}

// Two chunks a stage: the first that is complete leaves while the other is still computed.
TEST(Overlap, GradientsOfAChunkLeaveWhileOthersAreComputed) {
  Layout layout;
  layout.pp = 2;
  layout.v = 2;
  layout.dp = 2;
  layout.schedule = planner::ScheduleKind::Interleaved;
  layout.zero_stage = 1;
  layout.overlap.pp = true;
  const double without = exposed_seconds(layout, Lane::Dp);
  layout.overlap.dp = true;
  EXPECT_LT(exposed_seconds(layout, Lane::Dp), 0.9 * without);
}

TEST(Overlap, PassesDoNotWaitForTheirOwnSends) {
  Layout layout;
  layout.pp = 2;
  const double without = exposed_seconds(layout, Lane::Pp);
  layout.overlap.pp = true;
  EXPECT_LT(exposed_seconds(layout, Lane::Pp), 0.9 * without);
}

}  // namespace
}  // namespace foresail::testing
