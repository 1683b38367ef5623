#include "foresail/planner/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "foresail/base/error.h"

namespace foresail::planner {
namespace {

using program::Pass;
using testing::HasSubstr;

Schedule one_forward_one_backward(int stages, int microbatches) {
  return make_schedule(ScheduleKind::OneForwardOneBackward,
                       {.stages = stages, .microbatches = microbatches});
}

Schedule interleaved(int stages, int chunks, int microbatches, int group_size) {
  return make_schedule(
      ScheduleKind::Interleaved,
      {.stages = stages, .chunks = chunks, .microbatches = microbatches, .group_size = group_size});
}

/// Start of one pass, named as in to_text.
double start_of(const Schedule& schedule, const TimedSchedule& timed, int stage,
                const SchedulePass& pass) {
  const auto s = static_cast<std::size_t>(stage);
  for (std::size_t at = 0; at < schedule.order[s].size(); ++at) {
    if (schedule.order[s][at] == pass) return timed.start[s][at];
  }
  ADD_FAILURE() << "no such pass";
  return -1;
}

SchedulePass forward(int microbatch, int chunk) {
  return {Pass::Forward, microbatch, chunk};
}
SchedulePass backward(int microbatch, int chunk) {
  return {Pass::Backward, microbatch, chunk};
}

// Megatron-LM's 1F1B for 4 stages and 8 microbatches.
TEST(Schedule, OneForwardOneBackwardHasMegatronsOrder) {
  const Schedule schedule = one_forward_one_backward(4, 8);
  EXPECT_EQ(to_text(schedule, 0),
            "F0.0 F1.0 F2.0 F3.0 B0.0 F4.0 B1.0 F5.0 B2.0 F6.0 B3.0 F7.0 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(to_text(schedule, 1),
            "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 F4.0 B2.0 F5.0 B3.0 F6.0 B4.0 F7.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(to_text(schedule, 2),
            "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 F4.0 B3.0 F5.0 B4.0 F6.0 B5.0 F7.0 B6.0 B7.0");
  EXPECT_EQ(to_text(schedule, 3),
            "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0 F4.0 B4.0 F5.0 B5.0 F6.0 B6.0 F7.0 B7.0");
}

// 8 microbatches of 1 + 2 are 24; the pipeline fills and drains in (4 - 1) * 3 = 9.
TEST(Schedule, OneForwardOneBackwardTakesThirtyThreeUnits) {
  const Schedule schedule = one_forward_one_backward(4, 8);
  EXPECT_DOUBLE_EQ(simulate(schedule, {}).makespan, 33);
  for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(peak_in_flight(schedule, stage), 4 - stage);
}

TEST(Schedule, GpipeRunsAllForwardsFirst) {
  const Schedule schedule = make_schedule(ScheduleKind::Gpipe, {.stages = 2, .microbatches = 3});
  EXPECT_EQ(to_text(schedule, 0), "F0.0 F1.0 F2.0 B0.0 B1.0 B2.0");
  EXPECT_EQ(to_text(schedule, 1), "F0.0 F1.0 F2.0 B0.0 B1.0 B2.0");
  EXPECT_EQ(peak_in_flight(schedule, 0), 3);
  // Same bubble as 1F1B: 3 * (1 + 2) + (2 - 1) * 3.
  EXPECT_DOUBLE_EQ(simulate(schedule, {}).makespan, 12);
}

TEST(Schedule, SingleStageRunsItsChunksForthAndBack) {
  const Schedule schedule = make_schedule(ScheduleKind::OneForwardOneBackward,
                                          {.stages = 1, .chunks = 3, .microbatches = 2});
  EXPECT_EQ(to_text(schedule, 0), "F0.0 F0.1 F0.2 B0.2 B0.1 B0.0 F1.0 F1.1 F1.2 B1.2 B1.1 B1.0");
  EXPECT_DOUBLE_EQ(simulate(schedule, {}).makespan, 18);
}

// The worked example of interleaving: 4 stages, 2 chunks, 8 microbatches in groups of 4.
TEST(Schedule, InterleavedHasMegatronsOrder) {
  const Schedule schedule = interleaved(4, 2, 8, 4);
  EXPECT_EQ(to_text(schedule, 0),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 "
            "B3.1 F6.1 B0.0 F7.1 B1.0 B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(to_text(schedule, 1),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 B0.1 F5.0 B1.1 F6.0 B2.1 F7.0 B3.1 F4.1 "
            "B0.0 F5.1 B1.0 F6.1 B2.0 F7.1 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(to_text(schedule, 2),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 B0.1 F3.1 B1.1 F4.0 B2.1 F5.0 B3.1 F6.0 B0.0 F7.0 "
            "B1.0 F4.1 B2.0 F5.1 B3.0 F6.1 B4.1 F7.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(to_text(schedule, 3),
            "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 "
            "B2.0 F7.0 B3.0 F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
}

TEST(Schedule, InterleavedExampleHasGoldenStartTimes) {
  const Schedule schedule = interleaved(4, 2, 8, 4);
  const TimedSchedule timed = simulate(schedule, {.forward = 0.5, .backward = 1});
  EXPECT_DOUBLE_EQ(timed.makespan, 28.5);
  struct Golden {
    int stage;
    SchedulePass pass;
    double start;
  };
  const std::vector<Golden> golden = {
      {0, forward(0, 0), 0},     {0, forward(6, 0), 5},     {0, backward(0, 1), 7},
      {0, forward(7, 0), 8},     {0, backward(1, 1), 8.5},  {0, forward(4, 1), 10},
      {0, backward(2, 1), 10.5}, {0, backward(0, 0), 13.5}, {0, backward(1, 0), 15},
      {0, backward(2, 0), 16},   {0, backward(3, 0), 17.5}, {0, backward(4, 1), 19},
      {0, backward(5, 1), 20.5}, {0, backward(6, 1), 22},   {0, backward(7, 1), 23.5},
      {0, backward(4, 0), 24.5}, {0, backward(7, 0), 27.5}, {3, forward(0, 0), 1.5},
      {3, forward(3, 0), 3},     {3, forward(0, 1), 3.5},   {3, backward(0, 1), 4},
      {3, forward(1, 1), 5},     {3, backward(3, 1), 8.5},  {3, forward(4, 0), 9.5},
      {3, backward(0, 0), 10},   {3, forward(7, 1), 20},    {3, backward(7, 1), 20.5},
      {3, backward(4, 0), 21.5}, {3, backward(7, 0), 24.5}};
  for (const Golden& entry : golden) {
    EXPECT_DOUBLE_EQ(start_of(schedule, timed, entry.stage, entry.pass), entry.start)
        << "stage " << entry.stage << " microbatch " << entry.pass.microbatch << " chunk "
        << entry.pass.chunk;
  }
}

// Megatron-LM's own comment: groups of 3 out of 5 microbatches, 2 chunks.
TEST(Schedule, LastGroupMayBeShorter) {
  const Schedule schedule = interleaved(2, 2, 5, 3);
  EXPECT_THAT(to_text(schedule, 0), testing::StartsWith("F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1"
                                                        " F3.0 B1.1 F4.0"));
}

struct Illegal {
  int stages, chunks, microbatches, group_size;
  double bubble, legal_bubble;
};

// What the law on microbatches and group_size prevents: the bubble doubles (two decimals).
TEST(Schedule, RemainderBelowStagesDoublesTheBubble) {
  for (const Illegal& c : {Illegal{4, 2, 6, 4, 0.53, 0.25}, Illegal{4, 2, 5, 4, 0.60, 0.30},
                           Illegal{4, 2, 9, 4, 0.37, 0.17}}) {
    const Schedule schedule = interleaved(c.stages, c.chunks, c.microbatches, c.group_size);
    const PassCosts costs{.forward = 1.0 / c.chunks, .backward = 2.0 / c.chunks};
    const double ideal = 3.0 * c.microbatches;
    EXPECT_NEAR(simulate(schedule, costs).makespan / ideal - 1, c.bubble, 0.006) << c.microbatches;
    EXPECT_NEAR((c.stages - 1.0) / (c.chunks * c.microbatches), c.legal_bubble, 0.006);
  }
}

TEST(Schedule, DeadlockIsNamedWithItsCycle) {
  const Schedule schedule = interleaved(8, 2, 12, 8);
  try {
    simulate(schedule, {});
    FAIL() << "did not deadlock";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    EXPECT_THAT(error.what(), HasSubstr("8 stages, 2 chunks, 12 microbatches deadlocks"));
    EXPECT_THAT(error.what(),
                testing::ContainsRegex("stage [0-7] [FB][0-9]+.[01] waits for stage [0-7] [FB]"));
    EXPECT_THAT(error.what(), HasSubstr(" behind "));
  }
}

TEST(Schedule, BlockingSendsDelayTheSenderToo) {
  const Schedule schedule = one_forward_one_backward(2, 1);
  // F on stage 0, message, F and B on stage 1, message, B on stage 0.
  EXPECT_DOUBLE_EQ(simulate(schedule, {.message = 0.5}).makespan, 1 + 0.5 + 1 + 2 + 0.5 + 2);
  const Schedule longer = one_forward_one_backward(2, 2);
  const double overlapped = simulate(longer, {.message = 0.5}).makespan;
  EXPECT_GT(simulate(longer, {.message = 0.5, .blocking = true}).makespan, overlapped);
}

TEST(Schedule, UnevenChunksCostWhatTheTableSays) {
  const Schedule schedule = one_forward_one_backward(2, 1);
  PassCosts costs;
  costs.forward_of = {{1}, {4}};
  costs.backward_of = {{2}, {8}};
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).makespan, 1 + 4 + 8 + 2);
}

}  // namespace
}  // namespace foresail::planner
