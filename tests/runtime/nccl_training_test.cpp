// Whole steps over NCCL's stub: the executor's lanes, groups in the Program's order, and the end of
// all ranks when one fails.
#include <gtest/gtest.h>

#include "foresail/base/error.h"
#include "rank_threads.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using runtime::NcclEndpoint;
using std::chrono::milliseconds;
using std::chrono::seconds;

planner::Layout layout_of(int tp, int pp, int dp) {
  planner::Layout layout;
  layout.tp = tp;
  layout.pp = pp;
  layout.dp = dp;
  layout.sequence_parallel = tp > 1;
  return layout;
}

JobHooks over_stub(StubStreams& streams, int ranks) {
  JobHooks hooks;
  hooks.endpoint = [&streams, ranks](RankId rank) {
    NcclEndpoint::Options options;
    options.rank = static_cast<int>(rank.value);
    options.world_size = ranks;
    options.streams = &streams;
    options.library = NcclStub::path();
    options.timeout = seconds(60);
    options.flag_interval = milliseconds(5);
    options.registration = runtime::BufferRegistration::On;
    return std::make_unique<NcclEndpoint>(options);
  };
  return hooks;
}

void expect_equal_steps(const planner::Layout& layout) {
  const planner::Plan plan = make_plan({.layout = layout});
  const runtime::Job job = cli::make_job(plan);
  const auto over_gloo = run_job(job, 3);
  const NcclStub stub({.init_polls = 2, .call_polls = 1});
  StubStreams streams(stub);
  const auto over_nccl = run_job(job, 3, over_stub(streams, layout.world_size()));
  for (std::size_t step = 0; step < 3; ++step) {
    // Sums of up to four terms in another order.
    EXPECT_NEAR(over_nccl[0].steps[step].loss, over_gloo[0].steps[step].loss, 1e-5);
    EXPECT_NEAR(over_nccl[0].steps[step].gradient_norm, over_gloo[0].steps[step].gradient_norm,
                1e-4);
    EXPECT_EQ(over_nccl[0].steps[step].executed_digest, over_gloo[0].steps[step].executed_digest);
  }
  EXPECT_EQ(stub.misuse(), "");
  EXPECT_EQ(stub.counts().live, 0);
  EXPECT_EQ(stub.counts().aborts, 0);
  EXPECT_EQ(stub.counts().inits, layout.world_size());
  EXPECT_EQ(stub.counts().memory_blocks, 0);
}

TEST(NcclTraining, TensorAndDataParallelStepsAreThoseOverGloo) {
  expect_equal_steps(layout_of(2, 1, 2));
}

TEST(NcclTraining, PipelinedStepsWithShardedStatesAreThoseOverGloo) {
  planner::Layout layout = layout_of(1, 2, 2);
  layout.zero_stage = 1;
  expect_equal_steps(layout);
}

TEST(NcclTraining, ABrokenNetworkEndsAllRanksInTheirSteps) {
  const planner::Layout layout = layout_of(2, 2, 1);
  const runtime::Job job = cli::make_job(make_plan({.layout = layout}));
  const NcclStub stub({.error_rank = 1, .error_after = 9});
  StubStreams streams(stub);
  try {
    run_job(job, 2, over_stub(streams, 4));
    FAIL() << "steps ended over a broken network";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Device);
  }
  EXPECT_EQ(stub.misuse(), "");
  EXPECT_EQ(stub.counts().live, 0);
  EXPECT_EQ(stub.counts().memory_blocks, 0);
}

}  // namespace
}  // namespace foresail::testing
