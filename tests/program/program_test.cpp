#include "foresail/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/program/placement.h"
#include "programs.h"

namespace foresail::program {
namespace {

std::vector<std::uint32_t> numbers(const std::vector<RankId>& ranks) {
  std::vector<std::uint32_t> all;
  for (const RankId rank : ranks) all.push_back(rank.value);
  return all;
}

// Ranks of pp 4 x dp 2 in default order: stage s holds ranks 2s and 2s + 1.
const Shape kFourStages{.stages = 4, .microbatches = 8};

TEST(Program, GivesARankTheOpsOfItsStage) {
  const Program program = make_1f1b(kFourStages);
  EXPECT_EQ(program.of(RankId{5}), program.stages[2]);
}

TEST(Program, KnowsTheMembersOfACommunicator) {
  const Program program = make_1f1b(kFourStages);
  EXPECT_EQ(numbers(program.members(CommunicatorId{0}, RankId{5})), (std::vector{4u, 5u}));
  EXPECT_EQ(numbers(program.members(CommunicatorId{1}, RankId{5})), (std::vector{1u, 3u, 5u, 7u}));
  // The embedding group holds first and last stage only, and rank 5 is on stage 2.
  EXPECT_EQ(numbers(program.members(CommunicatorId{2}, RankId{7})), (std::vector{1u, 7u}));
  EXPECT_TRUE(program.members(CommunicatorId{2}, RankId{5}).empty());
}

TEST(Program, FindsThePeerOnAnotherStage) {
  EXPECT_EQ(make_1f1b(kFourStages).peer(RankId{5}, 3), RankId{7});
}

TEST(Describe, NamesWhatTheOpDoes) {
  const Program program = make_1f1b(kFourStages);
  std::vector<std::string> lines;
  for (const Op& op : program.stages[3].ops) lines.push_back(describe(op));
  EXPECT_THAT(lines,
              testing::IsSupersetOf({"host load_batch", "compute forward chunk 0 microbatch 7",
                                     "recv activation chunk 0 microbatch 7 from stage 2",
                                     "send gradient chunk 0 microbatch 0 to stage 2",
                                     "reduce_scatter chunk_gradients chunk 0",
                                     "all_reduce step_scalars", "compute optimizer"}));
}

std::string digest_of(const Program& program, RankId rank) {
  ProgramDigest digest;
  for (std::uint32_t op = 0; op < program.of(rank).ops.size(); ++op) {
    digest.add(program, rank, OpId{op});
  }
  return digest.hex();
}

TEST(ProgramDigest, DiffersByRankThroughPeersAndMembers) {
  const Program program = make_1f1b(kFourStages);
  EXPECT_EQ(digest_of(program, RankId{2}), digest_of(program, RankId{2}));
  EXPECT_NE(digest_of(program, RankId{2}), digest_of(program, RankId{3}));
}

TEST(ProgramDigest, ChangesWithEveryOpThatWasExecuted) {
  const Program program = make_1f1b(kFourStages);
  Program smaller = program;
  op_at(smaller, 1, "send activation chunk 0 microbatch 2 to stage 2").bytes = Bytes(4095);
  EXPECT_NE(digest_of(program, RankId{2}), digest_of(smaller, RankId{2}));
  EXPECT_NE(program_digest(program), program_digest(smaller));
  EXPECT_EQ(program_digest(program).size(), 64u);

  ProgramDigest none;
  ProgramDigest one;
  one.add(program, RankId{2}, OpId{0});
  EXPECT_NE(none.hex(), one.hex());
}

TEST(Placement, IsTheIdentityByDefault) {
  const Placement placement = Placement::identity(3);
  ASSERT_EQ(placement.device_of.size(), 3u);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(placement.device_of[RankId{rank}], DeviceId{rank});
  }
}

}  // namespace
}  // namespace foresail::program
