#include "foresail/scenarios/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/scenarios/scenario.h"
#include "scratch_folder.h"

namespace foresail::scenarios {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const std::filesystem::path kTree = FORESAIL_SOURCE_DIR;
const std::filesystem::path kPublished = kTree / "tests/data/published";

TEST(Rows, YamlAndCsvAreReadByName) {
  const RowFile yaml = read_rows(kTree / "tests/scenarios/data/rows.yaml");
  ASSERT_EQ(yaml.rows.size(), 2u);
  EXPECT_EQ(yaml.rows[0].microbatch, 4);
  EXPECT_THAT(yaml.rows[0].unused, Contains("train.flavour"));
  ASSERT_EQ(yaml.skipped.size(), 1u);
  EXPECT_THAT(yaml.skipped[0].reason, HasSubstr("iter_s"));
  const RowFile csv = read_rows(kTree / "tests/scenarios/data/rows.csv");
  ASSERT_EQ(csv.rows.size(), 2u);
  EXPECT_NEAR(csv.rows[0].published_s, 0.372160408, 1e-12);
  EXPECT_EQ(csv.rows[1].tp, 4);
}

std::filesystem::path rows_file(const std::string& records) {
  const auto path = test::scratch_folder() / "rows.yaml";
  write_file(path, "records:\n" + records);
  return path;
}

std::string refusal(const std::filesystem::path& path) {
  try {
    read_rows(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "read";
}

TEST(Rows, KeysAndColumnsThatStandTwiceAreRefused) {
  EXPECT_THAT(refusal(rows_file("- {id: a}\nrecords: []\n")), HasSubstr("records: stands twice"));
  EXPECT_THAT(refusal(rows_file("- {id: a, id: b}\n")), HasSubstr("id: stands twice"));
  EXPECT_THAT(refusal(rows_file("- {id: a, train: {seq: 1, seq: 2}}\n")),
              HasSubstr("rows.yaml:2: records[0].train.seq: stands twice"));
  const auto csv = test::scratch_folder() / "rows.csv";
  write_file(csv, "# GPUs,global batch,# GPUs\n1,2,3\n");
  EXPECT_THAT(refusal(csv), HasSubstr("rows.csv:1: # GPUs: stands twice"));
}

// A file may have a name that a table cannot hold.
TEST(Rows, ACsvFilesNameStandsInTables) {
  const auto csv = test::scratch_folder() / "a|b.csv";
  write_file(csv, read_file(kTree / "tests/scenarios/data/rows.csv"));
  EXPECT_EQ(read_rows(csv).rows.at(0).source, "a_b");
}

TEST(Rows, ASpreadsheetsByteOrderMarkIsNoPartOfTheFirstColumn) {
  const auto csv = test::scratch_folder() / "marked.csv";
  write_file(csv, "\xef\xbb\xbf" + read_file(kTree / "tests/scenarios/data/rows.csv"));
  EXPECT_EQ(read_rows(csv).rows.size(), 2u);
}

TEST(Rows, SharedIdsAreTold) {
  const RowFile file = read_rows(rows_file("- {id: a}\n- {id: a}\n- {id: b, flavour: 3}\n"));
  ASSERT_EQ(file.skipped.size(), 3u);
  EXPECT_EQ(file.skipped[0].id, "a");
  EXPECT_EQ(file.skipped[1].id, "a#2");
  EXPECT_EQ(file.skipped[2].id, "b");
}

TEST(Rows, WhatIsReadInAnotherWayOrNotAtAllIsSaid) {
  const std::string rest =
      ", model: {layers: 2, hidden: 64, heads: 2}, hw: {gpu: H100, gpus: 8}, par: {dp: 8}, "
      "train: {gbs: 8, seq: 64}, result: {iter_s: 1, mfu: 40, rate: 3}}\n";
  const RowFile file = read_rows(rows_file("- {id: a" + rest + "- {id: a" + rest));
  ASSERT_EQ(file.rows.size(), 2u);
  EXPECT_THAT(file.rows[0].unused, ::testing::ElementsAre("result.rate"));
  EXPECT_TRUE(file.rows[0].remarks.empty());
  EXPECT_THAT(file.rows[1].remarks, ::testing::ElementsAre("id a given before: shown as a#2"));
}

TEST(Rows, NamesThatWouldBreakTablesAreRefused) {
  for (const char* id : {"\"a|b\"", "\"a\\nb\"", "\"\""}) {
    EXPECT_THROW(read_rows(rows_file(std::string("- {id: ") + id + "}\n")), Error) << id;
  }
}

TEST(Rows, AssumptionsAreListed) {
  const RowFile file = read_rows(kTree / "tests/scenarios/data/rows.yaml");
  const auto stacks = load_stacks();
  const RowPlanResult open = plan_row(file.rows[1], stacks);
  ASSERT_TRUE(open.made.has_value()) << open.reason;
  EXPECT_EQ(open.made->stack, "unknown");
  EXPECT_THAT(open.made->assumed, Contains(HasSubstr("microbatch_size")));
  EXPECT_THAT(open.made->assumed, Contains(HasSubstr("network of dgx_h100")));
}

TEST(Validate, ErrorsAndTheirSummaryAreThoseOfTheRows) {
  Scoreboard board;
  for (const double predicted : {1.1, 0.8, 1.0}) {
    ValidatedRow& row = board.rows.emplace_back();
    row.published_s = 1.0;
    row.predicted_s = predicted;
  }
  EXPECT_NEAR(board.mean_abs_error(), 0.1, 1e-12);
  EXPECT_NEAR(board.median_abs_error(), 0.1, 1e-12);
  EXPECT_NEAR(board.worst(), -0.2, 1e-12);
  EXPECT_NEAR(board.bias(), -0.1 / 3, 1e-12);
  const Document document = to_document(board);
  for (const char* key : {"rows", "skipped", "mean_abs_error", "median_abs_error", "worst", "bias",
                          "naive_mean_abs_error", "coverage_50", "coverage_90"}) {
    EXPECT_TRUE(document.contains(key)) << key;
  }
}

TEST(Validate, ThreadsDoNotChangeTheResult) {
  RowFile file = read_rows(kPublished / "fit.yaml");
  file.rows.resize(12);
  ValidateOptions one;
  one.predict.fidelity = sim::Fidelity::Analytic;
  ValidateOptions three = one;
  three.threads = 3;
  EXPECT_EQ(to_document(validate(file, one)), to_document(validate(file, three)));
}

// Fitted on these rows: the error must stay near what the fit reached.
TEST(Validate, FitRowsArePredictedWithinSixPercentInTheMean) {
  const RowFile file = read_rows(kPublished / "fit.yaml");
  const Scoreboard board = validate(file, {.predict = {.fidelity = sim::Fidelity::Analytic},
                                           .seed = {},
                                           .threads = 2,
                                           .anchor_rows = 0,
                                           .progress = {}});
  EXPECT_EQ(board.rows.size(), 157u);
  EXPECT_LT(board.mean_abs_error(), 0.06);
}

// The two scenarios of the demo: blind against MegaScale's Table 2, and the same as its rows.
struct Published {
  const char* scenario;
  const char* row;
  double seconds, tolerance;
};

class MegaScale : public ::testing::TestWithParam<Published> {};

TEST_P(MegaScale, ScenarioIsWithinToleranceAndEqualsItsRow) {
  const Published& published = GetParam();
  const Scenario scenario = load_scenario(kTree / published.scenario);
  const double predicted = to_seconds(predict(scenario.plan, {}).outcome.iteration);
  EXPECT_NEAR(predicted / published.seconds, 1.0, published.tolerance);
  RowFile file = read_rows(kPublished / "check.yaml");
  std::erase_if(file.rows, [&](const Row& row) { return row.id != published.row; });
  ASSERT_EQ(file.rows.size(), 1u);
  const Scoreboard board = validate(file, {});
  ASSERT_EQ(board.rows.size(), 1u);
  EXPECT_NEAR(board.rows[0].predicted_s / predicted, 1.0, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Table2, MegaScale,
    ::testing::Values(Published{"scenarios/megascale_175b_12288/scenario.yaml",
                                "megascale-t2-megascale-12288-b6144", 6.34, 0.10},
                      Published{"scenarios/megatron_lm_175b_12288/scenario.yaml",
                                "megascale-t2-megatron-12288-b6144", 8.57, 0.20}),
    [](const auto& test) { return std::string(test.index == 0 ? "MegaScale" : "MegatronLm"); });

TEST(MegaScaleSymmetric, FoldedEqualsUnfoldedExactly) {
  const Scenario scenario = load_scenario(kTree / "scenarios/megascale_175b_12288/symmetric.yaml");
  const Duration folded = predict(scenario.plan, {}).outcome.iteration;
  const Duration unfolded = predict(scenario.plan, {.fold = sim::Fold::Off}).outcome.iteration;
  EXPECT_EQ(folded, unfolded);
}

}  // namespace
}  // namespace foresail::scenarios
