// Each overlap switch of a layout hides communication that is exposed without it, by the spans of a
// run over a slow network.
#include <gtest/gtest.h>

#include "foresail/report/breakdown.h"
#include "slow_network.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;

constexpr int kSteps = 3;

/// 10 ms for everything.
const Slowness kSlow{};
/// 5 ms for a MiB.
const Slowness kNarrow{.delay = std::chrono::milliseconds(0),
                       .per_kib = std::chrono::microseconds(5)};

/// A run over such a network as a Trace; its first step is left out.
report::Breakdown breakdown_of(const TinyPlan& tiny, const Slowness& slowness) {
  const runtime::Job job = cli::make_job(make_plan(tiny));
  runtime::LocalNetwork network{std::chrono::seconds(60)};
  JobHooks hooks;
  hooks.endpoint = [&](RankId) { return slow_endpoint(network, slowness); };
  std::vector<runtime::RankMeasurement> ranks;
  for (RankResult& rank : run_job(job, kSteps, hooks)) {
    runtime::RankMeasurement& made = ranks.emplace_back();
    made.rank = RankId{static_cast<std::uint32_t>(ranks.size() - 1)};
    made.steps = std::move(rank.steps);
    made.spans = std::move(rank.spans);
  }
  return report::break_down(job.program, runtime::make_trace(job, "test", ranks));
}

report::Breakdown breakdown_of(const Layout& layout) {
  return breakdown_of({.layout = layout,
                       .change = [](planner::Plan& made) { made.training.sequence_length = 256; }},
                      kSlow);
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

/// 2048 tokens at once: a GEMM of 0.3 to 0.5 GFLOP beside each MiB that is gathered or reduced.
void use_wide_layers(planner::Plan& plan) {
  plan.model.layers = 2;
  plan.model.head_size = 128;
  plan.model.ffn = 2048;
  plan.training.sequence_length = 256;
}

// Forward, a layer waits for two gathers and two reductions as a whole, or for parts of them; the
// collectives of embedding and output layer are never cut.
TEST(Overlap, PartsOfGemmsRunBesideTensorParallelCollectives) {
  for (const bool sequence_parallel : {true, false}) {
    SCOPED_TRACE(sequence_parallel);
    Layout layout;
    layout.tp = 2;
    layout.sequence_parallel = sequence_parallel;
    layout.microbatch_size = 8;
    const auto exposed = [](const Layout& of) {
      const TinyPlan tiny{.layout = of, .change = use_wide_layers};
      return to_seconds(breakdown_of(tiny, kNarrow).tp_exposed);
    };
    const double without = exposed(layout);
    layout.overlap.tp = true;
    EXPECT_LT(exposed(layout), 0.8 * without);
  }
}

}  // namespace
}  // namespace foresail::testing
