// `foresail explain memory` as users meet it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "run_command.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using ::testing::HasSubstr;

class MemoryCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("foresail_memory_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "s.yaml")
        << "foresail: 1\nmodel: gpt_tiny\ncluster: {name: selene, gpus: 16}\n"
           "layout: {tp: 2, dp: 4, pp: 2}\n"
           "training: {global_batch_size: 16, sequence_length: 128}\n";
  }
  void TearDown() override { fs::remove_all(folder_); }
  Outcome explain(const std::string& options) const {
    return test::run_command("explain memory " + (folder_ / "s.yaml").string() + " " + options,
                             folder_ / "stderr.txt");
  }
  fs::path folder_;
};

TEST_F(MemoryCommand, OwnersAndCategoriesSumToThePeak) {
  const Outcome outcome = explain("--json --top 1000");
  ASSERT_EQ(outcome.status, 0) << outcome.error;
  const Document document = Document::parse(outcome.out);
  const Document& peak = document.at("peak");
  std::int64_t owners = 0;
  for (const Document& owner : peak.at("owners")) owners += owner.at("bytes").get<std::int64_t>();
  EXPECT_EQ(owners, peak.at("bytes").get<std::int64_t>());
  std::int64_t categories = 0;
  for (const auto& [name, bytes] : peak.at("categories").items()) {
    categories += bytes.get<std::int64_t>();
  }
  EXPECT_EQ(categories, owners);
  EXPECT_GT(document.at("memory_bytes").at("upper_bound"), peak.at("bytes"));
  std::int64_t highest = 0;
  for (const Document& point : document.at("curve")) {
    highest = std::max(highest, point.at(1).get<std::int64_t>());
  }
  EXPECT_EQ(highest, peak.at("bytes").get<std::int64_t>());
}

// The promise of a remedy is kept: the changed layout needs what was said.
TEST_F(MemoryCommand, RemediesAreCountedNotGuessed) {
  const Document before = Document::parse(explain("--json").out);
  const Document& remedies = before.at("remedies");
  const auto found = std::ranges::find_if(
      remedies, [](const Document& each) { return each.at("change") == "recompute: full"; });
  ASSERT_NE(found, remedies.end());
  std::string text = read_file(folder_ / "s.yaml");
  text.replace(text.find("pp: 2}"), 6, "pp: 2, recompute: full}");
  std::ofstream(folder_ / "s.yaml") << text;
  const Document after = Document::parse(explain("--json").out);
  EXPECT_EQ(after.at("memory_bytes").at("peak"), found->at("peak_bytes"));
}

TEST_F(MemoryCommand, ChoosesTheStageAndWritesTheCurve) {
  const fs::path curve = folder_ / "curve.csv";
  const Outcome outcome = explain("--stage 1 --top 3 --curve " + curve.string());
  ASSERT_EQ(outcome.status, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("rank 8 (stage 1)\n"));
  EXPECT_THAT(outcome.out, HasSubstr("upper bound"));
  EXPECT_THAT(read_file(curve), HasSubstr("time_s,total_bytes,activation_bytes,buffer_bytes\n"));
}

TEST_F(MemoryCommand, RefusesRanksThatAreNotThere) {
  EXPECT_EQ(explain("--rank 16").status, 2);
  EXPECT_THAT(explain("--rank 16").error, HasSubstr("--rank: 16 is not below 16 ranks"));
  EXPECT_EQ(explain("--stage 2").status, 2);
  EXPECT_EQ(explain("--rank 1 --stage 1").status, 2);
}

}  // namespace
}  // namespace foresail
