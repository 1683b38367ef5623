// What a search is asked beyond the fastest plan: other objectives, interruption, and whether what
// it finds beats what others have run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/planner/memory_bound.h"
#include "foresail/scenarios/rows.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/search.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;
using planner::Objective;
using planner::Scope;
using planner::SearchOutcome;
using ::testing::AllOf;
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

// All of these were run. The point estimate forbids ten that do not say what they recomputed; the
// upper bound would forbid half, so it is not what a search takes by default.
TEST(SearchMemory, TheDefaultForbidsNoPublishedLayoutThatSaysAll) {
  const auto stacks = load_stacks();
  int rows = 0, above = 0, above_at_most = 0;
  const auto published = std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/data/published";
  for (const Row& row : read_rows(published / "fit.yaml").rows) {
    if (!row.microbatch) continue;  // else that is chosen so that it fits
    const RowPlanResult result = plan_row(row, stacks);
    if (!result.made) continue;
    ++rows;
    const planner::Plan& plan = result.made->plan;
    if (!planner::check(plan).out_of_memory.empty()) {
      ++above;
      EXPECT_THAT(row.id, HasSubstr("llama3-70b"));
      EXPECT_FALSE(row.recompute.has_value());
    }
    const bool fits = planner::describe_upper_excess(plan, planner::lower(plan)).empty();
    above_at_most += fits ? 0 : 1;
  }
  EXPECT_GE(rows, 150);
  EXPECT_LE(above, 10);
  EXPECT_GT(above_at_most, rows / 3);
}

// By default a plan is found that may need more at most than there is, but not without a word.
TEST(SearchMemory, APlanThatMayRunOutSaysSoAndNamesASafeOne) {
  SearchRequest request = request_of(
      "{tp: [4, 8], zero_stage: 1, recompute: none, microbatch_size: 1, schedule: 1f1b, "
      "sequence_parallel: true, overlap: {tp: true, pp: true, dp: true}}");
  EXPECT_EQ(request.problem.memory, planner::MemoryRule::Expected);
  const SearchAnswer roomy = run_search(request, {});
  EXPECT_FALSE(roomy.may_run_out);
  EXPECT_EQ(to_text(request, roomy, 1).find("may run out"), std::string::npos);
  request.problem.base.cluster.device.memory = outcome_of(request, {}).simulated.front().peak;
  SearchRunOptions options;
  options.search.simulated_min = 1000;  // all of them
  const SearchAnswer tight = run_search(request, options);
  EXPECT_TRUE(tight.may_run_out);
  ASSERT_TRUE(tight.safe.has_value());
  EXPECT_TRUE(fits_at_most(request, *tight.safe));
  EXPECT_THAT(to_text(request, tight, 1),
              AllOf(HasSubstr("the chosen plan may run out of memory: it needs "),
                    HasSubstr("fastest simulated that fits at most"), HasSubstr("at_most")));
  const Document document = to_document(request, tight);
  EXPECT_EQ(document["memory"], "expected");
  EXPECT_EQ(document["may_run_out_of_memory"], true);
  EXPECT_GT(document["finalists"][0]["memory_at_most_bytes"],
            document["finalists"][0]["peak_memory_bytes"]);
  request.problem.memory = planner::MemoryRule::AtMost;
  const SearchAnswer safe = run_search(request, options);
  EXPECT_FALSE(safe.may_run_out);
  EXPECT_EQ(safe.outcome.simulated.front().step_s, tight.safe->step_s);
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

/// Says so from its `left`-th question on.
std::function<bool()> stop_after(int left) {
  return [left]() mutable { return left-- <= 0; };
}

// The budget ends inside a mesh, between its layouts: those listed are searched, the others count
// with the model's GEMMs at the device's peak.
TEST(SearchBudget, EndsInsideAMeshWithAGapThatHolds) {
  const SearchRequest request = request_of("{tp: 8, pp: 2}");
  const SearchOutcome whole = outcome_of(request, {});
  ASSERT_TRUE(whole.is_proved);
  const double best = whole.simulated.front().objective;
  for (const int asked : {1, 30, 100, 300}) {
    planner::SearchOptions options;
    options.should_stop = stop_after(asked);
    const SearchOutcome part = outcome_of(request, options);
    SCOPED_TRACE(asked);
    EXPECT_FALSE(part.is_proved);
    EXPECT_GT(part.unseen, 0);
    std::int64_t seen = part.equivalent + part.bounded + part.unseen;
    for (const auto& [name, law] : part.law) seen += law.count;
    EXPECT_LE(seen, part.enumerated);
    EXPECT_EQ(part.enumerated, whole.enumerated);
    if (part.simulated.empty()) continue;
    // What was found, and what the gap allows, enclose the best.
    EXPECT_GE(part.simulated.front().objective, best);
    EXPECT_GT(part.left_objective, 0);
    EXPECT_LE(part.left_objective, best);
    EXPECT_LE(part.simulated.front().objective * (1 - part.gap()), best * (1 + 1e-12));
    EXPECT_LT(part.gap(), 1);
  }
}

// After that it ends between two plans of one batch.
TEST(SearchBudget, EndsBetweenPlansWithAGapThatHolds) {
  const SearchRequest request = request_of("{tp: [4, 8], recompute: none, zero_stage: [0, 1]}");
  planner::SearchOptions eight;
  eight.simulated_min = 8;
  const SearchOutcome whole = outcome_of(request, eight);
  ASSERT_TRUE(whole.is_proved);
  ASSERT_GE(whole.simulated.size(), 8u);
  const double best = whole.simulated.front().objective;
  for (std::size_t allowed = 1; allowed < 8; ++allowed) {
    std::size_t started = 0;
    planner::SearchOptions options = eight;
    options.recall = [&](const Candidate&) {
      ++started;
      return std::optional<Duration>{};
    };
    options.should_stop = [&] { return started >= allowed; };
    const SearchOutcome part = outcome_of(request, options);
    SCOPED_TRACE(allowed);
    EXPECT_EQ(part.simulated.size(), allowed);
    EXPECT_FALSE(part.is_proved);
    EXPECT_EQ(part.unseen, 0);
    EXPECT_GE(part.simulated.front().objective, best);
    EXPECT_LE(part.simulated.front().objective * (1 - part.gap()), best * (1 + 1e-12));
  }
}

// Stopped again and again inside enumeration and between plans, and resumed from the same file.
TEST(SearchState, ManyInterruptionsComeToTheSameAnswer) {
  const SearchRequest request = request_of("{tp: [4, 8], recompute: none, zero_stage: [0, 1]}");
  const std::string whole = text_of(request, run_search(request, {}));
  std::filesystem::remove(file("state.json"));
  for (const int asked : {50, 400, 700, 900}) {
    SearchState state(file("state.json"), request.problem);
    SearchRunOptions options;
    options.state = &state;
    options.search.should_stop = stop_after(asked);
    run_search(request, options);
  }
  SearchState state(file("state.json"), request.problem);
  SearchRunOptions options;
  options.state = &state;
  const SearchAnswer rest = run_search(request, options);
  EXPECT_TRUE(rest.outcome.is_proved);
  EXPECT_GT(rest.outcome.recalled, 0);
  EXPECT_EQ(text_of(request, rest), whole);
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
