#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

models::Model mixture() {
  models::Model model = plain_model(4);
  model.experts = {.count = 8, .per_token = 2, .ffn = 512};
  return model;
}

Layout grid(int tp, int dp, int ep, int etp) {
  Layout layout;
  layout.tp = tp;
  layout.dp = dp;
  layout.ep = ep;
  layout.etp = etp;
  layout.sequence_parallel = tp > 1;
  return layout;
}

struct Case {
  const char* law;
  const char* message;
  Layout layout;
};

std::vector<std::string> broken(const models::Model& model, const Layout& layout,
                                const program::Training& training) {
  std::vector<std::string> texts;
  for (const BrokenLaw& law : check_laws(model, layout, training, layout.world_size())) {
    texts.push_back(law.name + ": " + law.message);
  }
  return texts;
}

program::Training batch(const Layout& layout) {
  program::Training training;
  training.global_batch_size = 4 * layout.dp;
  training.sequence_length = 64;
  return training;
}

std::vector<std::string> broken(const models::Model& model, const Layout& layout) {
  return broken(model, layout, batch(layout));
}

TEST(ExpertLaws, FoldedLayoutsAreLegal) {
  for (const Layout& layout : {grid(1, 8, 8, 1), grid(4, 2, 8, 1), grid(2, 4, 2, 2),
                               grid(2, 4, 1, 8), grid(1, 8, 4, 2), grid(4, 2, 2, 0)}) {
    EXPECT_TRUE(broken(mixture(), layout).empty()) << broken(mixture(), layout).front();
  }
}

TEST(ExpertLaws, EachNamesItsTerms) {
  const auto with = [](Layout layout, auto change) {
    change(layout);
    return layout;
  };
  using program::Axis;
  const std::vector<Case> cases = {
      {"experts_by_ep", "experts 8 % ep 3 = 2, must be 0", grid(1, 3, 3, 1)},
      {"expert_ffn_by_etp", "expert ffn 512 % etp 3 = 2, must be 0", grid(1, 3, 1, 3)},
      {"expert_ranks", "(tp 2 * cp 1 * dp 2) = 4 % (etp 1 * ep 8) = 4, must be 0",
       grid(2, 2, 8, 1)},
      {"experts_need_sequence_parallel",
       "experts with tp 2 need sequence_parallel true, but it is false",
       with(grid(2, 2, 2, 1), [](Layout& l) { l.sequence_parallel = false; })},
      {"overlap_ep_needs_shared",
       "overlap.ep true, but model plain has no shared experts, must be false",
       with(grid(1, 2, 2, 1), [](Layout& l) { l.overlap.ep = true; })},
      {"expert_pipelines",
       "rank_order tp-cp-ep-pp-dp puts stages 1 ranks apart by tp 1, cp 1 and dp 4, but those of "
       "experts 2 by etp 1, ep 2 and edp 2, must be equal",
       with(grid(1, 4, 2, 1), [](Layout& l) {
         l.pp = 2;
         l.rank_order = {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Pp, Axis::Dp};
       })}};
  for (const Case& each : cases) {
    EXPECT_THAT(broken(mixture(), each.layout),
                ElementsAre(std::string(each.law) + ": " + each.message));
  }
}

TEST(ExpertLaws, EveryOptimizerStepsThem) {
  const Layout layout = grid(1, 4, 4, 1);
  program::Training training = batch(layout);
  for (const auto optimizer :
       {program::Optimizer::AdamW, program::Optimizer::Lamb, program::Optimizer::Adam}) {
    training.optimizer = optimizer;
    EXPECT_THAT(broken(mixture(), layout, training), ElementsAre());
  }
}

// Six groups of two ranks need at least six copies of each expert.
TEST(ExpertLaws, CopiesAreDealtToTheGroupsThatShard) {
  Layout layout = grid(1, 12, 1, 1);
  layout.zero_stage = 1;
  layout.shard_size = 2;
  EXPECT_THAT(broken(mixture(), layout), ElementsAre());
  layout.ep = 4;
  EXPECT_THAT(
      broken(mixture(), layout),
      ElementsAre(
          "expert_copies_by_groups: (tp 1 * cp 1 * dp 12 / (etp 1 * ep 4)) 3 copies of each "
          "expert % (dp 12 * cp 1 / shard_size 2) 6 groups = 3, must be 0"));
  layout.shard_size = 4;
  EXPECT_THAT(broken(mixture(), layout), ElementsAre());
}

