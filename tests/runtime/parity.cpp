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

Distance distance(const Curve& curve, const Curve& truth) {
  Distance worst;
  for (std::size_t step = 0; step < curve.size(); ++step) {
    const double loss = truth[step].loss;
    const double norm = truth[step].gradient_norm;
    worst.loss = std::max(worst.loss, std::abs(curve[step].loss - loss) / loss);
    worst.norm = std::max(worst.norm, std::abs(curve[step].gradient_norm - norm) / norm);
  }
  return worst;
}

void expect_equal_in_bf16(const Curve& curve, const Curve& truth, const Curve& regrouped) {
  for (std::size_t step = 0; step < curve.size(); ++step) {
    const double norm = truth[step].gradient_norm;
    const double noise = std::abs(regrouped[step].gradient_norm - norm) / norm;
    EXPECT_NEAR(curve[step].loss / truth[step].loss, 1, 1e-3) << "step " << step;
    EXPECT_NEAR(curve[step].gradient_norm / norm, 1, std::max(1e-2, 3 * noise)) << "step " << step;
  }
}

void expect_equal(const Curve& curve, const Curve& truth) {
  const Distance apart = distance(curve, truth);
  EXPECT_LE(apart.loss, 1e-6);
  EXPECT_LE(apart.norm, 1e-5);
}

}  // namespace foresail::testing
