// Lowering of zero-bubble, V-shaped, mirrored and written schedules: every Program verifies, runs
// and takes the time of its schedule; memory follows the closed forms.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "foresail/base/rng.h"
#include "foresail/planner/plan.h"
#include "foresail/planner/schedule.h"
#include "foresail/program/verifier.h"
#include "plans.h"
#include "program_run.h"

namespace foresail::planner {
namespace {

using program::MemoryNeed;
using program::Op;
using program::OpKind;
using program::Pass;
using program::Payload;
using program::Program;

constexpr auto kNewKinds = {ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbV,
                            ScheduleKind::DualPipe};

bool has_two_chunks(ScheduleKind kind) {
  return kind == ScheduleKind::ZbV || kind == ScheduleKind::DualPipe;
}

Layout layout_of(ScheduleKind kind, int p) {
  Layout layout = pipeline(p, 1, 0);
  layout.schedule = kind;
  layout.v = has_two_chunks(kind) ? 2 : 1;
  return layout;
}

Plan plan_with(ScheduleKind kind, int p, int m) {
  return plan_of(plain_model(2 * p), layout_of(kind, p), m);
}

/// The same schedule as if the user had written it.
Plan written(Plan plan) {
  const Layout& layout = plan.layout;
  const int m =
      static_cast<int>(plan.training.global_batch_size / (layout.microbatch_size * layout.dp));
  const Schedule made =
      make_schedule(layout.schedule, {.stages = layout.pp, .chunks = layout.v, .microbatches = m});
  plan.layout.written = {made.stage_map, made.chunks, made.microbatches, made.order};
  plan.layout.schedule = ScheduleKind::File;
  return plan;
}

Plan draw_plan(std::uint64_t index) {
  RandomStream stream = Rng(20250707).stream("zero bubble", index);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(stream.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  const auto coin = [&] { return stream.below(2) == 0; };
  const auto kind = std::vector<ScheduleKind>(kNewKinds)[stream.below(4)];
  const bool is_dual = kind == ScheduleKind::DualPipe;
  const int p = is_dual ? 2 * between(1, 4) : between(2, 8);
  const int m = is_dual ? 2 * p + 2 * between(0, 4) : between(1, 3 * p);
  Layout layout = layout_of(kind, p);
  layout.tp = coin() ? 1 : 2;
  layout.dp = between(1, 3);
  layout.sequence_parallel = layout.tp > 1 && coin();
  layout.zero_stage = between(0, is_dual ? 2 : 3);
  layout.overlap = {.tp = coin(), .pp = coin(), .dp = coin()};
  models::Model model = plain_model(p * (kind == ScheduleKind::ZbV ? 2 : 1) * between(1, 2));
  model.tied_embeddings = coin();
  model.block = coin() ? models::Block::Serial : models::Block::Parallel;
  Plan plan = plan_of(model, layout, m);
  plan.stack.scatter_gather = coin();
  plan.stack.flash_attention = coin();
  return stream.below(4) == 0 ? written(plan) : plan;
}

constexpr std::uint64_t kCases = 500;

TEST(ZeroBubbleLowering, RandomShapesAreLegalVerifyAndRun) {
  std::set<std::string> shapes;
  for (std::uint64_t index = 0; index < kCases; ++index) {
    const Plan plan = draw_plan(index);
    const auto broken = check(plan).broken;
    ASSERT_TRUE(broken.empty()) << "case " << index << ": " << broken.front().message;
    const Program program = lower(plan);
    const auto violations = program::verify(program);
    EXPECT_TRUE(violations.empty())
        << "case " << index << ": " << violations.front().message << '\n'
        << to_document(plan.layout).dump();
    EXPECT_TRUE(run(program, {.forward = 1, .backward = 2, .message = 1}).has_value())
        << "case " << index;
    shapes.insert(fmt::format("{} {} {}", to_string(plan.layout.schedule), plan.layout.pp,
                              program.microbatches));
  }
  EXPECT_GT(shapes.size(), 150u);
}

TEST(ZeroBubbleLowering, TextComesBack) {
  for (std::uint64_t index = 0; index < kCases; index += 9) {
    const Program program = lower(draw_plan(index));
    EXPECT_EQ(program::parse_program(program::to_text(program), "program"), program)
        << "case " << index;
  }
}

// With free messages a Program takes as long as its schedule. With one stage's work as the costs,
// the difference between kinds is their bubble.
TEST(ZeroBubbleLowering, ProgramsTakeTheTimeOfTheirSchedule) {
  for (const int p : {2, 4, 6}) {
    const int m = 3 * p;
    EXPECT_EQ(*run(lower(plan_with(ScheduleKind::ZbH1, p, m)), {}) - 3 * m, p - 1);
    EXPECT_EQ(*run(lower(plan_with(ScheduleKind::ZbH2, p, m)), {}) - 3 * m, p - 1);
    EXPECT_EQ(*run(lower(plan_with(ScheduleKind::ZbV, p, m)), {}) - 6 * m, p - 1);
    EXPECT_EQ(*run(lower(plan_with(ScheduleKind::DualPipe, p, m)), {}) - 3 * m, 2 * (p / 2 - 1));
  }
}

// A message per border and direction; none where a V turns on one stage.
TEST(ZeroBubbleLowering, MessagesCrossBordersOnly) {
  for (const auto& [kind, per_microbatch] : std::map<ScheduleKind, int>{
           {ScheduleKind::ZbH1, 3}, {ScheduleKind::ZbV, 6}, {ScheduleKind::DualPipe, 3}}) {
    const Program program = lower(plan_with(kind, 4, 8));
    int sends = 0;
    for (const auto& stage : program.stages) {
      sends += static_cast<int>(
          std::ranges::count_if(stage.ops, [](const Op& op) { return op.kind == OpKind::Send; }));
    }
    EXPECT_EQ(sends, 2 * 8 * per_microbatch) << to_string(kind);
  }
}

double backward_flops(const Program& program) {
  double flops = 0;
  for (const auto& stage : program.stages) {
    for (const Op& op : stage.ops) {
      if (op.kind != OpKind::Compute || op.pass == Pass::Optimizer) continue;
      for (const Kernel& kernel : program.kernel_lists[op.kernels.value].kernels) {
        flops += kernel.flops.count();
      }
    }
  }
  return flops;
}

// Splitting moves work, it adds none: all schedules run the FLOPs of 1F1B.
TEST(ZeroBubbleLowering, AllSchedulesRunTheSameWork) {
  const double plain = backward_flops(lower(plan_with(ScheduleKind::OneForwardOneBackward, 4, 8)));
  for (const ScheduleKind kind : kNewKinds) {
    EXPECT_DOUBLE_EQ(backward_flops(lower(plan_with(kind, 4, 8))), plain) << to_string(kind);
  }
}

TEST(ZeroBubbleLowering, AWrittenScheduleIsTheSameProgram) {
  for (const ScheduleKind kind : kNewKinds) {
    const Plan plan = plan_with(kind, 4, 8);
    EXPECT_EQ(lower(written(plan)), lower(plan)) << to_string(kind);
  }
}

// A V keeps embedding and head on stage 0, so tied matrices need no group of their own.
TEST(ZeroBubbleLowering, AVHoldsOneCopyOfTiedMatrices) {
  Plan plan = plan_with(ScheduleKind::ZbV, 4, 8);
  plan.model.tied_embeddings = true;
  const Program program = lower(plan);
  for (const auto& communicator : program.communicators) EXPECT_NE(communicator.name, "embedding");
  const StagePart first = stage_part(plan, 0, 0);
  const StagePart last = stage_part(plan, 0, 1);
  EXPECT_TRUE(first.has_embedding);
  EXPECT_TRUE(last.has_head);
  EXPECT_EQ(last.end_layer, plan.model.layers);
  EXPECT_EQ(stage_part(plan, 3, 0).end_layer, stage_part(plan, 3, 1).first_layer);
}

/// The first complaint about `program`.
std::string complaint(const Program& program) {
  const auto violations = program::verify(program);
  return violations.empty() ? "none" : violations.front().message;
}

// The stage map is part of the contract: the same ops under another map are refused.
TEST(ZeroBubbleLowering, TheVerifierKnowsWhereChunksLie) {
  Program program = lower(plan_with(ScheduleKind::ZbV, 4, 8));
  program.stage_map = program::StageMap::Ring;
  EXPECT_EQ(complaint(program),
            "stage 0 send gradient chunk 1 microbatch 0 to stage 1: must go to stage 3");
  program.stage_map = program::StageMap::Mirrored;
  EXPECT_EQ(complaint(program), "stage 0 chunk 0 microbatch 4: 1 forward passes, must be 0");
  program = lower(plan_with(ScheduleKind::DualPipe, 4, 8));
  program.stage_map = program::StageMap::V;
  EXPECT_EQ(complaint(program), "stage 0 chunk 0 microbatch 4: 0 forward passes, must be 1");
}

// Both copies of a chunk are summed once over their two stages, then over the replicas.
TEST(ZeroBubbleLowering, DualPipeSumsMirroredCopies) {
  Plan plan = plan_with(ScheduleKind::DualPipe, 4, 8);
  plan.layout.dp = 2;
  plan.layout.zero_stage = 1;
  plan = plan_of(plan.model, plan.layout, 8);
  Program program = lower(plan);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    int mirrors = 0;
    for (const Op& op : program.stages[stage].ops) {
      if (op.payload != Payload::MirrorGradients) continue;
      ++mirrors;
      const auto& members = program.communicators[op.communicator.value].stages;
      const int own = static_cast<int>(stage);
      EXPECT_EQ(members, (std::vector<int>{std::min(own, 3 - own), std::max(own, 3 - own)}));
    }
    EXPECT_EQ(mirrors, 2);
  }
  // Without one of them the verifier complains.
  for (auto& stage : program.stages) {
    for (std::uint32_t at = 0; at < stage.ops.size(); ++at) {
      Op& op = stage.ops[program::OpId{at}];
      if (op.payload == Payload::MirrorGradients) op.payload = Payload::ReplicatedGradients;
    }
  }
  const auto violations = program::verify(program);
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations.front().message,
            "stage 0 chunk 0: gradients are summed with the mirrored copy 0 times, must be once");
}

Bytes peak_activations(const Plan& plan) {
  Bytes peak;
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    peak = std::max(peak, memory_need(plan, stage).activations);
  }
  return peak;
}

