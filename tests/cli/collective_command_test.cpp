// `foresail collective` as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "foresail/base/document.h"
#include "run_command.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using test::Outcome;

fs::path scratch(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / "foresail_collective";
  fs::create_directories(folder);
  return folder / name;
}

// With what the command says on standard error behind its output.
Outcome collective(const std::string& arguments) {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  Outcome outcome =
      test::run_command("collective " + arguments, scratch("stderr_" + name + ".txt"));
  outcome.out += outcome.error;
  return outcome;
}

TEST(CollectiveCommand, PrintsNcclTestsTableAndWhatBoundsIt) {
  const Outcome outcome =
      collective("--cluster h200_roce_bf3 --op all_reduce --min 8 --max 1GiB --factor 8");
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("# Collective test starting: all_reduce_perf"));
  EXPECT_THAT(outcome.out, HasSubstr("# Avg bus bandwidth    : "));
  EXPECT_THAT(outcome.out, HasSubstr("nvls_tree    simple"));
}

TEST(CollectiveCommand, JsonHasARowPerSizeAndObeysTheNetworkFile) {
  const fs::path file = scratch("network.yaml");
  std::ofstream(file) << "network: {routing: spray, nccl: {algorithm: ring, gpudirect: false}}\n";
  const std::string same = "--cluster selene --gpus 32 --min 1M --max 1G --factor 32 --json ";
  const Outcome direct = collective(same + "--nccl-algo ring");
  const Outcome bounced = collective(same + "--network " + file.string());
  ASSERT_EQ(direct.status, 0) << direct.out;
  ASSERT_EQ(bounced.status, 0) << bounced.out;
  const Document fast = Document::parse(direct.out);
  const Document slow = Document::parse(bounced.out);
  ASSERT_EQ(fast["rows"].size(), 3u);
  EXPECT_LT(slow["rows"][2]["busbw"].get<double>(), 0.6 * fast["rows"][2]["busbw"].get<double>());
}

TEST(CollectiveCommand, ComparesItsOwnTableAndSaysAsExpected) {
  const fs::path log = scratch("own.log");
  const std::string cluster = "--cluster h200_roce_bf3 --gpus 16 ";
  const Outcome table = collective(cluster + "--min 1K --max 1G --factor 32");
  std::ofstream(log) << table.out;
  const Outcome outcome = collective(cluster + "--compare " + log.string());
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("as expected of this cluster (0.0 % off)"));
}

TEST(CollectiveCommand, BadInputGivesOneClearMessageAndStatusTwo) {
  const fs::path garbage = scratch("garbage.log");
  std::ofstream(garbage) << "nothing here\n";
  for (const auto& [arguments, message] :
       {std::pair<std::string, std::string>{"--cluster selene --gpus 16 --op magic", "--op"},
        {"--cluster selene --gpus 16 --min 1Q", "is no size"},
        {"--cluster selene --gpus 16 --nccl-algo nvls --max 1K", "NCCL has no all_reduce"},
        {"--cluster selene --gpus 1", "two devices"},
        {"--cluster selene --gpus 16 --compare " + garbage.string(), "no line is a row"},
        {"--cluster selene --gpus 16 --min 0", "--min: \"0\" is no size"},
        {"--cluster selene --gpus 16 --min 1e3", "--min: \"1e3\" is no size"},
        {"--cluster selene --gpus 16 --max 1.5", "--max: \"1.5\" is no size"},
        {"--cluster selene --gpus 16 --factor inf", "--factor: inf"},
        {"--cluster selene --gpus 16 --factor 1e308", "--factor: 1e+308"},
        {"--cluster selene --gpus 16 --factor 1", "--factor: 1 is not above 1"},
        {"--cluster selene --gpus 0", "--gpus: \"0\" is no whole number from 1 to"},
        {"--fold off", "--fold"},
        {"--trace x.json", "--trace"},
        {"--trace-ranks all", "--trace-ranks"},
        {"--cluster selene --gpus 16 --op all_gather --max 8", "--max: too small for 16 ranks"},
        {"--cluster selene --gpus 16 --op all_gather --nccl-algo pat", "one GPU per node"},
        {"--cluster selene --gpus 16 --op sendrecv --nccl-algo tree", "it is pairwise"},
        {"--cluster selene --gpus 16 --compare /does/not/exist", "/does/not/exist"}}) {
    const Outcome outcome = collective(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr(message)) << arguments;
  }
}

TEST(CollectiveCommand, RowsThatTheRanksCannotShareAreNotPrinted) {
  const Outcome outcome =
      collective("--cluster selene --gpus 16 --op all_gather --max 128 --json --nccl-algo ring");
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  const Document rows = Document::parse(outcome.out)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["size"], 64);
  EXPECT_EQ(rows[0]["count"], 1);
}

TEST(CollectiveCommand, ALogGivesTheRanksAndMinAndMaxChooseItsRows) {
  const fs::path log = scratch("ranks.log");
  const Outcome table =
      collective("--cluster h200_roce_bf3 --gpus 32 --min 1K --max 1G --factor 32");
  std::ofstream(log) << table.out << "8 2 float sum -1 nan 0 0 0 nan 0 0 0\n";
  const std::string same = "--cluster h200_roce_bf3 --compare " + log.string();
  const Outcome outcome = collective(same);
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("--gpus 32: the log's ranks"));
  EXPECT_THAT(outcome.out, HasSubstr(": its time is nan"));
  EXPECT_THAT(outcome.out, HasSubstr("as expected of this cluster (0.0 % off)"));
  const Outcome some = collective(same + " --min 1M --max 32M --json --quiet");
  ASSERT_EQ(some.status, 0) << some.out;
  EXPECT_EQ(Document::parse(some.out)["measured"].size(), 2u);
  EXPECT_EQ(Document::parse(some.out)["skipped"].size(), 1u);
  for (const auto& [arguments, message] :
       {std::pair<std::string, std::string>{" --factor 2", "--factor: the sizes are the log's"},
        {" --min 2G", "no row from 2147483648"},
        {" --gpus 16", "32 ranks, but the cluster has 16 GPUs"}}) {
    const Outcome refused = collective(same + arguments);
    EXPECT_EQ(refused.status, 2) << arguments;
    EXPECT_THAT(refused.out, HasSubstr(message)) << arguments;
  }
}

TEST(CollectiveCommand, LinkLatencyOfASecondIsFelt) {
  const fs::path file = scratch("far.yaml");
  std::ifstream own(FORESAIL_CLUSTERS "/h200_roce_bf3.yaml");
  std::string text((std::istreambuf_iterator<char>(own)), std::istreambuf_iterator<char>());
  const std::size_t at = text.find("link_latency: 1 us");
  ASSERT_NE(at, std::string::npos);
  std::ofstream(file) << text.replace(at, 18, "link_latency: 1 s");
  const Outcome outcome = collective("--cluster " + file.string() +
                                     " --gpus 16 --op all_gather --min 1M --max 1M --json");
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  // Two nodes on one leaf: one step between nodes, over two cables.
  EXPECT_NEAR(Document::parse(outcome.out)["rows"][0]["time_us"].get<double>(), 2e6, 1e3);
}

}  // namespace
}  // namespace foresail
