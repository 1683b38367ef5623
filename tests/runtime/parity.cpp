#include "parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "worker_job.h"

namespace foresail::testing {

planner::Layout in_context(models::ContextParallel kind, int cp, int tp) {
  planner::Layout layout;
  layout.cp = cp;
  layout.cp_kind = kind;
  layout.tp = tp;
  layout.sequence_parallel = tp > 1;
  return layout;
}

Curve train(const TinyPlan& tiny, int steps) {
  const std::vector<RankResult> ranks = run_job(cli::make_job(make_plan(tiny)), steps);
  for (const RankResult& rank : ranks) {
    for (int step = 0; step < steps; ++step) {
      const auto at = static_cast<std::size_t>(step);
      EXPECT_EQ(rank.steps[at].loss, ranks.front().steps[at].loss);
      EXPECT_EQ(rank.steps[at].gradient_norm, ranks.front().steps[at].gradient_norm);
    }
  }
  return ranks.front().steps;
}

Distance distance(const Curve& curve, const Curve& truth) {
  Distance worst;
  for (std::size_t step = 0; step < curve.size(); ++step) {
    const double loss = truth[step].loss;
    const double norm = truth[step].gradient_norm;
    worst.loss = std::max(worst.loss, std::abs(curve[step].loss - loss) / loss);
    const double norm_apart = std::abs(curve[step].gradient_norm - norm) / norm;
    if (norm_apart > worst.norm) worst.norm_step = static_cast<int>(step);
    worst.norm = std::max(worst.norm, norm_apart);
  }
  return worst;
}

void expect_equal_in_bf16(const Curve& curve, const Curve& truth) {
  const Distance apart = distance(curve, truth);
  EXPECT_LE(apart.loss, 1e-3);
  EXPECT_LE(apart.norm, 1e-2) << "in step " << apart.norm_step;
}

void expect_equal(const Curve& curve, const Curve& truth) {
  const Distance apart = distance(curve, truth);
  EXPECT_LE(apart.loss, 1e-6);
  EXPECT_LE(apart.norm, 1e-5);
}

}  // namespace foresail::testing
