// Jobs that are launched wrongly or lose a part: every process ends, each with one message that
// names the cause, with the documented status, and nothing is left.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>

#include "foresail/base/document.h"
#include "launched_job.h"
#include "rank_process.h"

namespace foresail::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using WrongLaunch = LaunchedJob;

TEST_F(WrongLaunch, RanksOfAnotherNumberThanThePlansEndByThemselves) {
  const std::string plan = save(2);
  for (int rank = 0; rank < 3; ++rank) {
    Process process = start(rank, 3, plan);
    expect_end(process, 2, HasSubstr("dp 2 * pp 1 = 2 ranks, but 3 processes run"));
  }
}

TEST_F(WrongLaunch, WhatTheRuntimeCannotDoIsRefusedByFileAndKeyBeforeAnythingStarts) {
  const std::string plan =
      save(2, [](planner::Plan& made) { made.stack.early_stop_recompute = true; });
  const Outcome outcome = run_command(std::string(FORESAIL_WORKER) + " launch " + plan +
                                      " --launch 2 -o " + (folder_ / "out").string());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.text, "foresail-worker: " + plan +
                              ": stack.early_stop_recompute: true cannot be executed by this "
                              "version, only false\n");
}

TEST_F(WrongLaunch, AScenarioInPlaceOfAPlanIsToldSo) {
  const std::string scenario = FORESAIL_SOURCE_DIR "/scenarios/cpu_gpt/scenario.yaml";
  Process process = start(0, 4, scenario);
  expect_end(process, 2,
             HasSubstr("a scenario, but a Plan is wanted: make one with foresail plan " + scenario +
                       " -o plan.yaml"));
}

TEST_F(WrongLaunch, AnOutputThatCannotBeWrittenEndsAllRanksBeforeTheyTrain) {
  const std::string plan = save(2, endless());
  Process first = start(0, 2, plan, "--metrics /nonexistent/metrics");
  Process second = start(1, 2, plan);
  for (Process* process : {&first, &second}) {
    expect_end(*process, 2, HasSubstr("--metrics /nonexistent/metrics: cannot be written"));
  }
}

TEST_F(WrongLaunch, DifferentPlansEndAllRanksWithBothDigests) {
  const std::string plan = save(2);
  const std::string other = save(2, [](planner::Plan& made) { made.seed = 9; });
  Process first = start(0, 2, plan);
  Process second = start(1, 2, other);
  for (Process* process : {&first, &second}) {
    expect_end(
        *process, 2,
        AllOf(HasSubstr("rank 1 runs another plan"), HasSubstr(planner::load_plan(plan).digest()),
              HasSubstr(planner::load_plan(other).digest())));
  }
}

TEST_F(WrongLaunch, APortInUseEndsTheRankThatWouldServeAndThoseThatMeetAStranger) {
  const int stranger = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr generic{};
  std::memcpy(&generic, &address, sizeof(address));
  ASSERT_EQ(::bind(stranger, &generic, sizeof(address)), 0);
  ASSERT_EQ(::listen(stranger, 16), 0);
  const std::string plan = save(2);
  Process first = start(0, 2, plan);
  Process second = start(1, 2, plan);
  expect_end(
      first, 1,
      HasSubstr("cannot listen on port " + std::to_string(port_) + ": Address already in use"));
  // A libtorch 2 still waits for its greeting when the rank's own watch gives up.
  expect_end(second, 1, AnyOf(HasSubstr("does not answer"), HasSubstr("cannot be reached")));
  ::close(stranger);
}

TEST_F(WrongLaunch, AStoreThatNobodyServesIsGivenUp) {
  Process process = start(1, 2, save(2));
  expect_end(process, 1, HasSubstr("cannot be reached within 1000 ms: Connection refused"));
}

TEST_F(WrongLaunch, AnUnreachableHostIsGivenUp) {
  host_ = "192.0.2.1";  // RFC 5737: belongs to nobody
  Process process = start(1, 2, save(2));
  expect_end(process, 1, HasSubstr("store at 192.0.2.1:"));
}

TEST_F(WrongLaunch, AHostWithoutAnAddressIsNamed) {
  host_ = "nowhere.invalid";
  Process process = start(1, 2, save(2));
  expect_end(process, 1, HasSubstr("nowhere.invalid"));
}

TEST_F(WrongLaunch, ARankThatNeverComesIsNamedByAll) {
  const std::string plan = save(3);
  Process first = start(0, 3, plan);
  Process second = start(1, 3, plan);
  for (Process* process : {&first, &second}) {
    expect_end(*process, 1, HasSubstr("rank 2 has not joined at 127.0.0.1:"));
  }
}

TEST_F(WrongLaunch, ARankThatIsThereTwiceIsRefusedAndTheJobGoesOn) {
  const std::string plan = save(3);
  limit_ = "1min";
  Process first = start(0, 3, plan);
  Process second = start(1, 3, plan);
  Process again = start(1, 3, plan);
  // Rank 2 is not there yet, so that only the refused one can end.
  while (!second.has_ended() && !again.has_ended()) usleep(5000);
  Process& refused = second.has_ended() ? second : again;
  Process& kept = &refused == &second ? again : second;
  expect_end(refused, 2, HasSubstr("rank 1 is in the job already"));
  Process third = start(2, 3, plan);
  for (Process* process : {&first, &kept, &third}) {
    const Outcome outcome = process->wait();
    EXPECT_EQ(outcome.status, 0) << outcome.text;
  }
  EXPECT_EQ(fs::remove_all(folder_ / "out"), 4u);
}

