/// \file
/// Whether layouts train the same model.
#pragma once

#include <vector>

#include "thread_job.h"

namespace foresail::testing {

using Curve = std::vector<runtime::StepSummary>;

/// Steps of `tiny`; all ranks must agree on losses and norms.
Curve train(const TinyPlan& tiny, int steps);

/// Largest relative differences over all steps of `curve`.
struct Distance {
  double loss = 0, norm = 0;
};
Distance distance(const Curve& curve, const Curve& truth);

/// Losses within 1e-6 and gradient norms within 1e-5 of `truth`, in all steps of `curve`.
void expect_equal(const Curve& curve, const Curve& truth);

}  // namespace foresail::testing
