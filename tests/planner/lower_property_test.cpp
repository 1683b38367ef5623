// Random legal layouts of small models: whatever is legal lowers to a Program that may run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "foresail/base/rng.h"
#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "plans.h"
#include "program_run.h"

namespace foresail::planner {
namespace {

using program::OpKind;
using program::Program;

class Draw {
 public:
  explicit Draw(std::uint64_t index) : stream_(Rng(20240601).stream("layouts", index)) {}
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

Plan draw_plan(std::uint64_t index) {
  Draw draw(index);
  Layout layout;
  layout.tp = draw.of({1, 1, 2, 4});
  layout.cp = draw.of({1, 1, 1, 2});
  layout.dp = draw.between(1, 3);
  layout.pp = draw.between(1, 5);
  layout.schedule = draw.of(
      {ScheduleKind::Gpipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::Interleaved});
  if (layout.schedule == ScheduleKind::Interleaved) {
    layout.v = draw.between(2, 3);
    layout.group_size = draw.coin() ? 0 : draw.between(layout.pp, layout.pp + 3);
  }
  layout.microbatch_size = draw.between(1, 2);
  layout.sequence_parallel = draw.coin() && layout.tp > 1;
  layout.zero_stage = draw.between(0, 3);
  layout.recompute =
      draw.of({models::Recompute::None, models::Recompute::Selective, models::Recompute::Full});
  layout.overlap = {.tp = draw.coin(), .pp = draw.coin(), .dp = draw.coin()};
  if (draw.coin()) {
    using program::Axis;
    layout.rank_order = {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Pp, Axis::Dp};
  }
  models::Model model = plain_model(layout.pp * layout.v * draw.between(1, 2));
  model.tied_embeddings = draw.coin();
  model.block = draw.of({models::Block::Serial, models::Block::Parallel});
  model.activation = draw.of({models::Activation::Gelu, models::Activation::SwiGlu});
  model.kv_heads = draw.of({4, 8});
  Plan plan = plan_of(model, layout, draw.between(1, 12));
  plan.training.precision = draw.of({DType::Bf16, DType::Fp32, DType::Fp8});
  plan.stack.flash_attention = draw.coin();
  plan.stack.scatter_gather = draw.coin();
  if (layout.pp > 1 && draw.coin()) {
    StageLayers& stages = plan.layout.stages;
    stages.account_for_loss = draw.coin();
    stages.account_for_embedding = draw.coin();
    plan.model.layers -= (stages.account_for_loss ? 1 : 0) + (stages.account_for_embedding ? 1 : 0);
    plan.model.layers = std::max(plan.model.layers, 1);
  }
  const int size = draw.between(2, 3);
  if (layout.zero_stage > 0 && layout.dp * layout.cp % size == 0 && draw.coin()) {
    plan.layout.shard_size = size;
  }
  return plan;
}

bool is_legal(const Plan& plan) {
  return check(plan).broken.empty();
}

constexpr std::uint64_t kCases = 700;

TEST(LowerProperties, EnoughDrawsAreLegal) {
  int legal = 0;
  for (std::uint64_t index = 0; index < kCases; ++index) legal += is_legal(draw_plan(index));
  EXPECT_GT(legal, 400);
}

TEST(LowerProperties, LegalLayoutsVerifyAndRun) {
  for (std::uint64_t index = 0; index < kCases; ++index) {
    const Plan plan = draw_plan(index);
    if (!is_legal(plan)) continue;
    const Program program = lower(plan);
    const auto violations = program::verify(program);
    EXPECT_TRUE(violations.empty())
        << "case " << index << ": " << violations.front().message << '\n'
        << to_document(plan.layout).dump();
    EXPECT_TRUE(run(program, {.forward = 1, .backward = 2, .message = 1}).has_value())
        << "case " << index;
  }
}

TEST(LowerProperties, MessageCountsFollowTheBoundaries) {
  for (std::uint64_t index = 0; index < kCases; ++index) {
    const Plan plan = draw_plan(index);
    if (!is_legal(plan)) continue;
    const Program program = lower(plan);
    int sends = 0;
    int receives = 0;
    for (const auto& stage : program.stages) {
      for (const auto& op : stage.ops) {
        sends += op.kind == OpKind::Send;
        receives += op.kind == OpKind::Recv;
      }
    }
    const int boundaries = plan.layout.pp == 1 ? 0 : plan.layout.pp * plan.layout.v - 1;
    EXPECT_EQ(sends, 2 * program.microbatches * boundaries) << "case " << index;
    EXPECT_EQ(receives, sends) << "case " << index;
  }
}

/// Every rank's collectives by communicator and group, as text.
TEST(LowerProperties, MembersOfACommunicatorIssueOneSequence) {
  for (std::uint64_t index = 0; index < kCases; index += 3) {
    const Plan plan = draw_plan(index);
    if (!is_legal(plan)) continue;
    const Program program = lower(plan);
    std::map<std::string, std::string> sequence_of;  // by communicator and first member
    for (std::uint32_t rank = 0; std::cmp_less(rank, program.grid.world_size()); ++rank) {
      std::map<std::string, std::string> mine;
      for (const auto& op : program.of(RankId{rank}).ops) {
        if (op.kind != OpKind::Collective) continue;
        const auto members = program.members(op.communicator, RankId{rank});
        ASSERT_GT(members.size(), 1u) << "case " << index;
        const std::string group =
            fmt::format("{} {}", op.communicator.value, members.front().value);
        mine[group] +=
            fmt::format("{} {} {};", program::describe(op), op.bytes.count(), to_string(op.dtype));
      }
      for (const auto& [group, sequence] : mine) {
        const auto [at, is_new] = sequence_of.try_emplace(group, sequence);
        EXPECT_EQ(at->second, sequence) << "case " << index << " rank " << rank;
      }
    }
  }
}

TEST(LowerProperties, AfterNamesEarlierOps) {
  for (std::uint64_t index = 0; index < kCases; ++index) {
    const Plan plan = draw_plan(index);
    if (!is_legal(plan)) continue;
    for (const auto& stage : lower(plan).stages) {
      for (std::uint32_t at = 0; at < stage.ops.size(); ++at) {
        for (const program::OpId before : stage.ops[program::OpId{at}].after) {
          EXPECT_LT(before.value, at) << "case " << index;
        }
      }
    }
  }
}

TEST(LowerProperties, LoweringTwiceGivesOneText) {
  for (std::uint64_t index = 0; index < 40; ++index) {
    const Plan plan = draw_plan(index);
    if (!is_legal(plan)) continue;
    const std::string text = program::to_text(lower(plan));
    EXPECT_EQ(text, program::to_text(lower(plan)));
    EXPECT_EQ(program::parse_program(text, "program"), lower(plan)) << "case " << index;
  }
}

}  // namespace
}  // namespace foresail::planner
