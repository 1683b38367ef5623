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

/// bf16: losses within 1e-3; gradient norms within 1e-2, or within three times what `regrouped`,
/// one process with two samples at a time, differs from `truth` in the same step. Single steps,
/// those whose norm jumps, are so sensitive that this alone changes it by 1 to 2 %.
void expect_equal_in_bf16(const Curve& curve, const Curve& truth, const Curve& regrouped);

/// Losses within 1e-6 and gradient norms within 1e-5 of `truth`, in all steps of `curve`.
void expect_equal(const Curve& curve, const Curve& truth);

}  // namespace foresail::testing
