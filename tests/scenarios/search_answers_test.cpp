// What a search is asked beyond the fastest plan: other objectives, interruption, and whether what
// it finds beats what others have run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/planner/memory_bound.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/search.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;
using planner::Objective;
using planner::Scope;
using planner::SearchOutcome;
using ::testing::HasSubstr;

// A folder of this test alone: tests run beside each other.
std::filesystem::path file(const std::string& name) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "foresail_search_answers" /
                    ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::create_directories(path);
  return path / name;
}

SearchRequest request_of(const std::string& search) {
  write_file(file("scenario.yaml"),
             "foresail: 1\nmodel: gpt_22b\ncluster: {name: selene, gpus: 64}\n"
             "training: {global_batch_size: 64, sequence_length: 2048}\nsearch: " +
                 search + "\n");
  return *load_question(file("scenario.yaml")).search;
}

SearchOutcome outcome_of(const SearchRequest& request, const planner::SearchOptions& options) {
  const topologies::Cluster cluster(request.problem.base.cluster);
  return planner::search(request.problem, options, *search_cost(request.problem.base, cluster));
}

constexpr const char* kSpace =
    "tp: [4, 8], zero_stage: 1, recompute: none, microbatch_size: [1, 2]";

bool fits_at_most(const SearchRequest& request, const Candidate& candidate) {
  planner::Plan plan = request.problem.base;
  plan.layout = candidate.layout;
  plan.placement = program::Placement::identity(64);
  return planner::describe_upper_excess(plan, planner::lower(plan)).empty();
}

// Devices that hold just what the fastest plan needs by the point estimate.
TEST(SearchMemory, AtMostHoldsTheUpperBoundToo) {
  SearchRequest request = request_of("{" + std::string(kSpace) + "}");
  request.problem.base.cluster.device.memory = outcome_of(request, {}).simulated.front().peak;
  planner::SearchOptions options;
  options.simulated_min = 5;
  const SearchOutcome expected = outcome_of(request, options);
  EXPECT_FALSE(fits_at_most(request, expected.simulated.front()));
  request.problem.memory = planner::MemoryRule::AtMost;
  const SearchOutcome at_most = outcome_of(request, options);
  ASSERT_FALSE(at_most.simulated.empty());
  EXPECT_TRUE(at_most.is_proved);
  EXPECT_GT(at_most.out_of_memory, expected.out_of_memory);
  for (const Candidate& each : at_most.simulated) EXPECT_TRUE(fits_at_most(request, each));
  EXPECT_GT(at_most.simulated.front().step_s, expected.simulated.front().step_s);
  EXPECT_EQ(request_of("{memory: at_most}").problem.memory, planner::MemoryRule::AtMost);
}

// 64 GPUs of 400 W for t seconds: 64 * 0.4 t / 3600 kWh. 64 * 2048 tokens a step: 1.31072e11 tokens
// are a million steps.
TEST(SearchObjectives, EnergyAndDaysFollowTheirDefinitions) {
  const std::string space = kSpace;
  const SearchRequest energy = request_of("{objective: energy, " + space + "}");
  EXPECT_EQ(energy.problem.watts_per_gpu, 400);
  EXPECT_THAT(energy.power_source, HasSubstr("data sheet"));
  const Candidate frugal = outcome_of(energy, {}).simulated.front();
  EXPECT_NEAR(frugal.objective, 64 * 0.4 * frugal.step_s / 3600, 1e-12);
  const SearchRequest days = request_of("{objective: days, tokens: 1.31072e11, " + space + "}");
  const Candidate quick = outcome_of(days, {}).simulated.front();
  EXPECT_NEAR(quick.objective, 1e6 * quick.step_s / 86400, 1e-9);
  EXPECT_EQ(quick.layout, frugal.layout);
  const SearchRequest own = request_of("{objective: energy, power_per_gpu: 1.2 kW, " + space + "}");
  EXPECT_EQ(own.problem.watts_per_gpu, 1200);
  EXPECT_EQ(own.power_source, "the scenario");
}

// The front of time against GPUs: the best of each size is that of a search of this size alone.
TEST(SearchScope, FindsTheBestOfEverySize) {
  const std::string space = kSpace;
  planner::SearchOptions options;
  options.scope = Scope::PerSize;
  const SearchOutcome all = outcome_of(request_of("{gpus: [16, 32, 64], " + space + "}"), options);
  EXPECT_TRUE(all.is_proved);
  for (const int gpus : {16, 32, 64}) {
    const std::string size = std::to_string(gpus);
    const SearchOutcome alone = outcome_of(request_of("{gpus: " + size + ", " + space + "}"), {});
    const auto best = std::ranges::find_if(
        all.simulated, [&](const Candidate& each) { return each.layout.world_size() == gpus; });
    ASSERT_NE(best, all.simulated.end()) << gpus;
    EXPECT_EQ(best->step_s, alone.simulated.front().step_s) << gpus;
  }
}

std::string text_of(const SearchRequest& request, SearchAnswer answer) {
  answer.outcome.bound_cpu_s = 0;  // measured
  answer.outcome.recalled = 0;
  return to_document(request, answer).dump();
}

