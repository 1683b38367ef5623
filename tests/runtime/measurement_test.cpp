#include "foresail/runtime/measurement.h"

#include <gtest/gtest.h>

namespace foresail::runtime {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

/// A rank whose step 0 runs from `start` to `end` ms and holds one op of 2 ms at its start.
RankMeasurement rank_of(std::uint32_t rank, std::string host, std::int64_t start,
                        std::int64_t end) {
  RankMeasurement measurement;
  measurement.rank = RankId{rank};
  measurement.host = std::move(host);
  measurement.plan_digest = "plan";
  measurement.steps.push_back({.step = 0,
                               .loss = 0.1 + rank,
                               .gradient_norm = 1.0 / 3,
                               .start_ns = start * kMillisecond,
                               .end_ns = end * kMillisecond,
                               .executed_digest = "abc"});
  measurement.spans.push_back({.lane = 0,
                               .kernel = -1,
                               .op = 7,
                               .step = 0,
                               .start_ns = start * kMillisecond,
                               .end_ns = (start + 2) * kMillisecond,
                               .bytes = 0});
  return measurement;
}

TEST(RankMeasurement, IsEqualAfterTheStore) {
  const RankMeasurement measurement = rank_of(3, "host\n", 5, 9);
  EXPECT_EQ(unpack(pack(measurement)), measurement);
}

TEST(MakeTrace, MovesTimesToTheStartOfTheStepOnEachHost) {
  const Job job;
  // Ranks 0 and 1 share a clock; that of rank 2's host shows other numbers.
  const program::Trace trace = make_trace(
      job, "1", {rank_of(0, "a", 100, 110), rank_of(1, "a", 101, 112), rank_of(2, "b", 7, 16)});
  ASSERT_EQ(trace.spans.size(), 3u);
  EXPECT_EQ(trace.spans[0].start, SimTime(std::chrono::milliseconds(0)));
  EXPECT_EQ(trace.spans[1].start, SimTime(std::chrono::milliseconds(1)));
  EXPECT_EQ(trace.spans[1].end, SimTime(std::chrono::milliseconds(3)));
  EXPECT_EQ(trace.spans[2].start, SimTime(std::chrono::milliseconds(0)));
  // From 100 to 112 on host a.
  EXPECT_EQ(trace.steps, std::vector<Duration>{std::chrono::milliseconds(12)});
}

}  // namespace
}  // namespace foresail::runtime
