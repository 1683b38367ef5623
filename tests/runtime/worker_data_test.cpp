// foresail-worker on tokens: one loss for every layout, waits measured, wrong data refused alike.
#include <gmock/gmock.h>

#include <filesystem>

#include "command_outcome.h"
#include "foresail/base/document.h"
#include "scratch_folder.h"
#include "thread_job.h"
#include "token_files.h"

namespace foresail::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WorkerData : public ::testing::Test {
 protected:
  void SetUp() override { numbered_documents(60, 90, 300).write(folder_ / "corpus"); }

  std::string save(const planner::Layout& layout, std::int64_t vocab = 300,
                   std::vector<double> split = {}) const {
    const planner::Plan plan = make_plan({.layout = layout, .change = [&](planner::Plan& changed) {
                                            changed.model.layers = 2;
                                            changed.model.vocab = vocab;
                                            changed.training.sequence_length = 32;
                                            changed.training.steps = 3;
                                            changed.training.data = (folder_ / "corpus").string();
                                            changed.training.data_split = std::move(split);
                                          }});
    planner::save_plan(plan, folder_ / "plan.yaml");
    return (folder_ / "plan.yaml").string();
  }
  Outcome run(const std::string& plan, int ranks, const std::string& more = {}) const {
    return run_command(FORESAIL_WORKER " launch " + plan + " --launch " + std::to_string(ranks) +
                       " -o " + (folder_ / "out").string() + more);
  }
  Document result() const { return parse_json(read_file(folder_ / "out/run.json"), "run.json"); }

  const fs::path folder_ = test::scratch_folder();
};

TEST_F(WorkerData, EveryLayoutTrainsOnTheSameTokens) {
  const Outcome alone = run(save({}), 1);
  ASSERT_EQ(alone.status, 0) << alone.text;
  EXPECT_THAT(alone.text, HasSubstr("  data "));
  const Document reference = result();
  EXPECT_EQ(reference.at("data_waits_s").size(), 3u);
  std::vector<planner::Layout> layouts(2);
  layouts[0].tp = 2;
  layouts[0].pp = 2;
  layouts[1].dp = 2;
  for (const planner::Layout& layout : layouts) {
    const Outcome outcome = run(save(layout), layout.world_size());
    ASSERT_EQ(outcome.status, 0) << outcome.text;
    const Document here = result();
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(here.at("losses").at(step).get<double>(),
                  reference.at("losses").at(step).get<double>(), 1e-6)
          << describe(layout);
      EXPECT_GE(here.at("data_waits_s").at(step).get<double>(), 0.0);
    }
  }
}

TEST_F(WorkerData, ATokenBeyondTheVocabularyEndsEveryRankWithOneMessage) {
  planner::Layout layout;
  layout.dp = 2;
  const Outcome outcome = run(save(layout, 290), 2);
  EXPECT_EQ(outcome.status, 2) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr(", but model.vocab is 290"));
}

TEST_F(WorkerData, ADamagedIndexEndsEveryRankWithOneMessage) {
  planner::Layout layout;
  layout.dp = 2;
  const std::string plan = save(layout);
  write_file(folder_ / "corpus.idx", read_file(folder_ / "corpus.idx").substr(0, 500));
  const Outcome outcome = run(plan, 2);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.text, HasSubstr("corpus.idx: 500 bytes do not hold the 60 sequences"));
  EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
}

TEST_F(WorkerData, ThePlansSplitLeavesDocumentsOut) {
  ASSERT_EQ(run(save({}), 1).status, 0);
  const Document whole = result();
  ASSERT_EQ(run(save({}, 300, {1, 1}), 1).status, 0);
  EXPECT_NE(result().at("losses"), whole.at("losses"));
  const Outcome text = run(save({}, 300, {1, 1}), 1, " --data /usr/share/common-licenses");
  EXPECT_EQ(text.status, 2);
  EXPECT_THAT(text.text, HasSubstr("text has no documents"));
}

}  // namespace
}  // namespace foresail::testing
