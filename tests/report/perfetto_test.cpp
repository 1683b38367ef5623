#include "foresail/report/perfetto.h"

#include <gtest/gtest.h>

#include "example.h"
#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::report {
namespace {

Document events_of(const program::Trace& trace) {
  return parse_json(to_perfetto(example_program(), trace), "perfetto")["traceEvents"];
}

/// The events with that value of a key.
std::vector<Document> with(const Document& events, const char* key, const Document& value) {
  std::vector<Document> found;
  for (const Document& event : events) {
    if (event.contains(key) && event[key] == value) found.push_back(event);
  }
  return found;
}

TEST(Perfetto, HasOneCompleteEventPerSpan) {
  const Document events = events_of(example_trace());
  EXPECT_EQ(with(events, "ph", "X").size(), example_trace().spans.size());
  const auto sends = with(events, "name", "send gradient chunk 0 microbatch 0 to stage 0");
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0]["pid"], 2);
  EXPECT_EQ(sends[0]["ts"], 12.0);
  EXPECT_EQ(sends[0]["dur"], 1.0);
  EXPECT_EQ(sends[0]["args"], (Document{{"op", 3}, {"step", 0}, {"bytes", 64}}));
}

TEST(Perfetto, NamesKernelsProcessesAndThreads) {
  const Document events = events_of(example_trace());
  const auto kernels = with(events, "name", "tp.reduce");
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0]["tid"], static_cast<int>(Lane::Tp));
  const auto processes = with(events, "name", "process_name");
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[1]["args"]["name"], "rank 2 (stage 1)");
  // Rank 0 uses compute, tp, pp, dp and host; rank 2 compute, pp and dp.
  EXPECT_EQ(with(events, "name", "thread_name").size(), 8u);
}

TEST(Perfetto, PutsStepsOneAfterTheOther) {
  program::Trace trace = example_trace();
  trace.steps.push_back(trace.steps.front());
  program::Span later = span(0, 4, 3, 4);
  later.step = 1;
  trace.spans.push_back(later);
  const auto events = with(events_of(trace), "name", "compute backward chunk 0 microbatch 0");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2]["ts"], 23.0);
}

TEST(Perfetto, RefusesSpansOfAnotherProgram) {
  program::Trace trace = example_trace();
  trace.spans[2].kernel = 3;
  EXPECT_THROW(to_perfetto(example_program(), trace), Error);
}

}  // namespace
}  // namespace foresail::report
