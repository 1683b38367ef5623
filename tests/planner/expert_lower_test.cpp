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

void draw_recomputation(Draw& draw, Layout& layout) {
  Recomputation& recompute = layout.recompute;
  recompute =
      draw.of({models::Recompute::None, models::Recompute::Selective, models::Recompute::Full});
  if (recompute.what == models::Recompute::Full) {
    recompute.method = draw.of({CheckpointMethod::Uniform, CheckpointMethod::Block});
    recompute.layers = draw.between(1, 3);
  }
  if (recompute.what == models::Recompute::Selective) {
    recompute.modules = {draw.coin(), draw.coin(), draw.coin(), draw.coin()};
  }
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
  draw_recomputation(draw, layout);
  if (layout.zero_stage > 0) layout.shard_size = draw.of({0, 0, 2, 4});
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
  if (draw.coin()) plan.training.optimizer = program::Optimizer::Lamb;
  plan.stack.early_stop_recompute = draw.coin();
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
  int in_groups = 0;
  int in_pieces = 0;
  int with_norms = 0;
  std::set<ScheduleKind> schedules;
  for (std::uint64_t index = 0; index < kCases; ++index) {
    const Plan plan = draw_plan(index);
    if (!is_legal(plan)) continue;
    ++legal;
    schedules.insert(plan.layout.schedule);
    in_groups += plan.layout.has_copies_of_shards() ? 1 : 0;
    in_pieces += plan.layout.recompute.is_plain() ? 0 : 1;
    with_norms += plan.training.optimizer == program::Optimizer::Lamb ? 1 : 0;
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
  EXPECT_GE(in_groups, 30);
  EXPECT_GE(in_pieces, 100);
  EXPECT_GE(with_norms, 100);
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

/// The folded plan in groups of `size` of its four ranks over dp.
Plan in_groups(int size, int zero_stage) {
  Plan plan = folded();
  plan.layout.dp = 8;
  plan.layout.shard_size = size;
  plan.layout.zero_stage = zero_stage;
  return plan_of(plan.model, plan.layout, 4);
}

std::vector<std::string> expert_syncs(const Program& program) {
  std::vector<std::string> lines;
  for (const program::Op& op : program.stages[0].ops) {
    if (op.kind != OpKind::Collective) continue;
    const program::Communicator& over = program.communicators[op.communicator.value];
    if (over.grid != program::GridKind::Expert) continue;
    lines.push_back(describe(op) + " over " + over.name + ": " + std::to_string(op.bytes.count()));
  }
  return lines;
}

// tp 2 * dp 8 = 16 ranks hold 4 copies of each expert. Two groups of four ranks over dp share each
// copy of all else, so two ranks share each copy of an expert, and two hold the same half.
TEST(ExpertPrograms, GroupsThatShardSumTheShardsOfExperts) {
  const Program program = lower(in_groups(4, 1));
  EXPECT_TRUE(program::verify(program).empty());
  const std::int64_t experts = 2 * 2 * 2 * 1024 * 512;  // parameters of a rank
  const auto bytes = [](std::int64_t count) { return std::to_string(count); };
  EXPECT_THAT(
      expert_syncs(program),
      ::testing::ElementsAre(
          "reduce_scatter expert_gradients chunk 0 over expert_shard: " + bytes(4 * experts),
          "all_reduce shard_gradients chunk 0 over expert_replica: " + bytes(2 * experts),
          "all_gather expert_parameters chunk 0 over expert_shard: " + bytes(2 * experts)));
  EXPECT_EQ(program::parse_program(program::to_text(program), "program"), program);
}

// As many groups as copies: nobody shares an expert with anybody, whose gradients are summed whole.
TEST(ExpertPrograms, GroupsWithOneCopyOfEachExpertKeepItWhole) {
  for (const int zero : {1, 2, 3}) {
    const Plan plan = in_groups(2, zero);
    const Program program = lower(plan);
    EXPECT_TRUE(program::verify(program).empty());
    const std::int64_t experts = 2 * 2 * 2 * 1024 * 512;
    // ZeRO-3 makes a bucket of each of the two layers, whose gradients still leave once a step.
    const std::int64_t bucket = 4 * experts / (zero == 3 ? 2 : 1);
    std::vector<std::string> sums;
    for (int chunk = 0; chunk < (zero == 3 ? 2 : 1); ++chunk) {
      sums.insert(sums.begin(), "all_reduce shard_gradients chunk " + std::to_string(chunk) +
                                    " over expert_replica: " + std::to_string(bucket));
    }
    EXPECT_THAT(expert_syncs(program), ::testing::UnorderedElementsAreArray(sums));
    // Twelve bytes of optimizer states of each expert's parameter, and of half of all others.
    const auto optimizer = [](const Plan& each) { return memory_need(each, 0).optimizer.count(); };
    Plan whole = plan;
    whole.layout.shard_size = 0;
    whole.layout.zero_stage = 0;
    const std::int64_t others = optimizer(whole) - 12 * experts;
    EXPECT_NEAR(static_cast<double>(optimizer(plan)),
                static_cast<double>(12 * experts + others / 2), 64);
  }
}

TEST(ExpertPrograms, ALostSumOfExpertsShardsIsFound) {
  Program program = lower(in_groups(4, 1));
  auto& ops = program.stages[0].ops;
  for (std::uint32_t at = 0; at < ops.size(); ++at) {
    program::Op& op = ops[program::OpId{at}];
    const auto grid = program.communicators[op.communicator.value].grid;
    const bool is_of_experts = op.kind == OpKind::Collective && grid == program::GridKind::Expert;
    if (is_of_experts && op.payload == Payload::ShardGradients) op.chunk = -1;
  }
  const auto violations = program::verify(program);
  ASSERT_FALSE(violations.empty());
  EXPECT_THAT(violations.front().message,
              ::testing::HasSubstr("shards of experts' gradients are summed over their replicas 0 "
                                   "times, must be once"));
}

// Two fp32 sums for each matrix: 4 of attention and router and embeddings over those that hold a
// part of them, 2 of each expert over those of experts.
TEST(ExpertPrograms, LambSumsNormsOfExpertsOverTheirOwnParts) {
  const auto norms = [](int etp, int zero_stage) {
    Plan plan = folded();
    plan.layout.etp = etp;
    plan.layout.ep = 2;
    plan.layout.zero_stage = zero_stage;
    plan.training.optimizer = program::Optimizer::Lamb;
    const Program program = lower(plan);
    EXPECT_TRUE(program::verify(program).empty());
    std::vector<std::string> lines;
    for (const program::Op& op : program.stages[0].ops) {
      if (op.payload != Payload::UpdateNorms) continue;
      lines.push_back(program.communicators[op.communicator.value].name + " " +
                      std::to_string(op.bytes.count()));
    }
    return lines;
  };
  // Two layers of query-key-value, projection and router; words and positions.
  const std::string common = std::to_string(8 * (2 * 3 + 2));
  const std::string experts = std::to_string(8 * (2 * 2 * 4));
  using ::testing::ElementsAre;
  EXPECT_THAT(norms(1, 1), ElementsAre("norms " + common, "edp " + experts));
  EXPECT_THAT(norms(2, 1), ElementsAre("norms " + common, "expert_norms " + experts));
  EXPECT_THAT(norms(2, 0), ElementsAre("tp " + common, "etp " + experts));
  EXPECT_THAT(norms(1, 0), ElementsAre("tp " + common));
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
