// Zero-bubble and DualPipe orders: golden small cases, and the closed forms of their bubbles and
// peaks, over all small shapes, with messages free.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "foresail/planner/schedule.h"

namespace foresail::planner {
namespace {

using program::Pass;

constexpr PassCosts kEqual{.forward = 1, .backward = 2, .backward_input = 1, .backward_weight = 1};

Schedule make(ScheduleKind kind, int p, int m) {
  const bool has_two = kind == ScheduleKind::ZbV || kind == ScheduleKind::DualPipe;
  return make_schedule(kind, {.stages = p, .chunks = has_two ? 2 : 1, .microbatches = m});
}

/// Longest time from a stage's first pass to its last beyond the work of one stage: the bubble of
/// one step in a row of steps, in which the next one starts as soon as the stage is done.
double span_beyond(const TimedSchedule& timed, double work) {
  double longest = 0;
  for (std::size_t stage = 0; stage < timed.start.size(); ++stage) {
    longest = std::max(longest, timed.end[stage].back() - timed.start[stage].front() - work);
  }
  return longest;
}

std::string shape(int p, int m) {
  return "p " + std::to_string(p) + " m " + std::to_string(m);
}

TEST(ZeroBubbleGolden, H1DelaysWeightsByTheStage) {
  const Schedule schedule = make(ScheduleKind::ZbH1, 3, 4);
  EXPECT_EQ(to_text(schedule, 0), "F0.0 F1.0 F2.0 I0.0 W0.0 F3.0 I1.0 W1.0 I2.0 W2.0 I3.0 W3.0");
  EXPECT_EQ(to_text(schedule, 1), "F0.0 F1.0 I0.0 F2.0 I1.0 W0.0 F3.0 I2.0 W1.0 I3.0 W2.0 W3.0");
  EXPECT_EQ(to_text(schedule, 2), "F0.0 I0.0 F1.0 I1.0 F2.0 I2.0 W0.0 F3.0 I3.0 W1.0 W2.0 W3.0");
}

TEST(ZeroBubbleGolden, H2RunsTwiceAsFarAhead) {
  const Schedule schedule = make(ScheduleKind::ZbH2, 2, 4);
  EXPECT_EQ(to_text(schedule, 0), "F0.0 F1.0 F2.0 I0.0 W0.0 F3.0 I1.0 W1.0 I2.0 W2.0 I3.0 W3.0");
  EXPECT_EQ(to_text(schedule, 1), "F0.0 I0.0 F1.0 I1.0 F2.0 I2.0 W0.0 F3.0 I3.0 W1.0 W2.0 W3.0");
}

// The rules of torch.distributed.pipelining, written out by hand.
TEST(ZeroBubbleGolden, VTurnsOnTheLastStage) {
  const Schedule schedule = make(ScheduleKind::ZbV, 2, 4);
  EXPECT_EQ(to_text(schedule, 0),
            "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3.0 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 "
            "F3.1 I3.1 W3.1 I2.0 W2.0 I3.0 W3.0");
  EXPECT_EQ(to_text(schedule, 1),
            "F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 F3.0 I1.0 W1.0 F3.1 I2.1 "
            "W2.1 I2.0 I3.1 I3.0 W2.0 W3.1 W3.0");
}

// The eight steps of deepseek-ai/DualPipe, written out by hand.
TEST(ZeroBubbleGolden, DualPipeRunsFromBothEnds) {
  const Schedule schedule = make(ScheduleKind::DualPipe, 4, 8);
  EXPECT_EQ(to_text(schedule, 0),
            "F0.0 F1.0 F2.0 F4.1 I4.1 W4.1 F5.1 F3.0&B5.1 F6.1&B0.0 B6.1 F7.1&B1.0 B7.1 I2.0 W2.0 "
            "I3.0 W3.0");
  EXPECT_EQ(to_text(schedule, 1),
            "F0.0 F4.1 F1.0 F5.1 F2.0 B4.1 F6.1&B0.0 F3.0&B5.1 F7.1&B1.0 B6.1 B2.0 I7.1 I3.0 W7.1 "
            "W3.0");
  EXPECT_EQ(to_text(schedule, 2),
            "F4.1 F0.0 F5.1 F1.0 F6.1 B0.0 F2.0&B4.1 F7.1&B1.0 F3.0&B5.1 B2.0 B6.1 I3.0 I7.1 W3.0 "
            "W7.1");
  EXPECT_EQ(to_text(schedule, 3),
            "F4.1 F5.1 F6.1 F0.0 I0.0 W0.0 F1.0 F7.1&B1.0 F2.0&B4.1 B2.0 F3.0&B5.1 B3.0 I6.1 W6.1 "
            "I7.1 W7.1");
}

// (p - 1)(F + I - W): a third of 1F1B's 3 (p - 1) at equal times.
TEST(ZeroBubbleIdentities, H1LeavesAThirdOfTheBubble) {
  for (int p = 2; p <= 10; ++p) {
    for (int m = p; m <= 4 * p; ++m) {
      const Schedule schedule = make(ScheduleKind::ZbH1, p, m);
      EXPECT_EQ(simulate(schedule, kEqual).makespan - 3 * m, p - 1) << shape(p, m);
    }
  }
}

// The general form holds while the weight half is not longer than the others.
TEST(ZeroBubbleIdentities, H1FollowsItsClosedFormAtUnequalTimes) {
  for (const auto& [f, i, w] :
       std::vector<std::array<int, 3>>{{2, 2, 1}, {3, 4, 2}, {10, 11, 9}, {3, 2, 2}, {2, 3, 1}}) {
    const PassCosts costs{
        .forward = 1.0 * f, .backward_input = 1.0 * i, .backward_weight = 1.0 * w};
    for (int p = 2; p <= 8; ++p) {
      for (int m = 2 * p; m <= 5 * p; ++m) {
        const double work = 1.0 * m * (f + i + w);
        EXPECT_EQ(simulate(make(ScheduleKind::ZbH1, p, m), costs).makespan - work,
                  (p - 1) * (f + i - w))
            << shape(p, m);
        EXPECT_EQ(span_beyond(simulate(make(ScheduleKind::ZbH2, p, m), costs), work),
                  (p - 1) * (f + i - 2 * w))
            << shape(p, m);
      }
    }
  }
}

// (p - 1)(F + I - 2 W) = 0: no stage waits once it has started; the last starts p - 1 forwards
// late, which the step's makespan shows and a row of steps hides.
TEST(ZeroBubbleIdentities, H2HasNoBubbleButTheWarmUp) {
  for (int p = 2; p <= 10; ++p) {
    for (int m = 2 * p - 1; m <= 4 * p; ++m) {
      const TimedSchedule timed = simulate(make(ScheduleKind::ZbH2, p, m), kEqual);
      EXPECT_EQ(span_beyond(timed, 3 * m), 0) << shape(p, m);
      EXPECT_EQ(timed.makespan - 3 * m, p - 1) << shape(p, m);
    }
  }
}

// In units of a chunk, half a stage: 6 m of work.
TEST(ZeroBubbleIdentities, VHasNoBubbleButTheWarmUp) {
  for (int p = 2; p <= 10; ++p) {
    for (int m = 2 * p - 1; m <= 4 * p; ++m) {
      const TimedSchedule timed = simulate(make(ScheduleKind::ZbV, p, m), kEqual);
      EXPECT_EQ(span_beyond(timed, 6 * m), 0) << shape(p, m);
      EXPECT_EQ(timed.makespan - 6 * m, p - 1) << shape(p, m);
    }
  }
}

// (p/2 - 1)(F&B + B - 3 W) with F&B = F + B and B whole: 2 (p/2 - 1) at equal times. For any W as
// long as F = I.
TEST(ZeroBubbleIdentities, DualPipeFollowsItsClosedForm) {
  for (int p = 2; p <= 12; p += 2) {
    for (int m = 2 * p; m <= 5 * p; m += 2) {
      for (const auto& [f, w] : std::vector<std::array<int, 2>>{{1, 1}, {2, 1}, {10, 7}, {5, 3}}) {
        const int whole = f + w;
        const PassCosts costs{.forward = 1.0 * f,
                              .backward = 1.0 * whole,
                              .backward_input = 1.0 * f,
                              .backward_weight = 1.0 * w};
        const double makespan = simulate(make(ScheduleKind::DualPipe, p, m), costs).makespan;
        EXPECT_EQ(makespan - m * (f + whole), (p / 2 - 1) * (f + whole + whole - 3 * w))
            << shape(p, m);
      }
    }
  }
}

// Microbatches between their forward and the end of their weight half: p as 1F1B's first stage,
// 2 p - 1, 2 p half stages, p + 1.
TEST(ZeroBubbleIdentities, PeaksAreThoseOfTheTable) {
  for (int p = 2; p <= 10; ++p) {
    const int m = 4 * p;
    for (int stage = 0; stage < p; ++stage) {
      EXPECT_EQ(peak_in_flight(make(ScheduleKind::ZbH1, p, m), stage), p);
      EXPECT_EQ(peak_in_flight(make(ScheduleKind::ZbH2, p, m), stage), 2 * p - 1);
      EXPECT_EQ(peak_in_flight(make(ScheduleKind::ZbV, p, m), stage), 2 * p);
      if (p % 2 == 0) {
        EXPECT_EQ(peak_in_flight(make(ScheduleKind::DualPipe, p, m), stage), p + 1);
      }
    }
  }
}

// Fewer microbatches than the pipeline is deep run too, with a bubble.
TEST(ZeroBubbleIdentities, AnyNumberOfMicrobatchesRuns) {
  for (const auto kind : {ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbV}) {
    for (int p = 2; p <= 9; ++p) {
      for (int m = 1; m < 2 * p; ++m) {
        const Schedule schedule = make(kind, p, m);
        EXPECT_GE(simulate(schedule, kEqual).makespan, 3 * m * schedule.chunks) << shape(p, m);
      }
    }
  }
}

TEST(ZeroBubbleIdentities, WithoutAPipelineAllKindsRunOneMicrobatchAfterTheOther) {
  const Schedule schedule =
      make_schedule(ScheduleKind::ZbH1, {.stages = 1, .chunks = 1, .microbatches = 2});
  EXPECT_EQ(to_text(schedule, 0), "F0.0 B0.0 F1.0 B1.0");
}

}  // namespace
}  // namespace foresail::planner
