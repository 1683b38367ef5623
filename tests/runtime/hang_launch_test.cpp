// Jobs of which one rank stands still in the midst of its steps, its process alive: the others find
// out and name it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "launched_job.h"

namespace foresail::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Steps take milliseconds, so that seconds without anything that begins or ends are a hang even
/// on a busy machine.
constexpr const char* kLimit = "--step-timeout 4s";

class HangingJob : public LaunchedJob {
 protected:
  /// `ranks` ranks that have begun their steps.
  std::vector<Process> start_all(int ranks, const std::string& options,
                                 const std::string& of_rank_zero = {}) {
    limit_ = "1min";
    const std::string plan = save(ranks, endless());
    std::vector<Process> all;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(
          start(rank, ranks, plan, options + " " + (rank == 0 ? of_rank_zero : std::string())));
    }
    EXPECT_TRUE(all.front().wait_for("step    1"));
    return all;
  }
};

TEST_F(HangingJob, AStoppedRankIsNamedByTheOthers) {
  std::vector<Process> ranks = start_all(3, kLimit);
  ranks[2].kill(SIGSTOP);
  for (const std::size_t rank : {0u, 1u}) {
    expect_end(ranks[rank], 1,
               AllOf(HasSubstr("rank 2 makes no progress and does not answer (waiting: rank 0"),
                     Not(HasSubstr("because of"))));
  }
  ranks[2].kill(SIGKILL);
  ranks[2].wait();
}

TEST_F(HangingJob, AStoppedRankZeroIsNamedThoughItServesTheStore) {
  std::vector<Process> ranks = start_all(2, kLimit);
  ranks[0].kill(SIGSTOP);
  expect_end(ranks[1], 1,
             AllOf(HasSubstr("rank 0, which serves the store at 127.0.0.1:"),
                   HasSubstr("makes no progress and does not answer (rank 1 is in step")));
  ranks[0].kill(SIGKILL);
  ranks[0].wait();
}

/// Rank 0 writes a line a step into a pipe that nobody empties.
TEST_F(HangingJob, ARankThatHangsByItselfEndsWithTheOthers) {
  const std::string pipe = (folder_ / "metrics").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
  std::vector<Process> ranks = start_all(2, kLimit, "--metrics " + pipe);
  for (Process& process : ranks) {
    expect_end(process, 1,
               ::testing::ContainsRegex("rank 0 makes no progress: rank 0 for [0-9]+ s in front of "
                                        "step [0-9]+ \\(waiting: rank 1 for [0-9]+ s in step"));
  }
  ::close(reader);
}

TEST_F(HangingJob, ARankThatPausesForLessThanTheLimitIsWaitedFor) {
  limit_ = "1min";
  const std::string plan = save(2, [](planner::Plan& made) { made.training.steps = 200; });
  Process first = start(0, 2, plan, "--step-timeout 1min");
  Process second = start(1, 2, plan, "--step-timeout 1min");
  ASSERT_TRUE(first.wait_for("step    1"));
  second.kill(SIGSTOP);
  sleep(2);
  second.kill(SIGCONT);
  for (Process* process : {&first, &second}) {
    const Outcome outcome = process->wait();
    EXPECT_EQ(outcome.status, 0) << outcome.text;
  }
  EXPECT_EQ(fs::remove_all(folder_ / "out"), 4u);
}

TEST_F(HangingJob, AStepTimeoutThatIsNoTimeOrTooShortIsRefused) {
  const std::string plan = save(1);
  for (const auto& [value, message] :
       {std::pair{"1", "1"}, std::pair{"10ms", "--step-timeout: 10ms: must be >= 1 s"}}) {
    Process process = start(0, 1, plan, std::string("--step-timeout ") + value);
    expect_end(process, 2, HasSubstr(message));
  }
}

}  // namespace
}  // namespace foresail::testing
