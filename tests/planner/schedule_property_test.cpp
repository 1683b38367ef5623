#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "combinations.h"
#include "foresail/planner/schedule.h"

namespace foresail::planner {
namespace {

using program::Pass;

TEST(InterleavedIdentities, CoverAllLegalShapes) {
  EXPECT_EQ(interleaved_shapes().size(), 528u);
}

// Costs of whole numbers: forward v units of 1 stage / v chunks, so every sum is exact.
TEST(InterleavedIdentities, BubbleIsStagesLessOneOverChunksTimesMicrobatches) {
  for (const ScheduleShape& shape : interleaved_shapes()) {
    const Schedule schedule = make_schedule(ScheduleKind::Interleaved, shape);
    const double makespan = simulate(schedule, {.forward = 1, .backward = 2}).makespan;
    const double ideal = 3.0 * shape.microbatches * shape.chunks;
    // (p - 1)/(v m) of 3 m v chunk units is 3 (p - 1) of them.
    EXPECT_DOUBLE_EQ(makespan - ideal, 3.0 * (shape.stages - 1))
        << shape.stages << ' ' << shape.chunks << ' ' << shape.microbatches << ' '
        << shape.group_size;
  }
}

TEST(InterleavedIdentities, PeakIsTheWarmUpAndOneMore) {
  for (const ScheduleShape& shape : interleaved_shapes()) {
    const Schedule schedule = make_schedule(ScheduleKind::Interleaved, shape);
    for (int r = 0; r < shape.stages; ++r) {
      const int warm_up = 2 * (shape.stages - r - 1) + (shape.chunks - 1) * shape.group_size;
      EXPECT_EQ(peak_in_flight(schedule, r),
                std::min(warm_up + 1, shape.microbatches * shape.chunks))
          << shape.stages << ' ' << shape.chunks << ' ' << shape.microbatches << ' '
          << shape.group_size << " stage " << r;
    }
  }
}

TEST(InterleavedIdentities, EveryPassStandsOnce) {
  for (const ScheduleShape& shape : interleaved_shapes()) {
    const Schedule schedule = make_schedule(ScheduleKind::Interleaved, shape);
    for (const auto& order : schedule.order) {
      for (const Pass pass : {Pass::Forward, Pass::Backward}) {
        std::vector<int> seen(static_cast<std::size_t>(shape.chunks * shape.microbatches), 0);
        for (const SchedulePass& at : order) {
          if (at.pass == pass) {
            ++seen[static_cast<std::size_t>(at.chunk * shape.microbatches + at.microbatch)];
          }
        }
        EXPECT_EQ(std::ranges::count(seen, 1), shape.chunks * shape.microbatches);
      }
    }
  }
}

// Small messages that contend for nothing: one fill and one drain, 2 (p v - 1) of them, when the
// microbatches are a multiple of the stages (facts found by simulation, G = p).
TEST(InterleavedIdentities, ExposedMessagesAreOneFillAndOneDrain) {
  for (const ScheduleShape& shape : interleaved_shapes()) {
    if (shape.microbatches % shape.stages != 0 || shape.group_size != shape.stages) continue;
    const Schedule schedule = make_schedule(ScheduleKind::Interleaved, shape);
    const double free = simulate(schedule, {.forward = 100, .backward = 200}).makespan;
    const double makespan =
        simulate(schedule, {.forward = 100, .backward = 200, .message = 1}).makespan;
    EXPECT_DOUBLE_EQ(makespan - free, 2.0 * (shape.stages * shape.chunks - 1));
  }
}

TEST(OneForwardOneBackward, ExposedMessagesGrowWithMicrobatches) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = p; m <= 4 * p; m += p) {
      const Schedule schedule =
          make_schedule(ScheduleKind::OneForwardOneBackward, {.stages = p, .microbatches = m});
      const double free = simulate(schedule, {.forward = 100, .backward = 200}).makespan;
      const double makespan =
          simulate(schedule, {.forward = 100, .backward = 200, .message = 1}).makespan;
      EXPECT_DOUBLE_EQ(makespan - free, 2.0 * (p - 2) + 2.0 * (p - 1) * m / p) << p << ' ' << m;
    }
  }
}

}  // namespace
}  // namespace foresail::planner
