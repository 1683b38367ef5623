// Experts in Programs: every legal layout verifies, and both kinds of gradients are synchronised.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "foresail/base/rng.h"
#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "plans.h"
#include "program_run.h"

namespace foresail::planner {
namespace {

using program::OpKind;
using program::Payload;
using program::Program;

models::Model mixture(int layers) {
  models::Model model = plain_model(layers);
  model.biases = false;
  model.experts = {.count = 8, .per_token = 2, .ffn = 512};
  return model;
}

class Draw {
 public:
  explicit Draw(std::uint64_t index) : stream_(Rng(20261130).stream("experts", index)) {}
  int between(int low, int high) {
    return low + static_cast<int>(stream_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool coin() { return stream_.below(2) == 0; }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return *(choices.begin() + stream_.below(choices.size()));
  }

 private:
  RandomStream stream_;
};

void draw_experts(Draw& draw, models::Model& model) {
  model.experts.shared = draw.between(0, 2);
  if (model.experts.shared > 0) model.experts.shared_ffn = 256;
  model.experts.every = draw.of({1, 1, 2});
  model.experts.first_dense_layers = draw.of({0, 1});
  model.experts.capacity_factor = draw.of({0.0, 0.0, 1.25});
  if (draw.coin()) return;
  model.positions = models::Positions::Rotary;
  model.max_positions = 0;
  model.latent = {.kv_rank = 128, .query_rank = 256, .rope_head_size = 32, .value_head_size = 64};
}

void draw_schedule(Draw& draw, Layout& layout) {
  layout.schedule =
      draw.of({ScheduleKind::Gpipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::Interleaved,
               ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbV, ScheduleKind::DualPipe});
  if (layout.schedule == ScheduleKind::Interleaved) layout.v = draw.between(2, 3);
  const bool has_two =
      layout.schedule == ScheduleKind::ZbV || layout.schedule == ScheduleKind::DualPipe;
  if (has_two) layout.v = 2;
}

Plan draw_plan(std::uint64_t index) {
  Draw draw(index);
  Layout layout;
  layout.tp = draw.of({1, 2, 4});
  layout.cp = draw.of({1, 1, 2});
  if (layout.cp > 1) {
    layout.cp_kind = draw.of({models::ContextParallel::AllGather, models::ContextParallel::Ring,
                              models::ContextParallel::AllToAll});
  }
  layout.dp = draw.of({1, 2, 4});
  layout.pp = draw.of({1, 2, 4});
  layout.ep = draw.of({1, 2, 4, 8});
  layout.etp = draw.of({0, 1, 1, 2});
  draw_schedule(draw, layout);
  layout.microbatch_size = draw.between(1, 2);
  layout.sequence_parallel = layout.tp > 1;
  layout.zero_stage = draw.between(0, 3);
  layout.recompute =
      draw.of({models::Recompute::None, models::Recompute::Selective, models::Recompute::Full});
  layout.overlap = {.tp = draw.coin(), .pp = true, .dp = draw.coin()};
  models::Model model = mixture(layout.pp * layout.v * draw.between(1, 2));
  model.tied_embeddings = draw.coin();
  draw_experts(draw, model);
  layout.overlap.ep = model.experts.shared > 0 && draw.coin();
  if (draw.coin()) {
    using program::Axis;
    layout.rank_order = {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Pp, Axis::Dp};
  }
  Plan plan = plan_of(model, layout, 2 * draw.between(1, 6));
  if (draw.coin()) plan.training.expert_load = {{0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}};
  return plan;
}

bool is_legal(const Plan& plan) {
  return models::expert_layers(plan.model) > 0 && check(plan).broken.empty();
}

/// The communicators that its kernels and ops use, by name.
std::set<std::string> used_communicators(const Program& program) {
  std::set<std::string> used;
  for (const program::KernelList& list : program.kernel_lists) {
    for (const Kernel& kernel : list.kernels) {
      if (kernel.kind == KernelKind::Collective) used.emplace(program::communicator_of(kernel));
    }
  }
  return used;
}

std::set<std::string> declared_communicators(const Program& program) {
  std::set<std::string> names;
  for (const program::Communicator& each : program.communicators) names.insert(each.name);
  return names;
}

constexpr std::uint64_t kCases = 1300;

TEST(ExpertPrograms, LegalLayoutsVerifyAndRun) {
  int legal = 0;
  std::set<ScheduleKind> schedules;
  for (std::uint64_t index = 0; index < kCases; ++index) {
    const Plan plan = draw_plan(index);
    if (!is_legal(plan)) continue;
    ++legal;
    schedules.insert(plan.layout.schedule);
    SCOPED_TRACE("case " + std::to_string(index) + " " + to_document(plan.layout).dump());
    const Program program = lower(plan);
    const auto violations = program::verify(program);
    EXPECT_TRUE(violations.empty()) << violations.front().message;
    EXPECT_TRUE(run(program, {.forward = 1, .backward = 2, .message = 1}).has_value());
    const std::set<std::string> declared = declared_communicators(program);
    for (const std::string& name : used_communicators(program)) {
      EXPECT_TRUE(declared.contains(name)) << name;
    }
    if (index % 8 != 0) continue;
    EXPECT_EQ(program::parse_program(program::to_text(program), "program"), program);
  }
  EXPECT_GE(legal, 300);
  EXPECT_EQ(schedules.size(), 7u);
}

std::int64_t bytes_of(const Program& program, int stage, Payload payload) {
  std::int64_t sum = 0;
  for (const program::Op& op : program.stages[static_cast<std::size_t>(stage)].ops) {
    if (op.kind == OpKind::Collective && op.payload == payload) sum += op.bytes.count();
  }
  return sum;
}

// tp 2, dp 4: 8 ranks. Experts on ep 4, cut over 1: 2 copies of each, where all else has 4.
Plan folded() {
  Layout layout;
  layout.tp = 2;
  layout.dp = 4;
  layout.ep = 4;
  layout.etp = 1;
  layout.sequence_parallel = true;
  layout.zero_stage = 1;
  return plan_of(mixture(2), layout, 4);
}

TEST(ExpertPrograms, ExpertsAreReducedOverTheirOwnCopies) {
  const Plan plan = folded();
  const Program program = lower(plan);
  // 2 layers, 2 of 8 experts, two matrices of 1024 x 512, fp32.
  EXPECT_EQ(bytes_of(program, 0, Payload::ExpertGradients), 2 * 2 * 2 * 1024 * 512 * 4);
  EXPECT_EQ(bytes_of(program, 0, Payload::ExpertParameters), 2 * 2 * 2 * 1024 * 512 * 2);
  const auto find = [&](const std::string& name) {
    const auto at = std::ranges::find(program.communicators, name, &program::Communicator::name);
    return program::CommunicatorId{static_cast<std::uint32_t>(at - program.communicators.begin())};
  };
  const auto ranks = [](std::initializer_list<std::uint32_t> list) {
    std::vector<RankId> made;
    for (const std::uint32_t rank : list) made.push_back(RankId{rank});
    return made;
  };
  EXPECT_EQ(program.members(find("ep"), RankId{1}), ranks({0, 1, 2, 3}));
  EXPECT_EQ(program.members(find("edp"), RankId{1}), ranks({1, 5}));
  EXPECT_EQ(program.members(find("dp"), RankId{1}), ranks({1, 3, 5, 7}));
}

// 18 bytes per parameter, or 6 and 12 / copies: 12 per expert's parameter with 2 copies, 9 else.
TEST(ExpertPrograms, StatesAreShardedOverTheirOwnCopies) {
  Plan plan = folded();
  const std::int64_t experts = 2 * 2 * 2 * 1024 * 512;
  const auto optimizer = [&] { return memory_need(plan, 0).optimizer.count(); };
  const std::int64_t sharded = optimizer();
  plan.layout.zero_stage = 0;
  const std::int64_t whole = optimizer();
  const std::int64_t others = whole / 12 - experts;
  EXPECT_NEAR(static_cast<double>(sharded), static_cast<double>(12 * experts / 2 + 12 * others / 4),
              64);
}

TEST(ExpertPrograms, AMissingReductionIsFound) {
  Program program = lower(folded());
  auto& ops = program.stages[0].ops;
  for (std::uint32_t at = 0; at < ops.size(); ++at) {
    program::Op& op = ops[program::OpId{at}];
    if (op.payload == Payload::ExpertGradients) op.payload = Payload::ChunkParameters;
  }
  const auto violations = program::verify(program);
  ASSERT_FALSE(violations.empty());
  EXPECT_THAT(violations.back().message,
              ::testing::HasSubstr("gradients of experts are synchronised 0 times"));
}

// tp 4 alone: experts have 2 copies, all else 1. The first layer has no experts, so no reduction
// stands behind the last pass; the sum over tp must wait for it all the same.
TEST(ExpertPrograms, ReplicatedGradientsWaitForTheLastPass) {
  Layout layout;
  layout.tp = 4;
  layout.ep = 2;
  layout.etp = 1;
  layout.sequence_parallel = true;
  layout.zero_stage = 1;
  layout.overlap.dp = true;
  models::Model model = mixture(4);
  model.experts.first_dense_layers = 1;
  model.experts.ffn = 8192;  // so that every layer is a bucket
  const Program program = lower(plan_of(model, layout, 2));
  ASSERT_EQ(program.chunks, 4);
  const auto& ops = program.stages[0].ops;
  program::OpId last{};
  for (std::uint32_t at = 0; at < ops.size(); ++at) {
    const program::Op& op = ops[program::OpId{at}];
    if (op.kind == OpKind::Compute && op.pass == program::Pass::Backward) last = program::OpId{at};
    if (op.payload != Payload::ReplicatedGradients) continue;
    EXPECT_NE(std::ranges::find(op.after, last), op.after.end());
    return;
  }
  ADD_FAILURE() << "no sum over tp";
}

TEST(ExpertPrograms, DenseOnesKnowNothingOfExperts) {
  Plan plan = folded();
  plan.model.experts = {};
  plan.layout.ep = 1;
  plan.layout.etp = 0;
  const Program program = lower(plan);
  EXPECT_FALSE(program.expert_grid.has_value());
  EXPECT_EQ(program::to_text(program).find("expert"), std::string::npos);
}

}  // namespace
}  // namespace foresail::planner
