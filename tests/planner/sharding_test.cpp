// ZeRO within groups of shard_size ranks and copies of the shards between groups (HSDP).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "foresail/planner/plan.h"
#include "foresail/program/verifier.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using program::Axis;
using program::Op;
using program::OpId;
using program::Program;
using testing::ElementsAre;

/// dp 8 in two groups of four.
Layout in_groups(int zero_stage) {
  Layout layout;
  layout.dp = 8;
  layout.zero_stage = zero_stage;
  layout.shard_size = 4;
  layout.overlap.dp = true;
  return layout;
}

/// "reduce_scatter chunk_gradients chunk 0 microbatch 1 over shard: 400", by op of the dp lane.
std::vector<std::string> dp_lane(const Program& program) {
  std::vector<std::string> lines;
  for (const Op& op : program.stages[0].ops) {
    if (op.lane != Lane::Dp && op.lane != Lane::Replica) continue;
    const std::string& name = program.communicators[op.communicator.value].name;
    lines.push_back(describe(op) + " over " + name + ": " + std::to_string(op.bytes.count()));
  }
  return lines;
}

std::vector<std::vector<std::uint32_t>> groups(const Program& program, const std::string& name) {
  std::vector<std::vector<std::uint32_t>> found;
  for (std::uint32_t id = 0; id < program.communicators.size(); ++id) {
    if (program.communicators[id].name != name) continue;
    for (std::uint32_t rank = 0; std::cmp_less(rank, program.grid.world_size()); ++rank) {
      std::vector<std::uint32_t> members;
      for (const RankId member : program.members(program::CommunicatorId{id}, RankId{rank})) {
        members.push_back(member.value);
      }
      if (members.front() == rank) found.push_back(members);
    }
  }
  return found;
}

TEST(HybridSharding, GroupsAreConsecutiveAndCopiesLieAcross) {
  Layout layout = in_groups(1);
  EXPECT_THAT(groups(lower(plan_of(plain_model(2), layout, 1)), "shard"),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(
      groups(lower(plan_of(plain_model(2), layout, 1)), "replica"),
      ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  // With cp inside, a group of four is two sequences of two ranks.
  layout.dp = 4;
  layout.cp = 2;
  layout.rank_order = {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Pp, Axis::Dp};
  EXPECT_THAT(groups(lower(plan_of(plain_model(2), layout, 1)), "shard"),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  // With pp between, consecutive among those that reduce together.
  layout = in_groups(1);
  layout.pp = 2;
  layout.dp = 4;
  layout.shard_size = 2;
  layout.rank_order = {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Pp, Axis::Dp};
  EXPECT_THAT(
      groups(lower(plan_of(plain_model(2), layout, 2)), "shard"),
      ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 6), ElementsAre(5, 7)));
}

// Two layers of P parameters and a batch of two microbatches: the shard of a quarter crosses once.
TEST(HybridSharding, GradientsAreScatteredInsideAndSummedAcross) {
  const Plan plan = plan_of(plain_model(2), in_groups(1), 2);
  const Program program = lower(plan);
  EXPECT_TRUE(program::verify(program).empty());
  const std::int64_t parameters = 2 * models::layer_parameters(plan.model, 1).total() +
                                  models::embedding_parameters(plan.model, 1, 64).total() +
                                  models::head_parameters(plan.model, 1, false).total();
  ASSERT_EQ(parameters % 4, 0);
  const auto bytes = [](std::int64_t count) { return std::to_string(count); };
  EXPECT_THAT(
      dp_lane(program),
      ElementsAre("all_gather chunk_parameters chunk 0 over shard: " + bytes(2 * parameters),
                  "reduce_scatter chunk_gradients chunk 0 over shard: " + bytes(4 * parameters),
                  "all_reduce shard_gradients chunk 0 over replica: " + bytes(parameters),
                  "all_reduce step_scalars over world: 8"));
}

TEST(HybridSharding, FullyShardedGathersInsideAndSumsAcrossOnce) {
  const Plan plan = plan_of(plain_model(2), in_groups(3), 2);
  const Program program = lower(plan);
  EXPECT_TRUE(program::verify(program).empty());
  int gathers = 0;
  int scatters = 0;
  int sums = 0;
  for (const Op& op : program.stages[0].ops) {
    if (op.kind != program::OpKind::Collective) continue;
    if (op.payload == program::Payload::StepScalars) continue;
    const std::string& name = program.communicators[op.communicator.value].name;
    EXPECT_EQ(name, op.payload == program::Payload::ShardGradients ? "replica" : "shard");
    gathers += op.collective == Collective::AllGather;
    scatters += op.collective == Collective::ReduceScatter;
    sums += op.collective == Collective::AllReduce;
  }
  // Two layers, two microbatches, and the tied matrix once: gathers in both passes.
  EXPECT_EQ(gathers, 2 * 2 * 2 + 1);
  EXPECT_EQ(scatters, 2 * 2 + 1);
  EXPECT_EQ(sums, 2 + 1);
}

TEST(HybridSharding, NeedsTheMemoryOfOneGroup) {
  for (const int zero : {1, 2, 3}) {
    Layout alone = in_groups(zero);
    alone.dp = 4;
    alone.shard_size = 0;
    const auto grouped = memory_need(plan_of(plain_model(2), in_groups(zero), 2), 0);
    EXPECT_EQ(grouped.optimizer, memory_need(plan_of(plain_model(2), alone, 2), 0).optimizer);
    EXPECT_EQ(grouped.parameters, memory_need(plan_of(plain_model(2), alone, 2), 0).parameters);
    Layout whole = in_groups(zero);
    whole.shard_size = 0;
    EXPECT_GT(grouped.optimizer, memory_need(plan_of(plain_model(2), whole, 2), 0).optimizer);
  }
}

TEST(HybridSharding, OneGroupOfAllIsPlainSharding) {
  Layout whole = in_groups(2);
  whole.shard_size = 8;
  Layout plain = whole;
  plain.shard_size = 0;
  EXPECT_EQ(lower(plan_of(plain_model(2), whole, 2)), lower(plan_of(plain_model(2), plain, 2)));
}

TEST(HybridSharding, TheVerifierMissesALostSum) {
  Program program = lower(plan_of(plain_model(2), in_groups(1), 1));
  const auto sum = [&]() -> Op& {
    auto& ops = program.stages[0].ops;
    std::uint32_t at = 0;
    while (ops[OpId{at}].payload != program::Payload::ShardGradients) ++at;
    return ops[OpId{at}];
  };
  sum().chunk = -1;
  const auto violations = program::verify(program);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].message,
            "stage 0 chunk 0: shards of gradients are summed over their replicas 0 times, must be "
            "once");
  program = lower(plan_of(plain_model(2), in_groups(1), 1));
  sum().lane = Lane::Host;
  sum().after.clear();
  EXPECT_THAT(program::verify(program).at(0).message,
              testing::HasSubstr("does not wait for op 4 reduce_scatter chunk_gradients chunk 0"));
}

