#include "foresail/program/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "programs.h"

namespace foresail::program {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using Rule = Violation::Rule;

/// "passes_once: stage 0 ..." for each violation.
std::vector<std::string> complaints(const Program& program) {
  std::vector<std::string> all;
  for (const Violation& violation : verify(program)) {
    all.push_back(std::string(to_string(violation.rule)) + ": " + violation.message);
  }
  return all;
}

Program two_stages() {
  return make_1f1b({.stages = 2, .microbatches = 4});
}

/// Two chunks per stage, so that messages also go from the last stage to the first.
Program wrapped() {
  const Shape shape{.stages = 2, .chunks = 2, .microbatches = 2};
  return make_program(shape, {gpipe(shape), gpipe(shape)});
}

TEST(Verifier, AcceptsSchedulesInOneGlobalOrder) {
  for (const int stages : {1, 2, 4, 8}) {
    for (const int microbatches : {1, 3, 8}) {
      EXPECT_THAT(complaints(make_1f1b({.stages = stages, .microbatches = microbatches})),
                  IsEmpty());
    }
  }
  EXPECT_THAT(complaints(wrapped()), IsEmpty());
}

TEST(Verifier, PrintsTheCycleOfABlockingOrder) {
  // Stage 0 wants to send forward 1 before it takes gradient 0; stage 1 the other way round.
  EXPECT_THAT(
      complaints(make_1f1b({.stages = 2, .microbatches = 4}, Queueing::Blocking)),
      ElementsAre("rendezvous: deadlock: stage 0 send activation chunk 0 microbatch 1 to stage 1 "
                  "waits for stage 1 recv activation chunk 0 microbatch 1 from stage 0, which "
                  "waits for stage 1 send gradient chunk 0 microbatch 0 to stage 0, which waits "
                  "for stage 0 recv gradient chunk 0 microbatch 0 from stage 1, which waits for "
                  "stage 0 send activation chunk 0 microbatch 1 to stage 1"));
  EXPECT_THAT(complaints(make_1f1b({.stages = 4, .microbatches = 8}, Queueing::Blocking)),
              ElementsAre(HasSubstr("deadlock: stage ")));
}

TEST(Verifier, AcceptsBlockingOrdersThatDoNotCross) {
  const Shape shape{.stages = 4, .microbatches = 4};
  const std::vector<std::vector<PassSlot>> order(4, gpipe(shape));
  EXPECT_THAT(complaints(make_program(shape, order, Queueing::Blocking)), IsEmpty());
}

TEST(Verifier, FindsSwappedReceives) {
  Program program = two_stages();
  std::swap(op_at(program, 1, "recv activation chunk 0 microbatch 2 from stage 0").microbatch,
            op_at(program, 1, "recv activation chunk 0 microbatch 3 from stage 0").microbatch);
  EXPECT_THAT(
      complaints(program),
      Contains("messages_match: message 2 from stage 0 to stage 1: sent is activation chunk 0 "
               "microbatch 2, 4096 B bf16 on pp, but received is activation chunk 0 microbatch "
               "3, 4096 B bf16 on pp"));
}

TEST(Verifier, FindsWrongBytesAndDtype) {
  Program program = two_stages();
  op_at(program, 1, "recv activation chunk 0 microbatch 2 from stage 0").bytes = Bytes(2048);
  EXPECT_THAT(complaints(program),
              ElementsAre(HasSubstr("received is activation chunk 0 microbatch "
                                    "2, 2048 B bf16 on pp")));
  program = two_stages();
  op_at(program, 0, "recv gradient chunk 0 microbatch 0 from stage 1").dtype = DType::Fp32;
  EXPECT_THAT(complaints(program), ElementsAre(HasSubstr("4096 B fp32 on pp")));
}

TEST(Verifier, FindsAMessageThatNobodyReceives) {
  const Program program =
      without(two_stages(), 1, "recv activation chunk 0 microbatch 3 from stage 0");
  EXPECT_THAT(
      complaints(program),
      IsSupersetOf({"messages_match: stage 0 sends 4 messages to stage 1, which receives 3",
                    "rendezvous: deadlock: stage 0 send activation chunk 0 microbatch 3 to stage 1 "
                    "waits for stage 1, which has no recv for it"}));
}

TEST(Verifier, FindsAPassThatDoesNotWaitForItsMessage) {
  Program program = two_stages();
  op_at(program, 1, "compute forward chunk 0 microbatch 2").after.clear();
  EXPECT_THAT(complaints(program),
              ElementsAre(testing::AllOf(
                  HasSubstr("compute forward chunk 0 microbatch 2: does not wait for op "),
                  HasSubstr("recv activation chunk 0 microbatch 2 from stage 0"))));
}

TEST(Verifier, FindsAMessageThatDoesNotWaitForItsPass) {
  Program program = two_stages();
  op_at(program, 0, "send activation chunk 0 microbatch 2 to stage 1").after.clear();
  EXPECT_THAT(
      complaints(program),
      ElementsAre(testing::AllOf(
          HasSubstr("messages_match: stage 0 op "),
          HasSubstr("send activation chunk 0 microbatch 2 to stage 1: does not wait for op "),
          HasSubstr("compute forward chunk 0 microbatch 2"))));
}

TEST(Verifier, FindsABorderThatNoMessageCrosses) {
  Program program = without(two_stages(), 0, "send activation chunk 0 microbatch 3 to stage 1");
  program = without(program, 1, "recv activation chunk 0 microbatch 3 from stage 0");
  EXPECT_THAT(complaints(program),
              ElementsAre(HasSubstr("compute forward chunk 0 microbatch 3: does not wait for a "
                                    "recv of its input")));
}

TEST(Verifier, NeedsNoMessagesBetweenTheChunksOfOneStage) {
  const Shape shape{.stages = 1, .chunks = 3, .microbatches = 2};
  Program program = make_program(shape, {gpipe(shape)});
  EXPECT_THAT(complaints(program), IsEmpty());
  std::swap(op_at(program, 0, "compute forward chunk 1 microbatch 0").chunk,
            op_at(program, 0, "compute forward chunk 2 microbatch 0").chunk);
  EXPECT_THAT(complaints(program),
              ElementsAre(testing::AllOf(
                  HasSubstr("compute forward chunk 2 microbatch 0: does not wait for op "),
                  HasSubstr("compute forward chunk 1 microbatch 0"))));
}

TEST(Verifier, FindsAMessageInTheWrongDirection) {
  Program program = make_1f1b({.stages = 4, .microbatches = 4});
  op_at(program, 1, "send activation chunk 0 microbatch 0 to stage 2").peer_stage = 0;
  EXPECT_THAT(complaints(program), Contains("messages_match: stage 1 send activation chunk "
                                            "0 microbatch 0 to stage 0: must go to stage 2"));
}

TEST(Verifier, CountsChunksAcrossTheWrapAround) {
  // Stage 1 sends its chunk 0 forward: at stage 0 that is chunk 1.
  Program program = wrapped();
  op_at(program, 0, "recv activation chunk 1 microbatch 0 from stage 1").chunk = 0;
  EXPECT_THAT(complaints(program),
              Contains(HasSubstr("sent is activation chunk 1 microbatch 0, 4096 B bf16 on pp, "
                                 "but received is activation chunk 0 microbatch 0")));
}

TEST(Verifier, FindsAMissingPass) {
  EXPECT_THAT(complaints(without(two_stages(), 1, "compute backward chunk 0 microbatch 2")),
              Contains("passes_once: stage 1 chunk 0 microbatch 2: 0 backward, 0 backward_input "
                       "and 0 backward_weight, must be 1, 0 and 0, or 0, 1 and 1"));
  EXPECT_THAT(
      complaints(without(two_stages(), 0, "compute forward chunk 0 microbatch 3")),
      IsSupersetOf({"passes_once: stage 0 compute backward chunk 0 microbatch 3 stands before its "
                    "forward pass",
                    "passes_once: stage 0 chunk 0 microbatch 3: 0 forward passes, must be 1"}));
}

TEST(Verifier, FindsARepeatedPass) {
  Program program = two_stages();
  Op again = op_at(program, 0, "compute forward chunk 0 microbatch 1");
  program.stages[0].ops.push_back(again);
  EXPECT_THAT(
      complaints(program),
      ElementsAre("passes_once: stage 0 chunk 0 microbatch 1: 2 forward passes, must be 1"));
}

/// Stage 1's backward 2 in two halves, the weights' half at the end of its compute lane.
Program split_backward() {
  Program program = two_stages();
  op_at(program, 1, "compute backward chunk 0 microbatch 2").pass = Pass::BackwardInput;
  Op weight = op_at(program, 1, "compute backward_input chunk 0 microbatch 2");
  weight.pass = Pass::BackwardWeight;
  const OpId last = program.stages[1].ops.push_back(weight);
  op_at(program, 1, "reduce_scatter chunk_gradients chunk 0").after = {last};
  return program;
}

TEST(Verifier, AcceptsASplitBackward) {
  EXPECT_THAT(complaints(without(split_backward(), 1, "compute optimizer")), IsEmpty());
}

TEST(Verifier, FindsACycleWithinOneStage) {
  // The optimizer stands before the weights' half, whose gradients it waits for.
  EXPECT_THAT(complaints(split_backward()),
              ElementsAre("rendezvous: deadlock: stage 1 all_reduce step_scalars waits for stage 1 "
                          "reduce_scatter chunk_gradients chunk 0, which waits for stage 1 compute "
                          "backward_weight chunk 0 microbatch 2, which waits for stage 1 compute "
                          "optimizer, which waits for stage 1 all_reduce step_scalars"));
}

TEST(Verifier, LimitsMemoryIfALimitIsGiven) {
  Program program = two_stages();
  program.memory_limit = Bytes(1499);
  EXPECT_THAT(complaints(program), testing::Each(HasSubstr("memory: stage ")));
  EXPECT_EQ(complaints(program).size(), 2u);
  EXPECT_THAT(complaints(program)[0], HasSubstr("parameters 100 B, gradients 200 B"));
  program.memory_limit = Bytes(0);
  EXPECT_THAT(complaints(program), IsEmpty());
}

TEST(Verifier, FindsGradientsThatAreSynchronisedTwiceOrNever) {
  const std::string sync = "reduce_scatter chunk_gradients chunk 0";
  Program program = two_stages();
  program.stages[0].ops.push_back(op_at(program, 0, sync));
  EXPECT_THAT(
      complaints(program),
      ElementsAre("gradients_once: stage 0 chunk 0: gradients are synchronised 2 times, must "
                  "be once (or once for each of 4 microbatches)"));
  EXPECT_THAT(complaints(without(two_stages(), 1, sync)),
              ElementsAre(HasSubstr("stage 1 chunk 0: gradients are synchronised 0 times")));
  EXPECT_THAT(
      complaints(without(make_1f1b({.stages = 2, .microbatches = 4, .replicas = 1}), 1, sync)),
      IsEmpty());
}

TEST(Verifier, FindsGradientsThatLeaveTooEarly) {
  Program program = two_stages();
  op_at(program, 1, "reduce_scatter chunk_gradients chunk 0").after = {
      find_op(program, 1, "compute backward chunk 0 microbatch 2")};
  EXPECT_THAT(complaints(program),
              ElementsAre(testing::AllOf(
                  HasSubstr("gradients_once: stage 1 op "),
                  HasSubstr("reduce_scatter chunk_gradients chunk 0: does not wait for op "),
                  HasSubstr("compute backward chunk 0 microbatch 3"))));
}

TEST(Verifier, AcceptsGradientsSynchronisedPerMicrobatch) {
  Program program = make_1f1b({.stages = 1, .microbatches = 2});
  const std::string sync = "reduce_scatter chunk_gradients chunk 0";
  Op& first = op_at(program, 0, sync);
  Op second = first;
  first.microbatch = 0;
  first.after = {find_op(program, 0, "compute backward chunk 0 microbatch 0")};
  second.microbatch = 1;
  second.after = {find_op(program, 0, "compute backward chunk 0 microbatch 1")};
  const OpId last = program.stages[0].ops.push_back(second);
  EXPECT_THAT(complaints(program), IsEmpty());
  // The second one now waits for the first microbatch only.
  program.stages[0].ops[last].after = {
      find_op(program, 0, "compute backward chunk 0 microbatch 0")};
  Op& optimizer = op_at(program, 0, "compute optimizer");
  optimizer.after.clear();
  EXPECT_THAT(complaints(program), ElementsAre(HasSubstr("does not wait for op")));
}

TEST(Verifier, FindsCollectivesInDifferentOrder) {
  Program program = two_stages();
  Op embedding = op_at(program, 0, "all_reduce step_scalars");
  embedding.payload = Payload::EmbeddingGradients;
  embedding.bytes = Bytes(64);
  for (const std::uint32_t stage : {0u, 1u}) program.stages[stage].ops.push_back(embedding);
  EXPECT_THAT(complaints(program), IsEmpty());
  auto& ops = program.stages[1].ops;
  const OpId last{static_cast<std::uint32_t>(ops.size() - 1)};
  std::swap(op_at(program, 1, "all_reduce step_scalars"), ops[last]);
  EXPECT_THAT(complaints(program),
              ElementsAre("collective_order: collective 0 on world: stage 0 issues all_reduce "
                          "step_scalars of 8 B fp32, but stage 1 issues all_reduce "
                          "embedding_gradients of 64 B fp32"));
}

TEST(Verifier, FindsCollectivesOfStagesThatAreNotMembers) {
  Program program = make_1f1b({.stages = 4, .microbatches = 4});
  Op embedding = op_at(program, 1, "all_reduce step_scalars");
  embedding.communicator = CommunicatorId{2};
  for (const std::uint32_t stage : {0u, 1u, 3u}) program.stages[stage].ops.push_back(embedding);
  EXPECT_THAT(complaints(program), ElementsAre("collective_order: stage 1 all_reduce step_scalars: "
                                               "it is not a member of embedding"));
}

TEST(Verifier, FindsCommunicatorsThatWaitForEachOther) {
  Program program = two_stages();
  Op first = op_at(program, 0, "all_reduce step_scalars");
  Op second = first;
  first.communicator = CommunicatorId{1};
  second.communicator = CommunicatorId{2};
  program.stages[0].ops.push_back(first);
  program.stages[0].ops.push_back(second);
  program.stages[1].ops.push_back(second);
  program.stages[1].ops.push_back(first);
  EXPECT_THAT(complaints(program), ElementsAre(HasSubstr("rendezvous: deadlock: stage ")));
}

TEST(Verifier, SaysWhenAMemberNeverJoins) {
  const Program program = without(two_stages(), 1, "all_reduce step_scalars");
  EXPECT_THAT(complaints(program), Contains(HasSubstr("waits for a member that never joins")));
}

TEST(Verifier, OnlyCountsComplaintsPastAHandful) {
  Program program = make_1f1b({.stages = 2, .microbatches = 100});
  for (std::uint32_t i = 0; i < program.stages[0].ops.size(); ++i) {
    program.stages[0].ops[OpId{i}].pass = Pass::Optimizer;
  }
  // 100 forwards and 100 backwards are gone: 8 complaints are shown.
  const std::vector<std::string> all = complaints(program);
  EXPECT_EQ(all[8], "passes_once: and 192 more");
}

TEST(Verifier, RefusesIdsThatPointNowhere) {
  Program program = two_stages();
  op_at(program, 0, "all_reduce step_scalars").communicator = CommunicatorId{9};
  EXPECT_THROW(verify(program), ContractViolation);
}

/// Any permutation of the pp lane of one stage is either in the common order or is refused.
TEST(Verifier, NeverAcceptsAShuffledLane) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random = Rng(seed).stream("shuffle");
    Program program = make_1f1b({.stages = 4, .microbatches = 6});
    auto& ops = program.stages[static_cast<std::size_t>(random.below(4))].ops;
    std::vector<OpId> lane;
    for (std::uint32_t i = 0; i < ops.size(); ++i) {
      if (ops[OpId{i}].kind == OpKind::Recv) lane.push_back(OpId{i});
    }
    const OpId a = lane[static_cast<std::size_t>(random.below(lane.size()))];
    const OpId b = lane[static_cast<std::size_t>(random.below(lane.size()))];
    const bool is_changed = a != b;
    std::swap(ops[a].microbatch, ops[b].microbatch);
    std::swap(ops[a].payload, ops[b].payload);
    std::swap(ops[a].peer_stage, ops[b].peer_stage);
    EXPECT_EQ(verify(program).empty(), !is_changed);
  }
}

TEST(Verifier, TakesSixtyFourStagesOfFiveThousandOpsInAMoment) {
  const Program program = make_1f1b({.stages = 64, .microbatches = 840});
  EXPECT_GT(program.stages[1].ops.size(), 5000u);
  const std::clock_t begin = std::clock();
  EXPECT_THAT(complaints(program), IsEmpty());
  // 0.3 s of processor time if optimised; room for sanitizers.
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 3.0);
}

}  // namespace
}  // namespace foresail::program
