// `foresail collective` as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
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
        {"--cluster selene --gpus 16 --compare /does/not/exist", "/does/not/exist"}}) {
    const Outcome outcome = collective(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr(message)) << arguments;
  }
}

}  // namespace
}  // namespace foresail