TEST(HybridSharding, TextFormAndDocumentGoBothWays) {
  const Plan plan = plan_of(plain_model(2), in_groups(3), 2);
  const std::string text = to_text(lower(plan));
  EXPECT_THAT(text, testing::HasSubstr("shard axes cp,dp within 4\n"));
  EXPECT_THAT(text, testing::HasSubstr("replica axes cp,dp across 4\n"));
  EXPECT_EQ(program::parse_program(text, "program"), lower(plan));
  const Document document = to_document(plan.layout);
  EXPECT_EQ(read_layout(Yaml::parse(document.dump(), "layout")), plan.layout);
  EXPECT_FALSE(to_document(Layout{}).contains("shard_size"));
}

struct Breach {
  std::string name;
  std::string message;
  int dp, cp, zero_stage, shard_size;
};

TEST(HybridSharding, LawsNameEveryTerm) {
  const std::vector<Breach> breaches = {
      {"shard_size_needs_zero", "shard_size 4 needs zero_stage > 0, but zero_stage is 0", 8, 1, 0,
       4},
      {"shard_size_min", "shard_size 1, must be at least 2: one rank shares nothing (zero_stage 0)",
       8, 1, 1, 1},
      {"ranks_by_shard_size", "(dp 8 * cp 1) 8 % shard_size 3 = 2, must be 0", 8, 1, 2, 3},
      {"ranks_by_shard_size", "(dp 8 * cp 1) 8 % shard_size 16 = 8, must be 0", 8, 1, 3, 16},
      {"shard_size_not_negative", "shard_size -2, must be at least 0", 8, 1, 1, -2},
      {"shard_size_by_inner_axis",
       "shard_size 6 is neither a multiple nor a divisor of cp 4, the inner axis of rank_order "
       "tp-cp-ep-dp-pp",
       3, 4, 1, 6},
  };
  for (const Breach& breach : breaches) {
    Layout layout;
    layout.dp = breach.dp;
    layout.cp = breach.cp;
    layout.zero_stage = breach.zero_stage;
    layout.shard_size = breach.shard_size;
    const Plan plan = plan_of(plain_model(2), layout, 1);
    const auto broken = check_laws(plan.model, layout, plan.training, layout.world_size());
    ASSERT_EQ(broken.size(), 1u) << breach.name;
    EXPECT_EQ(broken[0].name, breach.name);
    EXPECT_EQ(broken[0].message, breach.message);
  }
}

}  // namespace
}  // namespace foresail::planner
