// What the order of messages promises, checked on lowered Programs with in-order pp lanes.
#include <gtest/gtest.h>

#include <cstddef>

#include "combinations.h"
#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "plans.h"
#include "program_run.h"

namespace foresail::planner {
namespace {

using program::OpKind;
using program::Payload;
using program::Program;

// In units of one chunk's forward: a message of a twentieth, as the order was simulated.
constexpr UnitCosts kOverlapped{.forward = 1, .backward = 2, .message = 0.05};

Program lower_shape(const ScheduleShape& shape, bool overlaps_messages) {
  Layout layout = pipeline(shape.stages, shape.chunks, shape.group_size);
  layout.overlap.pp = overlaps_messages;
  return lower(plan_of(plain_model(shape.stages * shape.chunks), layout, shape.microbatches));
}

int count(const Program& program, OpKind kind, Payload payload) {
  int found = 0;
  for (const auto& stage : program.stages) {
    for (const auto& op : stage.ops) {
      if (op.kind == kind && op.payload == payload) ++found;
    }
  }
  return found;
}

double compute_time(const ScheduleShape& shape) {
  return 3.0 * shape.microbatches * shape.chunks + 3.0 * (shape.stages - 1);
}

std::string name(const ScheduleShape& shape) {
  return "p " + std::to_string(shape.stages) + " v " + std::to_string(shape.chunks) + " m " +
         std::to_string(shape.microbatches) + " G " + std::to_string(shape.group_size);
}

TEST(MessageLane, InterleavedProgramsSendTwiceMTimesBoundaries) {
  for (const ScheduleShape& shape : interleaved_shapes()) {
    const Program program = lower_shape(shape, true);
    const int expected = shape.microbatches * (shape.stages * shape.chunks - 1);
    for (const OpKind kind : {OpKind::Send, OpKind::Recv}) {
      EXPECT_EQ(count(program, kind, Payload::Activation), expected) << name(shape);
      EXPECT_EQ(count(program, kind, Payload::Gradient), expected) << name(shape);
    }
  }
}

TEST(MessageLane, NoLegalInterleavedProgramDeadlocks) {
  for (const ScheduleShape& shape : interleaved_shapes()) {
    const Program program = lower_shape(shape, true);
    const auto violations = program::verify(program);
    EXPECT_TRUE(violations.empty()) << name(shape) << ": " << violations.front().message;
    // Any timing: also one in which messages are as long as passes, and one where they are free.
    for (const double message : {0.0, 0.5, 3.0}) {
      EXPECT_TRUE(run(program, {.forward = 1, .backward = 2, .message = message}).has_value());
    }
    EXPECT_DOUBLE_EQ(run(program, {.forward = 1, .backward = 2}).value(), compute_time(shape));
  }
}

// Facts: 2 (p v - 1) messages, one fill and one drain, if m is a multiple of p and G = p.
TEST(MessageLane, InterleavingExposesOneFillAndOneDrain) {
  int checked = 0;
  for (const ScheduleShape& shape : interleaved_shapes()) {
    if (shape.microbatches % shape.stages != 0 || shape.group_size != shape.stages) continue;
    const double exposed = run(lower_shape(shape, true), kOverlapped).value() - compute_time(shape);
    EXPECT_NEAR(exposed / kOverlapped.message, 2.0 * (shape.stages * shape.chunks - 1), 1e-6)
        << name(shape);
    ++checked;
  }
  EXPECT_EQ(checked, 7 * 3 * 3);
}

// The published shape: p 8, v 6, m 32 exposes 94 messages.
TEST(MessageLane, EightStagesOfSixChunksExposeNinetyFourMessages) {
  const ScheduleShape shape{8, 6, 32, 8};
  const double exposed = run(lower_shape(shape, true), kOverlapped).value() - compute_time(shape);
  EXPECT_NEAR(exposed / kOverlapped.message, 94, 1e-6);
}

// Facts: 2 (p - 2) + 2 (p - 1) m / p messages, because neighbours play ping-pong.
TEST(MessageLane, OneForwardOneBackwardExposesMessagesPerMicrobatch) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = p; m <= 4 * p; m += p) {
      const ScheduleShape shape{p, 1, m, 0};
      const Program program = lower_shape(shape, true);
      EXPECT_TRUE(program::verify(program).empty());
      const double exposed = run(program, kOverlapped).value() - compute_time(shape);
      EXPECT_NEAR(exposed / kOverlapped.message, 2.0 * (p - 2) + 2.0 * (p - 1) * m / p, 1e-6)
          << name(shape);
    }
  }
}

TEST(MessageLane, WithoutOverlapNothingDeadlocksAndSendsAreExposed) {
  for (const ScheduleShape& shape : interleaved_shapes()) {
    if (shape.stages == 2) continue;  // not a legal layout
    const Program program = lower_shape(shape, false);
    EXPECT_TRUE(program::verify(program).empty()) << name(shape);
    const double exposed = run(program, kOverlapped).value() - compute_time(shape);
    const double sends = 2.0 * shape.microbatches * shape.chunks;
    // Every stage waits for nearly all of its 2 m v sends, and sometimes for a neighbour.
    EXPECT_GT(exposed / kOverlapped.message, 0.5 * sends) << name(shape);
    EXPECT_LT(exposed / kOverlapped.message, 2 * sends) << name(shape);
    EXPECT_TRUE(run(program, {.forward = 1, .backward = 2, .message = 3}).has_value());
  }
}

}  // namespace
}  // namespace foresail::planner
