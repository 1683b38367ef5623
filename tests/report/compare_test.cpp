#include "foresail/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "example.h"
#include "foresail/base/error.h"

namespace foresail::report {
namespace {

using program::Span;
using program::Trace;
using std::chrono::microseconds;
using testing::HasSubstr;

/// The example run `factor` times as slowly in each of three steps after a warm-up.
Trace measured(const std::vector<int>& factors) {
  Trace trace = example_trace();
  trace.kind = program::TraceKind::Measured;
  trace.fidelity = "measured";
  const std::vector<Span> once = trace.spans;
  trace.steps = {microseconds(900)};
  for (const int factor : factors) {
    for (Span each : once) {
      each.step = static_cast<int>(trace.steps.size());
      each.start = SimTime(factor * each.start.time_since_epoch());
      each.end = SimTime(factor * each.end.time_since_epoch());
      trace.spans.push_back(each);
    }
    trace.steps.push_back(microseconds(20 * factor));
  }
  sort_spans(trace);
  return trace;
}

ComparisonRow row(const Comparison& comparison, const std::string& op_class) {
  const auto found = std::ranges::find(comparison.rows, op_class, &ComparisonRow::op_class);
  EXPECT_NE(found, comparison.rows.end()) << op_class;
  return found == comparison.rows.end() ? ComparisonRow{} : *found;
}

std::string complaint(const Trace& a, const Trace& b) {
  try {
    compare(example_program(), a, b);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

TEST(Compare, TakesTheMedianOfTheStepsAfterTheWarmUp) {
  const Comparison comparison = compare(example_program(), example_trace(), measured({2, 9, 4}));
  EXPECT_EQ(comparison.steps, 3u);
  const ComparisonRow step = row(comparison, "step");
  EXPECT_EQ(step.predicted, microseconds(20));
  EXPECT_EQ(step.measured, microseconds(80));
  EXPECT_DOUBLE_EQ(step.error().value(), 20.0 / 80 - 1);
  // Forward takes 4 us on rank 0 and 2 us on rank 2.
  const ComparisonRow forward = row(comparison, "forward");
  EXPECT_EQ(forward.count, 2);
  EXPECT_EQ(forward.predicted, microseconds(3));
  EXPECT_EQ(forward.measured, microseconds(12));
}

TEST(Compare, TakesTheMiddleOfTwoSteps) {
  const Comparison comparison = compare(example_program(), example_trace(), measured({2, 4}));
  EXPECT_EQ(row(comparison, "step").measured, microseconds(60));
}

TEST(Compare, HasARowForEachClassOfOps) {
  const Comparison comparison = compare(example_program(), example_trace(), measured({1}));
  std::vector<std::string> classes;
  for (const ComparisonRow& each : comparison.rows) {
    classes.push_back(each.op_class);
    EXPECT_EQ(each.error(), 0.0) << each.op_class;
  }
  EXPECT_THAT(classes, testing::ElementsAre(
                           "step", "backward", "forward", "load_batch", "optimizer",
                           "recv activation", "recv gradient", "send activation", "send gradient",
                           "dp all_reduce step_scalars", "tp all_reduce (in passes)"));
}

TEST(Compare, CountsMessagesFromWhenBothSidesAreThere) {
  Trace happened = measured({1});
  for (Span& each : happened.spans) {
    if (each.step == 1 && each.rank == RankId{2} && each.op.value == 0) each.start = SimTime();
  }
  sort_spans(happened);
  const Comparison comparison = compare(example_program(), example_trace(), happened);
  EXPECT_EQ(row(comparison, "recv activation").measured, microseconds(1));
}

TEST(Compare, UsesTheRanksThatBothTracesHold) {
  Trace happened = measured({1});
  std::erase_if(happened.spans, [](const Span& each) { return each.rank == RankId{0}; });
  const Comparison comparison = compare(example_program(), example_trace(), happened);
  EXPECT_EQ(comparison.ranks, std::vector<RankId>{RankId{2}});
  EXPECT_EQ(row(comparison, "forward").predicted, microseconds(2));
  for (Span& each : happened.spans) each.rank = RankId{3};
  EXPECT_EQ(complaint(example_trace(), happened), "the two traces have no rank in common");
}

TEST(Compare, ShowsAClassThatOneTraceLacks) {
  Trace happened = measured({1});
  std::erase_if(happened.spans, [](const Span& each) { return each.kernel >= 0; });
  const Comparison comparison = compare(example_program(), example_trace(), happened);
  const ComparisonRow inside = row(comparison, "tp all_reduce (in passes)");
  EXPECT_EQ(inside.predicted, microseconds(2));
  EXPECT_FALSE(inside.measured.has_value());
  EXPECT_FALSE(inside.error().has_value());
  EXPECT_TRUE(to_document(comparison)["rows"].back()["measured_s"].is_null());
}

TEST(Compare, RefusesTracesOfDifferentPlansOrPrograms) {
  Trace happened = measured({1});
  happened.plan_digest = "ab";
  EXPECT_EQ(complaint(example_trace(), happened),
            "plan digest aa of the predicted trace is not ab of the measured one");
  happened = measured({1});
  happened.program_digest = "cd";
  EXPECT_THAT(complaint(example_trace(), happened), HasSubstr("is not cd of the measured one"));
  Trace predicted = example_trace();
  predicted.program_digest = "cd";
  EXPECT_THAT(complaint(predicted, happened), HasSubstr("is not cd of the traces"));
}

TEST(Compare, PrintsATable) {
  const std::string text = to_text(compare(example_program(), example_trace(), measured({2})));
  EXPECT_THAT(text,
              HasSubstr("op class                     count  predicted   measured     error\n"
                        "step                             1    20.0 us    40.0 us   -50.0 %\n"));
  EXPECT_THAT(text, HasSubstr("plan digest aa\n"));
  EXPECT_THAT(text, HasSubstr("ranks compared 2, steps measured 1\n"));
}

}  // namespace
}  // namespace foresail::report
