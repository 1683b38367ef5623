/// \file
/// Whether layouts train the same model.
#pragma once

#include <vector>

#include "thread_job.h"

namespace foresail::testing {

/// The three ways of cutting sequences.
inline constexpr auto kContextKinds = {models::ContextParallel::AllGather,
                                       models::ContextParallel::Ring,
                                       models::ContextParallel::AllToAll};
/// Sequences cut for `cp` ranks, and with `tp` > 1 into shards of tensor parallelism too.
planner::Layout in_context(models::ContextParallel kind, int cp, int tp = 1);

using Curve = std::vector<runtime::StepSummary>;

/// Steps of `tiny`; all ranks must agree on losses and norms.
Curve train(const TinyPlan& tiny, int steps);

/// Largest relative differences over all steps of `curve`.
struct Distance {
  double loss = 0, norm = 0;
  int norm_step = -1;  ///< in which the norms differ most
};
Distance distance(const Curve& curve, const Curve& truth);

/// bf16: samples of a step. With 8, a step whose text is unlike all before (capitals) has a
/// gradient norm that depends on the weights ten times as much as in other steps: an fp32 run whose
/// first weights are off by 2e-3, about what bf16 rounds away, differs by 1 % there.
inline constexpr std::int64_t kBf16Batch = 16;
/// Losses within 1e-3 and gradient norms within 1e-2 of `truth`, in all steps of `curve`.
void expect_equal_in_bf16(const Curve& curve, const Curve& truth);

/// Losses within 1e-6 and gradient norms within 1e-5 of `truth`, in all steps of `curve`.
void expect_equal(const Curve& curve, const Curve& truth);

}  // namespace foresail::testing
