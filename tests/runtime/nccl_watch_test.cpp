// Operations of NCCL that are queued and that nobody waits for, over the stub: they return at once,
// and whatever becomes of them reaches all ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "foresail/base/error.h"
#include "rank_threads.h"

namespace foresail::testing {
namespace {

using runtime::Reduction;
using std::chrono::milliseconds;

/// The stub's streams as those of a device, which can be asked later.
class MarkedStreams : public StubStreams {
 public:
  using StubStreams::StubStreams;
  std::function<bool()> mark_end(void* stream) override {
    return [this, stream] { return is_done(stream); };
  }
  void keep_for(const runtime::Tensor& tensor, void*) override {
    EXPECT_TRUE(tensor.defined());
    ++kept;
  }
  void wait() {
    while (!is_done(current())) std::this_thread::yield();
  }

  std::atomic<int> kept{0};
};

NcclRun over(MarkedStreams& streams, milliseconds timeout) {
  NcclRun run;
  run.change = [&streams, timeout](runtime::NcclEndpoint::Options& options) {
    options.streams = &streams;
    options.timeout = timeout;
  };
  return run;
}

void expect_clean(const NcclStub& stub) {
  EXPECT_EQ(stub.misuse(), "");
  EXPECT_EQ(stub.counts().live, 0);
}

TEST(NcclWatch, AQueuedOperationReturnsBeforeItsPeersIssueTheirs) {
  const NcclStub stub;
  MarkedStreams streams(stub);
  std::atomic<bool> is_queued{false};
  const auto failures =
      run_nccl_ranks(stub, over(streams, milliseconds(30'000)), [&](const NcclRank& rank) {
        const auto group = connect_all(rank, 2);
        while (rank.rank == 1 && !is_queued) std::this_thread::yield();
        at::Tensor sum = at::full({257}, static_cast<double>(rank.rank + 1));
        group->all_reduce(sum, Reduction::Sum);
        is_queued = true;
        streams.wait();
        EXPECT_TRUE(at::equal(sum, at::full({257}, 3.0)));
        rank.endpoint.check();
        group->barrier();  // waits, as the word says
        EXPECT_TRUE(streams.is_done(streams.current()));
      });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  EXPECT_EQ(streams.kept, 4);  // a tensor per rank and operation
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 0);
}

/// Queues until somebody says that it is over.
std::vector<std::string> queue_until_it_fails(const NcclStub& stub, milliseconds timeout) {
  MarkedStreams streams(stub);
  return run_nccl_ranks(stub, over(streams, timeout), [&](const NcclRank& rank) {
    const auto group = connect_all(rank, 2);
    at::Tensor sum = at::ones({257});
    group->all_reduce(sum, Reduction::Sum);
    for (;;) {
      rank.endpoint.check();
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
}

TEST(NcclWatch, AnOperationThatNeverEndsEndsAllRanks) {
  const NcclStub stub({.swallow_rank = 1});
  for (const std::string& failure : queue_until_it_fails(stub, milliseconds(300))) {
    EXPECT_NE(
        failure.find("test: all_reduce of 1028 bytes: not done, and nothing else, for 300 ms"),
        std::string::npos)
        << failure;
  }
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 4);  // of 2 ranks: all of them, and the group
}

TEST(NcclWatch, ABrokenNetworkEndsAllRanks) {
  const NcclStub stub({.error_rank = 1});
  for (const std::string& failure : queue_until_it_fails(stub, milliseconds(30'000))) {
    EXPECT_NE(failure.find("test: all_reduce of 1028 bytes: "), std::string::npos) << failure;
    EXPECT_NE(failure.find("error"), std::string::npos) << failure;
  }
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 4);
}

}  // namespace
}  // namespace foresail::testing
