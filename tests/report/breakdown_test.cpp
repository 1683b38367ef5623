#include "foresail/report/breakdown.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "example.h"
#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::report {
namespace {

using program::Span;
using program::Trace;

double us(Duration time) {
  return to_seconds(time) * 1e6;
}

/// `trace` with only the spans of `rank`.
Trace only(Trace trace, std::uint32_t rank) {
  std::erase_if(trace.spans, [&](const Span& each) { return each.rank.value != rank; });
  return trace;
}

/// The span of a whole op.
Span& span_of(Trace& trace, std::uint32_t rank, std::uint32_t op) {
  return *std::ranges::find_if(trace.spans, [&](const Span& each) {
    return each.rank.value == rank && each.op.value == op && each.kernel == -1;
  });
}

TEST(Breakdown, ScaledToAnotherStepKeepsItsSharesAndSumsToIt) {
  const Breakdown mean = break_down(example_program(), example_trace());
  const Duration step{mean.total().count() / 3 + 1};
  const Breakdown scaled = scaled_to(mean, step);
  EXPECT_EQ(scaled.total(), step);
  EXPECT_NEAR(us(scaled.compute) / us(step), us(mean.compute) / us(mean.total()), 1e-6);
  EXPECT_NEAR(us(scaled.bubble) / us(step), us(mean.bubble) / us(mean.total()), 1e-6);
}

TEST(Breakdown, IsTheMeanOverRanksAndSumsToTheStep) {
  // Rank 0: data 1, GEMMs 2 + backward 4, tp 2, messages 2, idle 6, dp 1, adam 2.
  // Rank 2: forward 2 + backward 4, messages 2, idle 5 + 4, dp 1, adam 2.
  const Breakdown mean = break_down(example_program(), example_trace());
  EXPECT_DOUBLE_EQ(us(mean.compute), 6);
  EXPECT_DOUBLE_EQ(us(mean.data), 0.5);
  EXPECT_DOUBLE_EQ(us(mean.tp_exposed), 1);
  EXPECT_DOUBLE_EQ(us(mean.pp_exposed), 2);
  EXPECT_DOUBLE_EQ(us(mean.dp_exposed), 1);
  EXPECT_DOUBLE_EQ(us(mean.optimizer), 2);
  EXPECT_DOUBLE_EQ(us(mean.bubble), 7.5);
  EXPECT_DOUBLE_EQ(us(mean.other), 0);
  EXPECT_DOUBLE_EQ(us(mean.total()), 20);
}

TEST(Breakdown, TakesTheOpAsComputeWhereItHasNoKernels) {
  Trace trace = only(example_trace(), 0);
  std::erase_if(trace.spans, [](const Span& each) { return each.kernel >= 0; });
  const Breakdown mean = break_down(example_program(), trace);
  EXPECT_DOUBLE_EQ(us(mean.compute), 8);  // forward 1-5 and backward 13-17
  EXPECT_DOUBLE_EQ(us(mean.tp_exposed), 0);
}

TEST(Breakdown, HidesCommunicationBesideCompute) {
  Trace trace = only(example_trace(), 0);
  // The all-reduce runs from 1.5 to 4, half a microsecond of it beside the first GEMM.
  for (Span& each : trace.spans) {
    if (each.kernel == 1) each.start -= std::chrono::nanoseconds(500);
  }
  sort_spans(trace);
  const Breakdown mean = break_down(example_program(), trace);
  EXPECT_DOUBLE_EQ(us(mean.compute), 6);
  EXPECT_DOUBLE_EQ(us(mean.tp_exposed), 2);
}

TEST(Breakdown, CountsAReceiveThatWaitsAsBubble) {
  // Posted at 0, but the sender comes at 5: the message itself takes 1 us.
  Trace trace = example_trace();
  const Breakdown prompt = break_down(example_program(), trace);
  span_of(trace, 2, 0).start = SimTime();
  sort_spans(trace);
  EXPECT_EQ(break_down(example_program(), trace), prompt);
}

TEST(Breakdown, TakesAMessageAtItsWordIfThePeerIsNotTraced) {
  Trace trace = example_trace();
  span_of(trace, 2, 0).start = SimTime();
  sort_spans(trace);
  const Breakdown mean = break_down(example_program(), only(trace, 2));
  EXPECT_DOUBLE_EQ(us(mean.pp_exposed), 7);  // 0-6 and 12-13
  EXPECT_DOUBLE_EQ(us(mean.bubble), 4);      // 13-17, before the world's all-reduce
}

TEST(Breakdown, CountsGapsThatOwnWorkEndsAsOther) {
  Trace trace = only(example_trace(), 0);
  // The second GEMM starts half a microsecond late, backward as well.
  for (Span& each : trace.spans) {
    if (each.kernel == 2) each.start += std::chrono::nanoseconds(500);
  }
  span_of(trace, 0, 4).start += std::chrono::nanoseconds(500);
  sort_spans(trace);
  const Breakdown mean = break_down(example_program(), trace);
  EXPECT_DOUBLE_EQ(us(mean.other), 1);
  EXPECT_DOUBLE_EQ(us(mean.bubble), 6);
}

TEST(Breakdown, CountsTheWaitForOtherStagesAsBubble) {
  // Rank 2 is done at 13, rank 0 at 20, and the step ends at 21.
  Trace trace = example_trace();
  std::erase_if(trace.spans,
                [](const Span& each) { return each.rank.value == 2 && each.op.value > 3; });
  trace.steps = {std::chrono::microseconds(21)};
  const Breakdown mean = break_down(example_program(), trace);
  EXPECT_DOUBLE_EQ(us(mean.bubble), (6 + 5 + 7) / 2.0);
  EXPECT_DOUBLE_EQ(us(mean.other), 1);
  EXPECT_DOUBLE_EQ(us(mean.total()), 21);
}

TEST(Breakdown, LeavesOutTheFirstOfSeveralSteps) {
  Trace trace = example_trace();
  trace.steps = {std::chrono::microseconds(500), std::chrono::microseconds(20)};
  for (Span& each : trace.spans) each.step = 1;
  Span warm_up = span(0, 4, 0, 500);
  trace.spans.insert(trace.spans.begin(), warm_up);
  EXPECT_EQ(break_down(example_program(), trace), break_down(example_program(), example_trace()));
}

TEST(Breakdown, SumsToTheStepWhateverTheTraceHolds) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random = Rng(seed).stream("trace");
    Trace trace = example_trace();
    std::erase_if(trace.spans, [&](const Span&) { return random.below(4) == 0; });
    trace.spans.push_back(span(0, 4, 3, 4));
    for (Span& each : trace.spans) {
      each.start += Duration(static_cast<std::int64_t>(random.below(9'000'000)) - 4'500'000);
      each.end = each.start + Duration(static_cast<std::int64_t>(random.below(6'000'000)));
    }
    sort_spans(trace);
    const Breakdown mean = break_down(example_program(), trace);
    EXPECT_EQ(mean.total(), trace.steps[0]);
    const Document document = to_document(mean);
    for (const auto& [key, value] : document.items()) EXPECT_GE(value, 0) << key;
  }
}

TEST(Breakdown, HasTheKeysOfTheContract) {
  const Document document = to_document(Breakdown{});
  std::vector<std::string> keys;
  for (const auto& [key, value] : document.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::UnorderedElementsAre("compute", "tp_exposed", "cp_exposed",
                                                  "ep_exposed", "pp_exposed", "dp_exposed",
                                                  "bubble", "optimizer", "data", "other"));
}

TEST(Breakdown, RefusesTracesThatDoNotFit) {
  Trace trace = example_trace();
  trace.spans.front().op = program::OpId{99};
  EXPECT_THROW(break_down(example_program(), trace), Error);
  trace = example_trace();
  trace.spans.back().rank = RankId{4};
  EXPECT_THROW(break_down(example_program(), trace), Error);
  trace = example_trace();
  trace.spans.clear();
  EXPECT_THROW(break_down(example_program(), trace), Error);
}

}  // namespace
}  // namespace foresail::report
