// The planner's memory against the peak of real steps on the CPU, counted by the allocator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "foresail/planner/memory_bound.h"
#include "foresail/runtime/tensor_memory.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using models::ContextParallel;
using models::Recompute;
using planner::Layout;
using planner::ScheduleKind;

struct Case {
  Layout layout;
  std::string model = "gpt_tiny";
  std::function<void(planner::Plan&)> change = [](planner::Plan&) {};
  std::string parts = {};  ///< what `change` makes of the model
};

struct Degrees {
  int tp = 1, pp = 1, dp = 1, v = 1;
};

Layout layout_of(const Degrees& degrees, Recompute recompute = Recompute::None) {
  Layout layout;
  layout.tp = degrees.tp;
  layout.pp = degrees.pp;
  layout.dp = degrees.dp;
  layout.v = degrees.v;
  layout.overlap.pp = degrees.v > 1;
  if (degrees.v > 1) layout.schedule = ScheduleKind::Interleaved;
  layout.sequence_parallel = degrees.tp > 1;
  layout.recompute = recompute;
  layout.microbatch_size = 2;
  return layout;
}

Layout pipelined(Layout layout) {
  layout.overlap.tp = true;
  return layout;
}

Layout in_context(ContextParallel kind) {
  Layout layout = layout_of({});
  layout.cp = 4;
  layout.cp_kind = kind;
  return layout;
}

void use_wide_experts(planner::Plan& plan) {
  plan.model.experts = {.count = 4, .per_token = 2, .ffn = 256, .shared = 1, .shared_ffn = 256};
}

/// States are shared by two ranks, and there are two groups of them.
Layout in_groups(int ep) {
  Layout layout = layout_of({.dp = 4});
  layout.ep = ep;
  layout.zero_stage = 3;
  layout.shard_size = 2;
  return layout;
}

std::vector<Case> cases_of_experts() {
  return {
      {changed(layout_of({.dp = 2}), [](Layout& layout) { layout.ep = 2; }), "gpt_tiny",
       use_wide_experts, "experts"},
      {in_groups(1), "gpt_tiny", use_wide_experts, "experts"},
      {in_groups(2), "gpt_tiny",
       [](planner::Plan& plan) {
         use_wide_experts(plan);
         plan.training.optimizer = program::Optimizer::Lamb;
       },
       "experts, LAMB"},
  };
}

void use_flash(planner::Plan& plan) {
  plan.stack.flash_attention = true;
}

void use_short_sequences(planner::Plan& plan) {
  plan.training.sequence_length = 16;
}

/// Fused attention; and sums of gradients, which activations do not hide.
std::vector<Case> more_cases() {
  return {
      {layout_of({.dp = 2}), "gpt_tiny", use_short_sequences, "16 tokens"},
      {in_context(ContextParallel::Ring), "gpt_tiny", use_short_sequences, "16 tokens"},
      {pipelined(layout_of({.tp = 2})), "gpt_tiny", use_flash, "flash attention"},
      {layout_of({.tp = 2}), "gpt_tiny",
       [](planner::Plan& plan) {
         use_llama_parts(plan);
         plan.model.ffn = 384;
         use_flash(plan);
       },
       "Llama's parts, flash attention"},
      {in_context(ContextParallel::AllGather), "gpt_tiny", use_flash, "flash attention"},
      {in_context(ContextParallel::Ring), "gpt_tiny", use_flash, "flash attention"},
      {in_context(ContextParallel::AllToAll), "gpt_tiny", use_flash, "flash attention"},
  };
}

void use_dropout(planner::Plan& plan) {
  plan.model.dropout = true;
}

void use_kernels_one_by_one(planner::Plan& plan) {
  use_dropout(plan);
  plan.stack.fused_kernels = false;
}