/// Large enough that embedding, head and their logits do not decide.
Plan heavy(ScheduleKind kind, int p, int m) {
  Plan plan = plan_with(kind, p, m);
  plan.model.dropout = true;
  plan.model.layers = 8 * p;
  plan.model.vocab = 8;
  plan.training.sequence_length = 512;
  return plan;
}

// ZB-H1 and ZB-V within 1F1B's peak, ZB-H2 (2 p - 1)/p of it, DualPipe (p + 1)/p.
TEST(ZeroBubbleMemory, PeaksFollowTheTable) {
  for (const int p : {4, 8}) {
    const int m = 3 * p;
    const double plain = static_cast<double>(
        peak_activations(heavy(ScheduleKind::OneForwardOneBackward, p, m)).count());
    const auto relative = [&](ScheduleKind kind) {
      return static_cast<double>(peak_activations(heavy(kind, p, m)).count()) / plain;
    };
    EXPECT_LE(relative(ScheduleKind::ZbH1), 1.01);
    EXPECT_LE(relative(ScheduleKind::ZbV), 1.01);
    EXPECT_GT(relative(ScheduleKind::ZbH2), 1.5);
    EXPECT_LE(relative(ScheduleKind::ZbH2), (2.0 * p - 1) / p * 1.01);
    EXPECT_NEAR(relative(ScheduleKind::DualPipe), (p + 1.0) / p, 0.02);
  }
}

// Two copies of everything but the tied matrix, which both ends hold once.
TEST(ZeroBubbleMemory, DualPipeHoldsTwoCopies) {
  const Plan plain = heavy(ScheduleKind::OneForwardOneBackward, 4, 8);
  const Plan dual = heavy(ScheduleKind::DualPipe, 4, 8);
  EXPECT_EQ(memory_need(dual, 1).parameters, 2 * memory_need(plain, 1).parameters);
  EXPECT_EQ(memory_need(dual, 1).optimizer, 2 * memory_need(plain, 1).optimizer);
}

// With full recomputation a forward keeps one tensor per layer, and a delayed weight half many.
TEST(ZeroBubbleMemory, DelayedWeightsCostMoreThanRecomputationSaves) {
  Plan plan = heavy(ScheduleKind::ZbH1, 4, 12);
  plan.layout.recompute = models::Recompute::Full;
  Plan plain = plan;
  plain.layout.schedule = ScheduleKind::OneForwardOneBackward;
  EXPECT_GT(peak_activations(plan).count(), 3 * peak_activations(plain).count());
}

}  // namespace
}  // namespace foresail::planner
