// One reader feeds the ranks of a node: they get what each would have read for itself.
#include "foresail/runtime/node_batches.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "foresail/base/error.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using runtime::NodeBatches;
using ::testing::HasSubstr;

constexpr int kSteps = 7;

/// Sample g is g, g + 1, g + 2 ... Counts reads; may fail at a sample.
class Counting : public runtime::SampleSource {
 public:
  explicit Counting(std::int64_t broken = -1) : broken_(broken) {}
  void read(std::int64_t global_index, std::span<std::int32_t> tokens) const override {
    if (global_index == broken_) throw Error(ErrorCode::InvalidInput, "a broken sample");
    ++reads;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(global_index) + static_cast<std::int32_t>(i);
    }
  }
  std::int64_t samples_per_epoch() const override { return INT64_MAX; }
  mutable std::atomic<int> reads = 0;

 private:
  std::int64_t broken_;
};

runtime::Job job_of(int dp, int pp) {
  planner::Layout layout;
  layout.dp = dp;
  layout.pp = pp;
  return cli::make_job(make_plan({.layout = layout}));
}

/// What rank `rank` asks for in `step`: 8 samples a step over dp replicas, one at a time.
std::vector<std::int64_t> indices(const runtime::Job& job, RankId rank, int step) {
  const auto replica =
      job.program.grid.coordinates(rank)[static_cast<std::size_t>(program::Axis::Dp)];
  std::vector<std::int64_t> all;
  const int dp = job.program.grid.size(program::Axis::Dp);
  for (std::int64_t i = 0; i < 8 / dp; ++i) all.push_back(8 * step + i * dp + replica);
  return all;
}

/// Loads a step and checks every token.
void load_and_check(NodeBatches& batches, const runtime::Job& job, RankId rank, int step) {
  const auto wanted = indices(job, rank, step);
  std::vector<std::int32_t> tokens(wanted.size() * 65, -1);
  batches.load(step, wanted, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_EQ(tokens[i], wanted[i / 65] + static_cast<std::int64_t>(i % 65)) << "step " << step;
  }
}

NodeBatches::Options options(const runtime::Job& job, std::uint32_t rank,
                             std::vector<RankId> ranks) {
  return {.job = &job, .rank = RankId{rank}, .ranks = std::move(ranks), .steps = kSteps};
}

TEST(NodeBatches, OnlyRanksWithTheFirstOrLastStageLoad) {
  const runtime::Job job = job_of(1, 4);
  std::vector<bool> loads;
  for (std::uint32_t r = 0; r < 4; ++r) {
    loads.push_back(runtime::loads_batches(job.program, RankId{r}));
  }
  EXPECT_THAT(loads, ::testing::ElementsAre(true, false, false, true));
}

TEST(NodeBatches, EveryRankGetsItsSamplesAndEachIsReadOnce) {
  // dp 4 over two nodes: this one has replicas 1 and 3 on two stages, four ranks.
  const runtime::Job job = job_of(4, 2);
  const std::vector<RankId> ranks = {RankId{1}, RankId{3}, RankId{5}, RankId{7}};
  auto source = std::make_unique<Counting>();
  const Counting& counting = *source;
  const auto reader = NodeBatches::serve(options(job, 1, ranks), std::move(source));
  std::vector<std::unique_ptr<NodeBatches>> others;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) {
      others.push_back(NodeBatches::attach(options(job, ranks[i].value, ranks), reader->handle()));
    }
    NodeBatches* own = i == 0 ? reader.get() : others.back().get();
    threads.emplace_back([&job, own, rank = ranks[i], i] {
      for (int step = 0; step < kSteps; ++step) {
        // The slowest rank keeps the reader from filling its slot again.
        if (i == 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        load_and_check(*own, job, rank, step);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counting.reads, kSteps * 4);  // half of 8 samples a step
}

TEST(NodeBatches, TwoStepsAreReadAheadAndNoMore) {
  const runtime::Job job = job_of(1, 1);
  auto source = std::make_unique<Counting>();
  const Counting& counting = *source;
  const auto reader = NodeBatches::serve(options(job, 0, {RankId{0}}), std::move(source));
  while (counting.reads < 16) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(counting.reads, 16);
  load_and_check(*reader, job, RankId{0}, 0);
  while (counting.reads < 24) std::this_thread::yield();
}

TEST(NodeBatches, WhatTheReaderMeetsIsThrownByEveryRankInTheStepThatNeedsIt) {
  const runtime::Job job = job_of(2, 1);
  const std::vector<RankId> ranks = {RankId{0}, RankId{1}};
  const auto reader =
      NodeBatches::serve(options(job, 0, ranks), std::make_unique<Counting>(/*broken=*/9));
  const auto other = NodeBatches::attach(options(job, 1, ranks), reader->handle());
  for (NodeBatches* each : {reader.get(), other.get()}) {
    const RankId rank{each == reader.get() ? 0u : 1u};
    load_and_check(*each, job, rank, 0);
    std::vector<std::int32_t> tokens(4 * 65);
    try {
      each->load(1, indices(job, rank, 1), tokens);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
      EXPECT_STREQ(error.what(), "a broken sample");
    }
  }
}

TEST(NodeBatches, AReaderInAnotherProcessThatDiesIsNamed) {
  const runtime::Job job = job_of(2, 1);
  const std::vector<RankId> ranks = {RankId{0}, RankId{1}};
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto reader = NodeBatches::serve(options(job, 0, ranks), std::make_unique<Counting>());
    const std::string handle = reader->handle();
    const bool is_told = write(ends[1], handle.data(), handle.size()) > 0;
    pause();  // takes none of its own samples, so that step 2 is never read
    _exit(is_told ? 0 : 1);
  }
  std::array<char, 100> handle{};
  ASSERT_GT(read(ends[0], handle.data(), handle.size() - 1), 0);
  const auto own = NodeBatches::attach(options(job, 1, ranks), handle.data());
  for (int step = 0; step < 2; ++step) load_and_check(*own, job, RankId{1}, step);
  std::thread killer([child] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  });
  std::vector<std::int32_t> tokens(4 * 65);
  try {
    own->load(2, indices(job, RankId{1}, 2), tokens);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Device);
    EXPECT_STREQ(error.what(), "rank 0, which reads the data of this node, has ended");
  }
  killer.join();
  close(ends[0]);
  close(ends[1]);
}

TEST(NodeBatches, AHandleOfAnotherSizeIsRefused) {
  const runtime::Job job = job_of(2, 1), larger = job_of(1, 1);
  const auto reader =
      NodeBatches::serve(options(job, 0, {RankId{0}}), std::make_unique<Counting>());
  EXPECT_THROW(NodeBatches::attach(options(larger, 0, {RankId{0}}), reader->handle()), Error);
  EXPECT_THROW(NodeBatches::attach(options(job, 0, {RankId{0}}), "elsewhere"), Error);
}

}  // namespace
}  // namespace foresail::testing
