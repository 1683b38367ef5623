// Parameters that are sharded, and shards that are held by several groups.
#include <gtest/gtest.h>

#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using planner::ScheduleKind;

constexpr int kSteps = 4;

struct Sharding {
  int zero_stage = 3, dp = 2, shard_size = 0;
  bool overlaps = false;
};

Layout layout_of(const Sharding& sharding) {
  Layout layout;
  layout.dp = sharding.dp;
  layout.zero_stage = sharding.zero_stage;
  layout.shard_size = sharding.shard_size;
  layout.overlap.dp = sharding.overlaps;
  return layout;
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const bool overlaps : {false, true}) {
    all.push_back(layout_of({.dp = 2, .overlaps = overlaps}));
    for (const int zero_stage : {1, 2, 3}) {
      all.push_back(
          layout_of({.zero_stage = zero_stage, .dp = 4, .shard_size = 2, .overlaps = overlaps}));
    }
    Layout layout = layout_of({.dp = 2, .overlaps = overlaps});
    layout.tp = 2;
    layout.sequence_parallel = true;
    layout.recompute = models::Recompute::Full;
    all.push_back(layout);
    layout.tp = 1;
    layout.sequence_parallel = false;
    layout.recompute = models::Recompute::None;
    layout.cp = 2;
    layout.cp_kind = models::ContextParallel::Ring;
    layout.shard_size = overlaps ? 2 : 0;
    all.push_back(layout);
    layout = layout_of({.dp = 2, .overlaps = overlaps});
    layout.pp = 2;
    all.push_back(layout);
    layout.v = 2;
    layout.overlap.pp = true;
    layout.schedule = ScheduleKind::Interleaved;
    all.push_back(layout);
    layout.schedule = ScheduleKind::ZbV;
    all.push_back(layout);
  }
  return all;
}

TEST(Sharding, ShardedParametersAndCopiesOfShardsChangeNothing) {
  const std::vector<std::string> models{"gpt_tiny", "gpt_tiny_tied"};
  std::vector<Curve> truths;
  for (const std::string& model : models) {
    truths.push_back(train({.layout = {}, .model = model}, kSteps));
  }
  const std::vector<Layout> all = layouts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t at = i % models.size();
    SCOPED_TRACE(models[at] + ", " + describe(all[i]));
    expect_equal(train({.layout = all[i], .model = models[at]}, kSteps), truths[at]);
  }
}

TEST(Sharding, OpsAndGemmsOfAStepAreThoseOfTheProgramOnEveryRank) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    expect_step_of_program(cli::make_job(make_plan({.layout = layout})));
  }
}

}  // namespace
}  // namespace foresail::testing
