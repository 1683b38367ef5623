#include "foresail/scenarios/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A folder of this test alone: tests run beside each other.
std::filesystem::path file() {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto path = std::filesystem::path(::testing::TempDir()) / "foresail_search_test" / name;
  std::filesystem::create_directories(path);
  return path / "scenario.yaml";
}

std::filesystem::path write_search(const std::string& search) {
  write_file(file(),
             "foresail: 1\nmodel: gpt_22b\ncluster: {name: selene, gpus: 64}\n"
             "training: {global_batch_size: 64, sequence_length: 2048}\nsearch: " +
                 search + "\n");
  return file();
}

Scenario load(const std::string& search) {
  return load_question(write_search(search));
}

std::string refusal(const std::string& search) {
  try {
    load(search);
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::InvalidInput);
    return problem.what();
  }
  return "no error";
}

TEST(SearchKeys, ListsRangesAndAll) {
  const Scenario scenario = load(
      "{tp: {from: 1, to: 8, step: x2}, pp: [4, 1], v: 3, zero_stage: {from: 0, to: 2}, "
      "microbatch_size: all, sequence_parallel: true, schedule: [gpipe, 1f1b], "
      "overlap: {dp: [true, false]}, placement: [packed, random]}");
  const planner::SearchSpace& space = scenario.search->problem.space;
  EXPECT_EQ(space.tp, (std::vector{1, 2, 4, 8}));
  EXPECT_EQ(space.pp, (std::vector{4, 1}));
  EXPECT_EQ(space.v, std::vector{3});
  EXPECT_EQ(space.zero_stage, (std::vector{0, 1, 2}));
  EXPECT_TRUE(space.microbatch_size.empty());
  EXPECT_EQ(space.sequence_parallel, std::vector{1});
  EXPECT_EQ(space.schedule.size(), 2u);
  EXPECT_EQ(space.overlap_dp, (std::vector<planner::DataMessages>{true, false}));
  EXPECT_TRUE(space.overlap_tp.empty());
  ASSERT_EQ(space.placement.size(), 2u);
  EXPECT_EQ(space.placement[1].name, "random");
}

TEST(SearchKeys, EveryMistakeNamesFileLineAndKey) {
  EXPECT_THAT(refusal("{tp: eight}"), AllOf(HasSubstr("scenario.yaml:5"), HasSubstr("search.tp")));
  EXPECT_THAT(refusal("{tpp: 8}"), HasSubstr("tpp"));
  EXPECT_THAT(refusal("{tp: [2, 2]}"), HasSubstr("stands here twice"));
  EXPECT_THAT(refusal("{pp: []}"), HasSubstr("names nothing"));
  EXPECT_THAT(refusal("{zero_stage: 4}"), HasSubstr("search.zero_stage"));
  EXPECT_THAT(refusal("{tp: {from: 1, to: 8, step: x1}}"), HasSubstr("never leaves its start"));
  EXPECT_THAT(refusal("{gpus: 128}"), HasSubstr("search.gpus"));
  EXPECT_THAT(refusal("{schedule: [zigzag]}"), HasSubstr("zigzag"));
  EXPECT_THAT(refusal("{objective: cost}"), HasSubstr("price"));
  EXPECT_THAT(refusal("{objective: days}"), HasSubstr("tokens"));
  EXPECT_THAT(refusal("{objective: days, tokens: -1}"), HasSubstr("search.tokens"));
  EXPECT_THAT(refusal("{power_per_gpu: 400}"), HasSubstr("is no power"));
  EXPECT_THAT(refusal("{power_per_gpu: 0 W}"), HasSubstr("search.power_per_gpu"));
  EXPECT_THAT(refusal("{schedule: file}"), HasSubstr("search.schedule"));
  EXPECT_THAT(refusal("{objective: cost, price: {per_gpu_hour: 0, currency: EUR}}"),
              HasSubstr("search.price.per_gpu_hour"));
}