/// Masks, and what dropout leaves of probabilities.
std::vector<Case> cases_of_dropout() {
  const auto dropout = [](const Layout& layout) {
    return Case{layout, "gpt_tiny", use_dropout, "dropout"};
  };
  const auto one_by_one = [](const Layout& layout) {
    return Case{layout, "gpt_tiny", use_kernels_one_by_one, "dropout, kernels one by one"};
  };
  std::vector<Case> all{
      dropout(layout_of({})),
      dropout(layout_of({}, Recompute::Full)),
      dropout(layout_of({.tp = 2}, Recompute::Selective)),
      dropout(layout_of({.pp = 2, .v = 2})),
      dropout(changed(layout_of({.dp = 2}), [](Layout& layout) { layout.zero_stage = 3; })),
      one_by_one(layout_of({})),
      one_by_one(layout_of({.tp = 2})),
      one_by_one(in_context(ContextParallel::Ring))};
  for (const auto kind :
       {ContextParallel::AllGather, ContextParallel::Ring, ContextParallel::AllToAll}) {
    all.push_back(dropout(in_context(kind)));
  }
  all.push_back({layout_of({.tp = 2}), "gpt_tiny",
                 [](planner::Plan& plan) {
                   use_dropout(plan);
                   use_flash(plan);
                 },
                 "dropout, flash attention"});
  all.push_back({layout_of({.tp = 2}), "gpt_tiny",
                 [](planner::Plan& plan) {
                   use_dropout(plan);
                   plan.model.block = models::Block::Parallel;
                 },
                 "dropout, parallel block"});
  all.push_back({layout_of({.tp = 2}), "gpt_tiny",
                 [](planner::Plan& plan) {
                   use_llama_parts(plan);
                   plan.model.ffn = 384;
                   use_kernels_one_by_one(plan);
                 },
                 "Llama's parts, dropout, kernels one by one"});
  all.push_back({changed(layout_of({.dp = 2}), [](Layout& layout) { layout.ep = 2; }), "gpt_tiny",
                 [](planner::Plan& plan) {
                   use_wide_experts(plan);
                   use_dropout(plan);
                 },
                 "experts, dropout"});
  return all;
}

std::vector<Case> cases() {
  return {
      {layout_of({})},
      {layout_of({}, Recompute::Full)},
      {layout_of({}, Recompute::Selective)},
      {changed(layout_of({.tp = 2}), [](Layout& layout) { layout.sequence_parallel = false; })},
      {layout_of({.tp = 2}, Recompute::Selective)},
      {layout_of({.tp = 4}, Recompute::Full)},
      {pipelined(layout_of({.tp = 2}))},
      {pipelined(layout_of({.tp = 4}))},
      {pipelined(layout_of({.tp = 4}, Recompute::Full))},
      {layout_of({.pp = 2})},
      {layout_of({.pp = 4}), "gpt_tiny_tied"},
      {layout_of({.pp = 2, .v = 2})},
      {changed(layout_of({.pp = 2}),
               [](Layout& layout) { layout.schedule = ScheduleKind::Gpipe; })},
      {changed(layout_of({.dp = 2}), [](Layout& layout) { layout.zero_stage = 1; })},
      {changed(layout_of({.dp = 2}), [](Layout& layout) { layout.zero_stage = 2; })},
      {changed(layout_of({.dp = 4}),
               [](Layout& layout) {
                 layout.zero_stage = 2;
                 layout.overlap.dp = true;
               })},
      {changed(layout_of({.dp = 4}), [](Layout& layout) { layout.zero_stage = 3; })},
      {changed(layout_of({.dp = 4}),
               [](Layout& layout) {
                 layout.zero_stage = 3;
                 layout.overlap.dp = true;
               })},
      {changed(layout_of({.dp = 4}),
               [](Layout& layout) {
                 layout.zero_stage = 3;
                 layout.shard_size = 2;
               }),
       "gpt_tiny_tied"},
      {changed(layout_of({.pp = 2, .dp = 2, .v = 2}),
               [](Layout& layout) { layout.zero_stage = 3; })},
      {layout_of({.tp = 2, .pp = 2}, Recompute::Full), "gpt_tiny_tied"},
      {changed(layout_of({.pp = 2, .dp = 2}), [](Layout& layout) { layout.zero_stage = 1; }),
       "gpt_tiny_tied"},
      {changed(layout_of({.pp = 2}), [](Layout& layout) { layout.schedule = ScheduleKind::ZbH1; })},
      {changed(layout_of({.pp = 2, .v = 2}),
               [](Layout& layout) { layout.schedule = ScheduleKind::ZbV; })},
      {layout_of({.tp = 2}), "gpt_tiny",
       [](planner::Plan& plan) {
         plan.model.block = models::Block::Parallel;
         plan.model.attention = models::Attention::SlidingWindow;
         plan.model.window = 64;
       },
       "parallel block, window"},
      {pipelined(layout_of({.tp = 4})), "gpt_tiny",
       [](planner::Plan& plan) { plan.model.block = models::Block::Parallel; }, "parallel block"},
      {in_context(ContextParallel::AllGather)},
      {in_context(ContextParallel::Ring)},
      {in_context(ContextParallel::AllToAll)},
      {layout_of({.tp = 2}), "gpt_tiny",
       [](planner::Plan& plan) {
         use_llama_parts(plan);
         plan.model.ffn = 384;
       },
       "Llama's parts"},
  };
}