TEST_F(WrongLaunch, ARankZeroTooManyFindsThePortTaken) {
  const std::string plan = save(2);
  Process first = start(0, 2, plan);
  Process second = start(0, 2, plan);
  Outcome outcomes[] = {first.wait(), second.wait()};
  if (outcomes[0].text.find("cannot listen") != std::string::npos) {
    std::swap(outcomes[0], outcomes[1]);
  }
  EXPECT_THAT(outcomes[1].text, HasSubstr("cannot listen on port"));
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 has not joined"));
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 1);
}

TEST_F(WrongLaunch, MissingDataEndsAllRanks) {
  const std::string plan = save(2);
  Process first = start(0, 2, plan, "--data /nonexistent/text");
  Process second = start(1, 2, plan, "--data /nonexistent/text");
  for (Process* process : {&first, &second}) {
    expect_end(*process, 2, HasSubstr("/nonexistent/text"));
  }
}

TEST_F(WrongLaunch, ALossThatIsNoNumberEndsAllRanks) {
  const std::string plan = save(2, [](planner::Plan& made) {
    made.training.learning_rate = 1e30;
    made.training.steps = 20;
  });
  Process first = start(0, 2, plan);
  Process second = start(1, 2, plan);
  for (Process* process : {&first, &second}) {
    expect_end(*process, 1,
               ::testing::ContainsRegex("step [0-9]+: loss (-?nan|inf), gradient norm"));
  }
}

TEST_F(WrongLaunch, AKilledRankIsNamedByThoseThatAreLeft) {
  const std::string plan = save(3, endless());
  Process first = start(0, 3, plan);
  Process second = start(1, 3, plan);
  Process third = start(2, 3, plan);
  ASSERT_TRUE(first.wait_for("step    1"));
  third.kill(SIGKILL);
  for (Process* process : {&first, &second}) {
    expect_end(*process, 1, HasSubstr("rank 2 has ended without a word"));
  }
  EXPECT_EQ(third.wait().status, 128 + SIGKILL);
}

TEST_F(WrongLaunch, WhenRankZeroIsKilledItsStoreIsMissed) {
  const std::string plan = save(2, endless());
  Process first = start(0, 2, plan);
  Process second = start(1, 2, plan);
  ASSERT_TRUE(first.wait_for("step    1"));
  first.kill(SIGKILL);
  expect_end(second, 1, HasSubstr("the store has gone: store at 127.0.0.1:"));
}

TEST_F(WrongLaunch, WeightsThatCannotBeCompletedAreRemoved) {
  fs::create_directories(folder_ / "weights/config.json");  // a folder where a file must go
  const std::string plan = save(2);
  const std::string option = "--save-weights " + (folder_ / "weights").string();
  Process first = start(0, 2, plan, option);
  Process second = start(1, 2, plan, option);
  for (Process* process : {&first, &second}) expect_end(*process, 1, HasSubstr("config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "weights/model.safetensors.part"));
  EXPECT_FALSE(fs::exists(folder_ / "weights/model.safetensors"));
  fs::remove_all(folder_ / "out");  // trace and metrics were whole before
}

TEST_F(WrongLaunch, OptionsThatMeanNothingAreRefused) {
  const std::string plan = save(2);
  for (const auto& [option, text] : std::vector<std::pair<std::string, std::string>>{
           {"--store ftp://x:1", "--store: \"ftp://x:1\": is not tcp"},
           {"--store redis://127.0.0.1:1", "name this one"},
           {"--metrics /nonexistent/m.jsonl", "/nonexistent"}}) {
    Process process = start(0, 2, plan, option);
    expect_end(process, 2, HasSubstr(text));
  }
}

class WrongRedisLaunch : public WrongLaunch {
 protected:
  void SetUp() override {
    if (!RedisServer::is_installed()) GTEST_SKIP() << "redis-server is not installed";
  }
};

TEST_F(WrongRedisLaunch, AServerThatIsNotThereIsGivenUp) {
  Process process =
      start(0, 2, save(2), "--store redis://127.0.0.1:" + std::to_string(port_) + "/job");
  expect_end(process, 1, HasSubstr("cannot be reached within 1000 ms: Connection refused"));
}

TEST_F(WrongRedisLaunch, AServerThatDiesEndsAllRanks) {
  const RedisServer server(port_, folder_);
  const std::string plan = save(2, endless());
  const std::string option = "--store " + server.url() + "/job";
  Process first = start(0, 2, plan, option);
  Process second = start(1, 2, plan, option);
  ASSERT_TRUE(first.wait_for("step    1"));
  server.kill();
  for (Process* process : {&first, &second}) {
    expect_end(*process, 1, HasSubstr("the store has gone: store at redis://"));
  }
}

TEST_F(WrongRedisLaunch, AJobThatFailsLeavesNothingAtTheServer) {
  const RedisServer server(port_, folder_);
  const std::string plan = save(2);
  const std::string option = "--data /nonexistent/text --store " + server.url() + "/job";
  Process first = start(0, 2, plan, option);
  Process second = start(1, 2, plan, option);
  for (Process* process : {&first, &second}) {
    expect_end(*process, 2, HasSubstr("/nonexistent/text"));
  }
  EXPECT_THAT(server.ask("KEYS '*'"), StartsWith("\n"));
}

TEST_F(WrongRedisLaunch, AKilledRankIsNamed) {
  const RedisServer server(port_, folder_);
  const std::string plan = save(2, endless());
  const std::string option = "--store " + server.url() + "/job";
  Process first = start(0, 2, plan, option);
  Process second = start(1, 2, plan, option);
  ASSERT_TRUE(first.wait_for("step    1"));
  second.kill(SIGKILL);
  expect_end(first, 1, HasSubstr("rank 1 has ended without a word"));
  second.wait();
}

}  // namespace
}  // namespace foresail::testing