TEST(SearchState, AnInterruptedSearchComesToTheSameAnswer) {
  const SearchRequest request = request_of("{recompute: none, zero_stage: [0, 1]}");
  SearchRunOptions options;
  const SearchAnswer uninterrupted = run_search(request, options);
  const std::string whole = text_of(request, uninterrupted);
  std::filesystem::remove(file("state.json"));
  {
    SearchState state(file("state.json"), request.problem);
    options.state = &state;
    options.search.should_stop = [&] { return std::filesystem::exists(file("state.json")); };
    const SearchAnswer part = run_search(request, options);
    EXPECT_FALSE(part.outcome.is_proved);
    EXPECT_GE(part.outcome.gap(), 0);
    EXPECT_LT(part.outcome.simulated.size(), uninterrupted.outcome.simulated.size());
    options.search.should_stop = {};
  }
  SearchState state(file("state.json"), request.problem);
  options.state = &state;
  const SearchAnswer rest = run_search(request, options);
  EXPECT_GT(rest.outcome.recalled, 0);
  EXPECT_LT(rest.outcome.recalled, static_cast<std::int64_t>(rest.outcome.simulated.size()));
  EXPECT_EQ(text_of(request, rest), whole);
}

std::string refusal(const planner::SearchProblem& problem) {
  try {
    const SearchState state(file("state.json"), problem);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "no error";
}

TEST(SearchState, RefusesTheStateOfAnotherJobAndDamagedFiles) {
  const SearchRequest request = request_of("{}");
  std::filesystem::remove(file("state.json"));
  SearchState(file("state.json"), request.problem).keep({});
  EXPECT_EQ(refusal(request.problem), "no error");
  const Document good = parse_json(read_file(file("state.json")), "state.json");
  for (const Document& time : {Document(0), Document(-5), Document(1.5), Document("7")}) {
    Document damaged = good;
    damaged["simulated"].push_back({{"plan", "a"}, {"step_ps", time}});
    write_file(file("state.json"), damaged.dump());
    EXPECT_THAT(refusal(request.problem), HasSubstr("no positive integer")) << time.dump();
  }
  Document twice = good;
  for (int i = 0; i < 2; ++i) twice["simulated"].push_back({{"plan", "a"}, {"step_ps", 5}});
  write_file(file("state.json"), twice.dump());
  EXPECT_THAT(refusal(request.problem), HasSubstr("stands twice"));
  planner::SearchProblem other = request.problem;
  other.base.training.global_batch_size = 128;
  write_file(file("state.json"), good.dump());
  EXPECT_THAT(refusal(other), HasSubstr("of another job"));
  write_file(file("state.json"), "{\"foresail_search_state\": 1}");
  EXPECT_THAT(refusal(request.problem), HasSubstr("is no search state"));
  write_file(file("state.json"), "{");
  EXPECT_THAT(refusal(request.problem), HasSubstr("state.json"));
}

struct Published {
  const char* scenario;
  std::vector<int> tp, pp;
};

class PublishedLayouts : public ::testing::TestWithParam<Published> {};

// In a part of the scenario's space, for the test's sake; bench/src/search_bench.cpp takes it all.
TEST_P(PublishedLayouts, AreNotFasterThanWhatIsFound) {
  const auto path = std::filesystem::path(FORESAIL_SOURCE_DIR) / "scenarios" / "search" /
                    (std::string(GetParam().scenario) + ".yaml");
  SearchRequest request = *load_question(path).search;
  planner::SearchSpace& space = request.problem.space;
  space.tp = GetParam().tp;
  space.pp = GetParam().pp;
  space.microbatch_size = {1};
  space.zero_stage = {1};
  const topologies::Cluster cluster(request.problem.base.cluster);
  const auto cost = search_cost(request.problem.base, cluster);
  const SearchOutcome found = planner::search(request.problem, {}, *cost);
  ASSERT_TRUE(found.is_proved);
  ASSERT_FALSE(found.simulated.empty());
  int compared = 0;
  for (const Comparison& each : request.compare) {
    Candidate candidate;
    candidate.layout = each.layout;
    const planner::Plan plan = planner::plan_of(request.problem, candidate, *cost);
    const planner::Feasibility feasibility = planner::check(plan);
    ASSERT_TRUE(feasibility.broken.empty()) << describe(each.layout);
    if (!feasibility.is_feasible()) continue;  // whoever ran it has more memory than is estimated
    ++compared;
    const double step = to_seconds(cost->step(planner::lower(plan), plan.placement));
    EXPECT_LE(found.simulated.front().step_s, step) << describe(each.layout);
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Search, PublishedLayouts,
                         ::testing::Values(Published{"175b_3072", {4, 8}, {4, 8}},
                                           Published{"530b_2240", {8}, {7, 35}},
                                           Published{"1t_3072", {8}, {64}},
                                           Published{"llama3_405b_16384", {8}, {8, 16}}),
                         [](const auto& each) { return "Of" + std::string(each.param.scenario); });

}  // namespace
}  // namespace foresail::scenarios