/// What one rank's steps held at most, and what was planned for it.
struct Row {
  std::uint32_t rank = 0;
  std::int64_t measured = 0, point = 0, upper = 0;
};

std::vector<Row> rows_of(const planner::Plan& plan) {
  const runtime::Job job = cli::make_job(plan);
  const std::vector<RankResult> ranks = run_job(job, 2);
  std::vector<Row> rows;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const auto pp = static_cast<std::size_t>(program::Axis::Pp);
    const int stage = plan.layout.grid().coordinates(RankId{rank})[pp];
    const planner::MemoryBound bound = planner::memory_bound(plan, job.program, stage);
    Row row{.rank = rank, .point = bound.point.peak().count(), .upper = bound.upper().count()};
    for (const auto& step : ranks[rank].steps)
      row.measured = std::max(row.measured, step.peak_bytes);
    rows.push_back(row);
  }
  return rows;
}

std::string name_of(const Case& each) {
  std::string text = describe(each.layout);
  if (each.layout.recompute != Recompute::None) {
    text += ", recompute " + planner::to_text(each.layout.recompute);
  }
  if (each.model == "gpt_tiny_tied") text += ", tied";
  return each.parts.empty() ? text : text + ", " + each.parts;
}

/// The table of docs/validation/memory.md; of ranks that are alike, the one furthest off.
void print(const Case& each, const std::vector<Row>& rows) {
  std::int64_t last = 0;
  for (const Row& row : rows) {
    if (std::exchange(last, row.point) == row.point) continue;
    const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    std::printf("| %s | %u | %.2f | %.2f | %+.1f %% | %.2f |\n", name_of(each).c_str(), row.rank,
                mib(row.measured), mib(row.point),
                100 * (static_cast<double>(row.point) / static_cast<double>(row.measured) - 1),
                mib(row.upper));
  }
}

void expect_planned(const std::vector<Case>& all) {
  runtime::TensorMemory::count();
  ASSERT_TRUE(runtime::TensorMemory::is_counting());
  for (const Case& each : all) {
    const planner::Plan plan =
        make_plan({.layout = each.layout, .model = each.model, .change = [&](planner::Plan& made) {
                     made.training.sequence_length = 256;
                     each.change(made);
                   }});
    const std::vector<Row> rows = rows_of(plan);
    print(each, rows);
    for (const Row& row : rows) {
      SCOPED_TRACE(name_of(each) + ", rank " + std::to_string(row.rank));
      EXPECT_LE(row.measured, row.upper);
      EXPECT_NEAR(static_cast<double>(row.point), static_cast<double>(row.measured),
                  0.1 * static_cast<double>(row.measured));
    }
  }
}

TEST(Memory, PeaksOfRealStepsAreThosePlanned) {
  std::vector<Case> all = cases();
  std::ranges::move(more_cases(), std::back_inserter(all));
  std::ranges::move(cases_of_experts(), std::back_inserter(all));
  expect_planned(all);
}

TEST(Memory, SoAreThoseOfStepsWithDropoutAndOfKernelsOneByOne) {
  expect_planned(cases_of_dropout());
}

}  // namespace
}  // namespace foresail::testing
