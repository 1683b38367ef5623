// layout.overlap.tp: parts of GEMMs beside the collectives of the others change neither what is
// trained nor what the Program says.
#include <gtest/gtest.h>

#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using models::Recompute;
using planner::Layout;
using planner::ScheduleKind;
using Change = std::function<void(planner::Plan&)>;

constexpr int kSteps = 2;  // the second shows what the first has made of the weights

struct Degrees {
  int tp = 2, pp = 1, dp = 1, cp = 1;
};

enum class Sequence { Whole, Parallel };

Layout layout_of(const Degrees& degrees, Sequence sequence = Sequence::Parallel) {
  Layout layout;
  layout.tp = degrees.tp;
  layout.pp = degrees.pp;
  layout.dp = degrees.dp;
  layout.cp = degrees.cp;
  layout.sequence_parallel = sequence == Sequence::Parallel;
  layout.overlap.tp = true;
  return layout;
}

Layout recomputing(Layout layout, Recompute recompute) {
  layout.recompute = recompute;
  return layout;
}

Layout scheduled(Layout layout, ScheduleKind schedule) {
  layout.schedule = schedule;
  layout.v = schedule == ScheduleKind::ZbV || schedule == ScheduleKind::Interleaved ? 2 : 1;
  layout.overlap.pp = schedule == ScheduleKind::Interleaved;
  return layout;
}

/// Every layout trains what one process trains, and runs its Program on every rank.
void expect_trains_alike(const std::vector<Layout>& layouts, const Change& change) {
  const Curve truth = train({.layout = {}, .change = change}, kSteps);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(describe(layout));
    const TinyPlan tiny{.layout = layout, .change = change};
    expect_equal(train(tiny, kSteps), truth);
    expect_step_of_program(cli::make_job(make_plan(tiny)));
  }
}

TEST(OverlapTp, TrainsTheSameModelInEveryPipeline) {
  expect_trains_alike({layout_of({}), layout_of({}, Sequence::Whole), layout_of({.tp = 4}),
                       changed(layout_of({.dp = 2}),
                               [](Layout& layout) {
                                 layout.zero_stage = 3;
                                 layout.overlap.dp = true;
                                 layout.microbatch_size = 2;
                               }),
                       layout_of({.cp = 2}), recomputing(layout_of({.pp = 2}), Recompute::Full),
                       recomputing(layout_of({}, Sequence::Whole), Recompute::Selective),
                       scheduled(layout_of({.pp = 2}), ScheduleKind::Interleaved),
                       scheduled(layout_of({.pp = 2}), ScheduleKind::ZbH1),
                       scheduled(layout_of({.pp = 2}, Sequence::Whole), ScheduleKind::ZbV)},
                      [](planner::Plan&) {});
}

/// Grouped queries, SwiGLU, RMSNorm, rotary positions; heads and groups for 8 ranks.
void use_wide_llama(planner::Plan& plan) {
  use_llama_parts(plan);
  plan.model.heads = 16;
  plan.model.head_size = 8;
  plan.model.kv_heads = 8;
  plan.model.ffn = 256;
}

// 64 tokens on 8 ranks are shards of 8, which are gathered as 2, 3, 3; on 4 ranks shards of 16, as
// 5, 5, 6.
TEST(OverlapTp, ShardsOfUnevenSlicesAreSplitAlike) {
  expect_trains_alike({layout_of({.tp = 8}), recomputing(layout_of({.tp = 4}), Recompute::Full)},
                      use_wide_llama);
}

// 2 tokens in a shard: two slices; 1: all is reduced in one piece, and gathered in one beside the
// own token.
TEST(OverlapTp, ShardsOfFewerTokensThanPartsAreSplitAlike) {
  for (const std::int64_t tokens : {8, 4}) {
    SCOPED_TRACE(tokens);
    expect_trains_alike({layout_of({.tp = 4})}, [tokens](planner::Plan& plan) {
      use_wide_llama(plan);
      plan.training.sequence_length = tokens;
    });
  }
}

/// MegaScale's model: parallel block, sliding window.
void use_megascale_parts(planner::Plan& plan) {
  plan.model.block = models::Block::Parallel;
  plan.model.attention = models::Attention::SlidingWindow;
  plan.model.window = 16;
}

TEST(OverlapTp, ParallelBlocksAreSplitAlike) {
  expect_trains_alike({layout_of({}), layout_of({.tp = 4}), layout_of({.pp = 2}, Sequence::Whole),
                       scheduled(layout_of({.pp = 2}), ScheduleKind::ZbH1),
                       recomputing(layout_of({}), Recompute::Full)},
                      use_megascale_parts);
}

// The overlap stands on its own.
TEST(OverlapTp, NeedsNoAsynchronousTensorParallelism) {
  expect_trains_alike({layout_of({}), layout_of({}, Sequence::Whole)},
                      [](planner::Plan& plan) { plan.stack.async_tensor_parallel = false; });
}

/// Where tokens go follows from the data, and with it shapes of GEMMs: ops alone are compared.
TEST(OverlapTp, SharedExpertsAreSplitAlike) {
  const auto change = [](planner::Plan& plan) {
    plan.model.biases = false;
    plan.model.experts = {
        .count = 4, .per_token = 2, .ffn = 64, .shared = 2, .shared_ffn = 64, .shared_gate = true};
  };
  const Curve truth = train({.layout = {}, .change = change}, kSteps);
  for (const bool is_beside_exchanges : {false, true}) {
    Layout layout = layout_of({.dp = 2});
    layout.ep = 2;
    layout.etp = 1;
    layout.overlap.ep = is_beside_exchanges;
    SCOPED_TRACE(describe(layout));
    const TinyPlan tiny{.layout = layout, .change = change};
    expect_equal(train(tiny, kSteps), truth);
    const runtime::Job job = cli::make_job(make_plan(tiny));
    for (const auto& [rank, observed] : observe_step(job)) {
      const Observed expected = expected_of(job, rank);
      EXPECT_EQ(observed.executed, expected.executed);
      EXPECT_EQ(observed.digest, expected.digest);
    }
  }
}

TEST(OverlapTp, Bf16AgreesAsCloselyAsWithoutIt) {
  const auto change = [](planner::Plan& plan) {
    use_wide_llama(plan);
    plan.training.precision = DType::Bf16;
    plan.training.global_batch_size = kBf16Batch;
  };
  const Curve truth = train({.layout = {}, .change = change}, kSteps);
  for (const Layout& layout :
       {layout_of({}), layout_of({.tp = 4}), layout_of({.pp = 2}, Sequence::Whole)}) {
    SCOPED_TRACE(describe(layout));
    const TinyPlan tiny{.layout = layout, .change = change};
    expect_equal_in_bf16(train(tiny, kSteps), truth);
    expect_step_of_program(cli::make_job(make_plan(tiny)));
  }
}

// The Program is cut as the layout says, so that what is above is not that of whole GEMMs.
TEST(OverlapTp, ProgramsHaveParts) {
  int parts = 0, gathers = 0;
  const runtime::Job job = cli::make_job(make_plan({.layout = layout_of({})}));
  for (const program::KernelList& list : job.program.kernel_lists) {
    for (const Kernel& kernel : list.kernels) {
      parts += kernel.parts > 1 ? 1 : 0;
      gathers += kernel.name.starts_with("tp.gather_qkv.") ? 1 : 0;
    }
  }
  EXPECT_EQ(parts, 4 * 8 * models::kOverlapChunks);  // 4 layers, 4 products forward, 4 back
  EXPECT_EQ(gathers, 4 * (models::kOverlapChunks - 1));
}

}  // namespace
}  // namespace foresail::testing
