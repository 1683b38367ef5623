#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/base/error.h"
#include "kernels.h"

namespace foresail::models {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// h = 64, 4 heads of 16; 8 experts of width 32, 2 per token.
Model small() {
  Model model;
  model.name = "small";
  model.layers = 4;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_size = 16;
  model.ffn = 256;
  model.vocab = 256;
  model.biases = false;
  model.experts = {.count = 8, .per_token = 2, .ffn = 32};
  return model;
}

// 2 samples of 8 tokens: T = 16, so 32 copies; 4 experts on each of 2 ranks.
Split split_of(int ep = 2) {
  Split split;
  split.ep = ep;
  split.microbatch_size = 2;
  split.sequence_length = 8;
  return split;
}

constexpr std::int64_t kRow = 64 * 2;  // bytes

std::string refusal(const Model& model) {
  try {
    check(model);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Experts, RunBetweenNormAndResidual) {
  const Work work = expert_layer_work(small(), split_of(), {});
  EXPECT_THAT(names(work.forward),
              ElementsAre("norm1", "qkv", "attention", "proj", "add1", "norm2", "router",
                          "router.topk", "ep.counts", "permute", "ep.dispatch", "experts.sort",
                          "experts.fc1", "experts.activation", "experts.fc2", "experts.unsort",
                          "ep.combine", "unpermute", "add2"));
  EXPECT_THAT(awaited(work.forward, "permute"), ElementsAre("ep.counts"));
  EXPECT_THAT(awaited(work.forward, "experts.sort"), ElementsAre("ep.dispatch"));
  EXPECT_THAT(awaited(work.forward, "unpermute"), ElementsAre("ep.combine"));
}

TEST(Experts, ShareTheRoutedTokensEqually) {
  const Work work = expert_layer_work(small(), split_of(), {});
  EXPECT_EQ(shape(work.forward, "router"), "16 8 64");
  // 2 ranks route 64 copies to 8 experts.
  EXPECT_EQ(shape(work.forward, "experts.fc1"), "4 x 8 32 64");
  EXPECT_EQ(shape(work.forward, "experts.fc2"), "4 x 8 64 32");
  EXPECT_EQ(shape(work.backward, "experts.fc1.wgrad"), "4 x 32 64 8");
  EXPECT_EQ(kernel(work.forward, "permute").bytes.count(), (16 + 32) * kRow);
  EXPECT_EQ(kernel(work.forward, "ep.dispatch").bytes.count(), 32 * kRow);
  EXPECT_EQ(kernel(work.forward, "ep.counts").bytes.count(), 2 * 8 * 8);
}

TEST(Experts, OnOneRankExchangeNothing) {
  const Work work = expert_layer_work(small(), split_of(1), {});
  EXPECT_THAT(names(work.forward), Not(Contains(HasSubstr("ep."))));
  EXPECT_THAT(names(work.forward), Not(Contains("experts.sort")));
  EXPECT_EQ(shape(work.forward, "experts.fc1"), "8 x 4 32 64");
}

TEST(Experts, ABalanceLossAddsUpCountsOverTheRanksOfASequence) {
  Model model = small();
  Split split = split_of();
  split.tp = 2;
  split.sequence_parallel = true;
  split.cp = 2;
  EXPECT_THAT(names(expert_layer_work(model, split, {}).forward),
              Not(Contains(HasSubstr("router_counts"))));
  model.experts.balance_loss = 0.01;
  const Work work = expert_layer_work(model, split, {});
  // One fp32 count per sample and expert.
  for (const std::string name : {"tp.router_counts", "cp.router_counts"}) {
    EXPECT_EQ(kernel(work.forward, name).bytes.count(), split.microbatch_size * 8 * 4);
  }
  EXPECT_EQ(kernel(work.forward, "cp.router_counts").lane, Lane::Cp);
}

TEST(Experts, BackwardIsTheTranspose) {
  const Work work = expert_layer_work(small(), split_of(), {});
  EXPECT_THAT(names(work.backward),
              ElementsAre("add2.backward", "unpermute.backward", "ep.combine_grad",
                          "experts.unsort.backward", "experts.fc2.dgrad", "experts.fc2.wgrad",
                          "experts.activation.backward", "experts.fc1.dgrad", "experts.fc1.wgrad",
                          "experts.sort.backward", "ep.dispatch_grad", "permute.backward",
                          "router.topk.backward", "router.dgrad", "router.wgrad", "norm2.backward",
                          "add1.backward", "proj.dgrad", "proj.wgrad", "attention.backward",
                          "qkv.dgrad", "qkv.wgrad", "norm1.backward"));
}

// Each expert is cut over expert tp; every rank of a group gets the rows of all of them.
TEST(Experts, AreCutOverExpertTensorParallelRanks) {
  Split split = split_of();
  split.expert_tp = 2;
  const Work work = expert_layer_work(small(), split, {});
  EXPECT_EQ(shape(work.forward, "experts.fc1"), "4 x 16 16 64");
  EXPECT_EQ(kernel(work.forward, "etp.gather_experts").bytes.count(), 64 * kRow);
  EXPECT_EQ(kernel(work.forward, "etp_ep.counts").bytes.count(), 4 * 8 * 8);
  EXPECT_THAT(awaited(work.forward, "experts.sort"),
              ElementsAre("ep.dispatch", "etp.gather_experts"));
  EXPECT_EQ(count_of(work.backward, Collective::ReduceScatter), 1);
}

TEST(Experts, ThePaceIsThatOfTheHottestRank) {
  // Rank 1 holds experts 4 to 7, which get 3/4 of 64 rows: 48; expert 4 alone gets 24.
  const std::vector<double> load = {1 / 16.0, 1 / 16.0, 1 / 16.0, 1 / 16.0,
                                    3 / 8.0,  1 / 8.0,  1 / 8.0,  1 / 8.0};
  const Work work = expert_layer_work(small(), split_of(), load);
  EXPECT_EQ(kernel(work.forward, "ep.dispatch").bytes.count(), 48 * kRow);
  EXPECT_EQ(shape(work.forward, "experts.fc1.0"), "24 32 64");
  EXPECT_EQ(shape(work.forward, "experts.fc1.1"), "3 x 8 32 64");
  EXPECT_EQ(kernel(work.forward, "experts.activation").bytes.count(), 48 * 32 * 4);
}

TEST(Experts, AnEqualLoadIsTheUniformOne) {
  for (const int ep : {1, 2, 4, 8}) {
    const Work uniform = expert_layer_work(small(), split_of(ep), {});
    const Work listed = expert_layer_work(small(), split_of(ep), std::vector<double>(8, 0.125));
    EXPECT_EQ(listed.forward, uniform.forward);
    EXPECT_EQ(listed.backward, uniform.backward);
    EXPECT_EQ(listed.saved_bytes(), uniform.saved_bytes());
  }
}

// ceil(1.5 * 16 * 2 / 8) = 6 rows to every expert from each rank, whatever the router wants.
TEST(Experts, ACapacityPadsAndDrops) {
  Model model = small();
  model.experts.capacity_factor = 1.5;
  const std::vector<double> hot = {0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1};
  for (const std::vector<double>& load : {std::vector<double>{}, hot}) {
    const Work work = expert_layer_work(model, split_of(), load);
    EXPECT_EQ(shape(work.forward, "experts.fc1"), "4 x 12 32 64");
    EXPECT_EQ(kernel(work.forward, "ep.dispatch").bytes.count(), 8 * 6 * kRow);
    EXPECT_THAT(names(work.forward), Not(Contains("ep.counts")));
  }
}

TEST(Experts, SharedExpertsStandBehindOrRunBesideTheExchange) {
  Model model = small();
  model.experts.shared = 2;
  model.experts.shared_ffn = 48;
  const Work behind = expert_layer_work(model, split_of(), {});
  EXPECT_EQ(shape(behind.forward, "shared_fc1"), "16 96 64");
  EXPECT_THAT(awaited(behind.forward, "experts.sort"), ElementsAre("ep.dispatch"));
  EXPECT_LT(index_of(behind.forward, "unpermute"), index_of(behind.forward, "shared_fc1"));
  Split split = split_of();
  split.overlap_ep = true;
  const Work beside = expert_layer_work(model, split, {});
  const auto at = [&](const char* name) { return index_of(beside.forward, name); };
  EXPECT_EQ(at("shared_fc1"), at("ep.dispatch") + 1);
  EXPECT_TRUE(awaited(beside.forward, "shared_fc1").empty());
  EXPECT_EQ(at("shared_fc2"), at("ep.combine") + 1);
  EXPECT_TRUE(awaited(beside.forward, "shared_fc2").empty());
  EXPECT_EQ(flops_of(beside.forward), flops_of(behind.forward));
}

// b s h e bytes of each row; 16 tokens, 32 copies, 32 rows received.
TEST(Experts, KeepWhatTheirBackwardNeeds) {
  const Work dense = layer_work(small(), split_of());
  const Work work = expert_layer_work(small(), split_of(), {});
  const std::int64_t mlp = 16 * kRow + 16 * (256 + 256) * 2;  // fc1's input, around the GeLU
  const std::int64_t routed = 16 * kRow + 16 * 8 * 4;         // router: input, probabilities
  const std::int64_t rows = 32 * (kRow + (32 + 32) * 2) + 32 * kRow;
  EXPECT_EQ(work.saved_bytes().count() - dense.saved_bytes().count(), routed + rows - mlp);
}

TEST(Experts, ParametersAreSplitOverTheirOwnRanks) {
  const RankParameters one = expert_layer_parameters(small(), 1, 1, 1);
  EXPECT_EQ(one.experts, 8 * 2 * 64 * 32);
  EXPECT_EQ(expert_layer_parameters(small(), 2, 4, 2).experts, one.experts / 8);
  const RankParameters dense = layer_parameters(small(), 1);
  EXPECT_EQ(one.total(), dense.total() - 2 * 64 * 256 + 8 * 64);
}

TEST(Experts, StandInTheLayersThatTheModelNames) {
  Model model = small();
  const auto layers = [&] {
    std::string text;
    for (int layer = 0; layer < model.layers; ++layer)
      text += has_experts(model, layer) ? 'x' : '-';
    return text;
  };
  EXPECT_EQ(layers(), "xxxx");
  model.experts.every = 2;
  EXPECT_EQ(layers(), "x-x-");
  model.experts.first_dense_layers = 1;
  EXPECT_EQ(layers(), "-x-x");
  EXPECT_EQ(expert_layers(model), 2);
}

TEST(Experts, ImpossibleOnesAreNamed) {
  Model model = small();
  model.experts.per_token = 9;
  EXPECT_THAT(refusal(model), HasSubstr("per_token 9 is not between 1 and 8"));
  model = small();
  model.experts.first_dense_layers = 4;
  EXPECT_THAT(refusal(model), HasSubstr("first_dense_layers 4 leaves none of 4 layers"));
  model = small();
  model.block = Block::Parallel;
  EXPECT_THAT(refusal(model), HasSubstr("experts need block serial"));
  model = small();
  model.experts.shared_gate = true;
  EXPECT_THAT(refusal(model), HasSubstr("shared_gate needs shared experts"));
}

TEST(Experts, KorthikantisFormulaIsRefused) {
  const FlopConvention convention{FlopFormula::Korthikanti, false};
  EXPECT_THROW(model_flops(small(), 1, 8, convention), Error);
}

struct Published {
  const char* model;
  double total_b, active_b;  // as their authors round them
};

TEST(Experts, CatalogueMeetsThePublishedParameterCounts) {
  for (const Published& each : {Published{"mixtral_8x7b", 46.7, 12.9},
                                {"mixtral_8x22b", 140.6, 39.2},
                                {"deepseek_v2", 235.7, 21.4},
                                {"deepseek_v3", 671.0, 37.6},
                                {"qwen3_30b_a3b", 30.5, 3.3}}) {
    const ParameterCount count = count_parameters(catalogue_model(each.model));
    EXPECT_NEAR(static_cast<double>(count.total()) * 1e-9, each.total_b, 0.06) << each.model;
    EXPECT_NEAR(static_cast<double>(count.active) * 1e-9, each.active_b, 0.06) << each.model;
  }
}

}  // namespace
}  // namespace foresail::models