TEST(ExpertLaws, DenseModelsHaveNothingToSplit) {
  Layout layout = grid(2, 2, 2, 1);
  layout.overlap.ep = true;
  program::Training training = batch(layout);
  training.expert_load = {{0.5, 0.5}};
  EXPECT_THAT(broken(plain_model(4), layout, training),
              ElementsAre("ep_needs_experts: ep 2, but model plain has no experts, must be 1",
                          HasSubstr("etp_needs_experts"), HasSubstr("overlap_ep_needs_experts"),
                          HasSubstr("expert_load_needs_experts")));
}

TEST(ExpertLaws, LoadsFitTheModel) {
  const Layout layout = grid(1, 2, 2, 1);
  program::Training training = batch(layout);
  training.expert_load = {{0.5, 0.5}};
  EXPECT_THAT(broken(mixture(), layout, training),
              ElementsAre("expert_load_by_experts: row 0 of expert_load has 2 shares, must have 8 "
                          "(experts.count)"));
  training.expert_load = {{0.65, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05}};
  EXPECT_THAT(broken(mixture(), layout, training),
              ElementsAre("expert_load_by_per_token: row 0 of expert_load gives expert 0 a share "
                          "of 0.65, must be at most 1 / per_token 2 = 0.5"));
  const std::vector<double> even(8, 0.125);
  training.expert_load = {even, even, even};
  EXPECT_THAT(broken(mixture(), layout, training),
              ElementsAre("expert_load_by_layers: expert_load has 3 rows, must have 1 or one for "
                          "each of 4 layers with experts"));
  training.expert_load = {even, even, even, even};
  EXPECT_TRUE(broken(mixture(), layout, training).empty());
  training.expert_load = {std::vector<double>(8, 0.1)};
  EXPECT_THAT(broken(mixture(), layout, training),
              ElementsAre(HasSubstr("row 0 of expert_load sums to 0.8")));
}

TEST(ContextParallelLaws, HeadsAreTraded) {
  Layout layout;
  layout.tp = 2;
  layout.cp = 8;
  layout.cp_kind = models::ContextParallel::AllToAll;
  models::Model model = plain_model(4);
  model.kv_heads = 4;
  EXPECT_THAT(
      broken(model, layout),
      ElementsAre("heads_by_tp_cp: heads 8 % (tp 2 * cp 8) = 8, must be 0 with cp_kind all_to_all",
                  HasSubstr("kv_heads_by_tp_cp: kv_heads 4 % (tp 2 * cp 8) = 4")));
  layout.cp = 1;
  layout.cp_kind = models::ContextParallel::Ring;
  EXPECT_THAT(broken(model, layout),
              ElementsAre("cp_kind_needs_cp: cp_kind ring needs cp > 1, but cp is 1"));
}

program::Training read(const std::string& load) {
  return read_training(Yaml::parse(
      "{global_batch_size: 8, sequence_length: 64, expert_load: " + load + "}", "training.yaml"));
}

std::string refusal(const std::string& load) {
  try {
    read(load);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertLoad, IsReadAsSharesOrCounts) {
  EXPECT_TRUE(read("uniform").expert_load.empty());
  EXPECT_THAT(read("[1, 3]").expert_load, ElementsAre(ElementsAre(0.25, 0.75)));
  EXPECT_THAT(read("[[1, 1], [3, 1]]").expert_load,
              ElementsAre(ElementsAre(0.5, 0.5), ElementsAre(0.75, 0.25)));
  EXPECT_THAT(refusal("[0, 0]"), HasSubstr("sums to 0"));
  EXPECT_THAT(refusal("[-1, 2]"), HasSubstr("between 0 and 1e15"));
  EXPECT_THAT(refusal("even"), HasSubstr("must be uniform"));
}

TEST(ExpertLoad, ReadsBackFromItsDocument) {
  program::Training training = read("[[1, 2, 4], [3, 3, 1]]");
  const Document document = to_document(training);
  EXPECT_EQ(read_training(Yaml::parse(to_yaml(document), "training.yaml")), training);
  EXPECT_FALSE(to_document(read("uniform")).contains("expert_load"));
}

TEST(ExpertLoad, IsReadFromAFileOfCounts) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "foresail_expert_load";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "counts.csv") << "# tokens by expert\n100, 300\n\n50,150 # layer 1\n";
  std::ofstream(folder / "job.yaml")
      << "{global_batch_size: 8, sequence_length: 64, expert_load: {file: counts.csv}}\n";
  EXPECT_THAT(read_training(Yaml::load(folder / "job.yaml")).expert_load,
              ElementsAre(ElementsAre(0.25, 0.75), ElementsAre(0.25, 0.75)));
  std::ofstream(folder / "counts.csv") << "100, many\n";
  try {
    read_training(Yaml::load(folder / "job.yaml"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("counts.csv:1: \" many\" is no count of tokens"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace foresail::planner
