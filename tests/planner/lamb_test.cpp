// What LAMB adds to the end of a step: norms of matrices and updates, and a second half.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/program/verifier.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using program::Op;
using program::OpKind;
using program::Payload;
using program::Program;
using ::testing::ElementsAre;

Plan lamb_plan(const Layout& layout, int layers = 4) {
  Plan plan = plan_of(plain_model(layers), layout, 4);
  plan.training.optimizer = program::Optimizer::Lamb;
  return plan;
}

/// From the first optimizer op on.
std::vector<std::string> end_of_step(const Program& program, std::size_t stage) {
  std::vector<std::string> ops;
  for (const Op& op : program.stages[stage].ops) {
    const bool is_optimizer = op.kind == OpKind::Compute && op.pass == program::Pass::Optimizer;
    if (is_optimizer || !ops.empty()) ops.push_back(program::describe(op));
  }
  return ops;
}

const Op& norms_of(const Program& program, std::size_t stage) {
  for (const Op& op : program.stages[stage].ops) {
    if (op.payload == Payload::UpdateNorms) return op;
  }
  ADD_FAILURE() << "no norms on stage " << stage;
  return program.stages[stage].ops[program::OpId{0}];
}

std::string group_of_norms(const Program& program) {
  return program.communicators[norms_of(program, 0).communicator.value].name;
}

Layout layout_of(int tp, int dp, int zero_stage) {
  Layout layout;
  layout.tp = tp;
  layout.dp = dp;
  layout.zero_stage = zero_stage;
  return layout;
}

TEST(Lamb, ARankThatHoldsWholeMatricesAsksNobody) {
  const Program program = lower(lamb_plan(layout_of(1, 2, 0)));
  EXPECT_THAT(end_of_step(program, 0), ElementsAre("compute optimizer"));
  const Op& last =
      program.stages[0]
          .ops[program::OpId{static_cast<std::uint32_t>(program.stages[0].ops.size() - 1)}];
  const auto& kernels = program.kernel_lists[last.kernels.value].kernels;
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].name, "optimizer");
  EXPECT_EQ(kernels[1].name, "optimizer.apply");
  // Read parameter and update, write the parameter: 12 bytes beside the 28.
  EXPECT_EQ(28 * kernels[1].bytes.count(), 12 * kernels[0].bytes.count());
}

TEST(Lamb, NormsAreSummedOverWhoeverHoldsAPart) {
  EXPECT_EQ(group_of_norms(lower(lamb_plan(layout_of(2, 1, 0)))), "tp");
  EXPECT_EQ(group_of_norms(lower(lamb_plan(layout_of(2, 2, 0)))), "tp");
  EXPECT_EQ(group_of_norms(lower(lamb_plan(layout_of(1, 2, 1)))), "dp");
  EXPECT_EQ(group_of_norms(lower(lamb_plan(layout_of(2, 2, 2)))), "norms");
  Layout copies = layout_of(1, 4, 3);
  copies.shard_size = 2;
  EXPECT_EQ(group_of_norms(lower(lamb_plan(copies))), "shard");
}

TEST(Lamb, HalvesStandAroundTheNormsAndInFrontOfTheGathers) {
  Layout layout = layout_of(2, 2, 1);
  const Program program = lower(lamb_plan(layout));
  EXPECT_TRUE(program::verify(program).empty());
  EXPECT_THAT(end_of_step(program, 0),
              ElementsAre("compute optimizer", "all_reduce update_norms", "compute optimizer",
                          "all_gather chunk_parameters chunk 0"));
  const Plan adam = plan_of(plain_model(4), layout, 4);
  EXPECT_EQ(lower(adam).communicators.size() + 1, program.communicators.size());
}

TEST(Lamb, NormsAreTwoNumbersForEachMatrixOfTheStage) {
  Layout layout = layout_of(2, 1, 0);
  layout.pp = 2;
  models::Model model = plain_model(4);
  for (const bool is_tied : {true, false}) {
    model.tied_embeddings = is_tied;
    Plan plan = plan_of(model, layout, 4);
    plan.training.optimizer = program::Optimizer::Lamb;
    const Program program = lower(plan);
    EXPECT_TRUE(program::verify(program).empty());
    const int positions = model.positions == models::Positions::Learned ? 1 : 0;
    // Two layers of four matrices on each stage, and the words; the last has a copy or a head.
    EXPECT_EQ(norms_of(program, 0).bytes.count(), 8 * (2 * 4 + 1 + positions));
    EXPECT_EQ(norms_of(program, 1).bytes.count(), 8 * (2 * 4 + 1));
  }
}

}  // namespace
}  // namespace foresail::planner
