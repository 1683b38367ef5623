#include "parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "worker_job.h"

namespace foresail::testing {

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

void expect_equal(const Curve& curve, const Curve& truth) {
  double worst_loss = 0;
  double worst_norm = 0;
  for (std::size_t step = 0; step < curve.size(); ++step) {
    const double loss = truth[step].loss;
    const double norm = truth[step].gradient_norm;
    worst_loss = std::max(worst_loss, std::abs(curve[step].loss - loss) / loss);
    worst_norm = std::max(worst_norm, std::abs(curve[step].gradient_norm - norm) / norm);
  }
  EXPECT_LE(worst_loss, 1e-6);
  EXPECT_LE(worst_norm, 1e-5);
}

}  // namespace foresail::testing