TEST(SearchKeys, OnlyPlanSearches) {
  const auto path = write_search("{tp: 8}");
  EXPECT_THROW(load_scenario(path), Error);
  EXPECT_NE(load_question(path).search, nullptr);
}

SearchAnswer answer_of(const Scenario& scenario, int threads) {
  SearchRunOptions options;
  options.search.threads = threads;
  options.search.top = 3;
  options.explains = true;
  return run_search(*scenario.search, options);
}

TEST(SearchAnswer, IsTheSameForAnyNumberOfThreads) {
  const Scenario scenario = load("{tp: [2, 4, 8], recompute: none, schedule: interleaved}");
  const auto text = [&](int threads) {
    SearchAnswer answer = answer_of(scenario, threads);
    answer.outcome.bound_cpu_s = 0;  // measured
    return to_document(*scenario.search, answer).dump();
  };
  EXPECT_EQ(text(1), text(3));
}

TEST(SearchAnswer, ProvesTheBestAndSaysWhyNotTheOthers) {
  const Scenario scenario = load(
      "{tp: [2, 7], pp: [1, 2], zero_stage: [0, 1], recompute: none, overlap: {tp: true, pp: true, "
      "dp: true}, compare: [{tp: 8, pp: 8, dp: 1}, {tp: 5, dp: 2}, {dp: 64}]}");
  const SearchAnswer answer = answer_of(scenario, 2);
  EXPECT_TRUE(answer.outcome.is_proved);
  EXPECT_EQ(answer.outcome.gap(), 0);
  ASSERT_FALSE(answer.finalists.empty());
  const Finalist& best = answer.finalists[answer.best];
  EXPECT_TRUE(planner::check(best.plan).is_feasible());
  EXPECT_GE(best.step_s, best.candidate.bound_s);
  using Kind = planner::Verdict::Kind;
  ASSERT_GE(answer.explanations.size(), 3u);
  EXPECT_EQ(answer.explanations[0].verdict.kind, Kind::Bounded);
  EXPECT_EQ(answer.explanations[1].verdict.kind, Kind::BrokenLaw);
  EXPECT_THAT(answer.explanations[1].verdict.reason, HasSubstr("% tp 5"));
  EXPECT_EQ(answer.explanations[1].verdict.law, "world_size");
  EXPECT_EQ(answer.explanations[2].verdict.kind, Kind::OutOfMemory);
  EXPECT_GT(answer.explanations[2].verdict.excess.count(), 0);
  EXPECT_THAT(answer.explanations[2].verdict.reason, HasSubstr("optimizer"));
  EXPECT_GT(answer.outcome.law.at("world_size").count, 0);  // tp 7 of 64 GPUs
  EXPECT_THAT(to_text(*scenario.search, answer, 1), HasSubstr("optimal in the space"));
}

TEST(SearchAnswer, CostWeighsTimeByGpus) {
  const std::string axes = "gpus: [32, 64], tp: [4, 8], recompute: none, zero_stage: 1";
  const Scenario fast = load("{" + axes + "}");
  const Scenario cheap =
      load("{" + axes + ", objective: cost, price: {per_gpu_hour: 3.6, currency: EUR}}");
  const topologies::Cluster cluster(fast.plan.cluster);
  const auto cost = search_cost(fast.plan, cluster);
  const auto quick = planner::search(fast.search->problem, {}, *cost).simulated.front();
  const auto thrifty = planner::search(cheap.search->problem, {}, *cost).simulated.front();
  EXPECT_EQ(quick.layout.world_size(), 64);
  EXPECT_LE(thrifty.step_s * thrifty.layout.world_size(), quick.step_s * quick.layout.world_size());
  // 3.6 EUR an hour is 0.001 EUR a second.
  EXPECT_NEAR(thrifty.objective, thrifty.step_s * thrifty.layout.world_size() * 0.001, 1e-9);
}

}  // namespace
}  // namespace foresail::scenarios
