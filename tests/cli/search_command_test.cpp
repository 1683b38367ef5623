// `plan` of a scenario with a search, as a capacity planner meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "foresail/base/document.h"
#include "run_command.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SearchCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  test::Outcome plan(const std::string& search, const std::string& options) {
    write_file(folder_ / "scenario.yaml",
               "foresail: 1\nmodel: gpt_22b\ncluster: {name: selene, gpus: 16}\n"
               "training: {global_batch_size: 16, sequence_length: 1024}\n" +
                   search + "\n");
    const std::string line = "plan " + (folder_ / "scenario.yaml").string() + " -o " +
                             (folder_ / "plan.yaml").string() + " " + options;
    return test::run_command(line, folder_ / "stderr.txt");
  }
  fs::path folder_ = fs::path(::testing::TempDir()) / "foresail_search_command" /
                     ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(SearchCommand, WritesThePlanThatSimulateThenConfirms) {
  const std::string state = (folder_ / "state.json").string();
  const std::string search =
      "search: {tp: [4, 8], recompute: none, price: {per_gpu_hour: 2, "
      "currency: EUR}, tokens: 1e9, compare: [{dp: 16}]}";
  const test::Outcome found = plan(search, "--explain --quiet --threads 2 --state " + state);
  ASSERT_EQ(found.status, 0) << found.error;
  EXPECT_TRUE(found.error.empty());
  for (const char* words : {"optimal in the space", "<- chosen", "EUR", "1 billion tokens", "kWh",
                            "why this one", "why not that one", "out of memory", " over: stage"}) {
    EXPECT_THAT(found.out, HasSubstr(words));
  }
  const test::Outcome again = plan(search, "--json --state " + state);
  ASSERT_EQ(again.status, 0) << again.error;
  const Document document = Document::parse(again.out);
  EXPECT_EQ(document.at("recalled"), document.at("simulated"));
  const Document& best = document.at("finalists").at(document.at("best").get<std::size_t>());
  const test::Outcome simulated = test::run_command(
      "simulate --json --fold off " + (folder_ / "plan.yaml").string(), folder_ / "stderr.txt");
  ASSERT_EQ(simulated.status, 0) << simulated.error;
  EXPECT_EQ(Document::parse(simulated.out).at("iteration_time_s").get<double>(),
            best.at("unfolded_step_time_s").get<double>());
}

TEST_F(SearchCommand, SaysWhatStandsInTheWayIfNothingIsFeasible) {
  const test::Outcome none = plan("search: {tp: 1, pp: 1, zero_stage: 0}", "");
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.out, HasSubstr("nothing in the space is feasible"));
  EXPECT_THAT(none.out, HasSubstr("memory: stage 0 needs"));
  EXPECT_FALSE(fs::exists(folder_ / "plan.yaml"));
}

TEST_F(SearchCommand, RefusesOptionsOfASearchForALayout) {
  for (const char* option : {"--explain", "--by-size", "--top 2", "--budget 1", "--state x.json"}) {
    const test::Outcome refused = plan("layout: {tp: 8, dp: 2}", option);
    EXPECT_EQ(refused.status, 2) << option;
    EXPECT_THAT(refused.error, HasSubstr("need a scenario with `search`"));
  }
}

}  // namespace
}  // namespace foresail
