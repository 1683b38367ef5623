// The state machine of NCCL's communicators over a stub library: what happens when NCCL takes its
// time, fails, or never answers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "foresail/base/error.h"
#include "foresail/runtime/nccl.h"
#include "rank_threads.h"

namespace foresail::testing {
namespace {

using runtime::BufferRegistration;
using runtime::Communicator;
using runtime::NcclEndpoint;
using runtime::Reduction;
using std::chrono::milliseconds;

void expect_sum(Communicator& group) {
  at::Tensor sum = at::full({257}, static_cast<double>(group.rank() + 1));
  group.all_reduce(sum, Reduction::Sum);
  const double expected = group.size() * (group.size() + 1) / 2.0;
  EXPECT_TRUE(at::equal(sum, at::full({257}, expected)));
}

void expect_none(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

/// Every communicator has come to its end once, and NCCL was never misused.
void expect_clean(const NcclStub& stub) {
  EXPECT_EQ(stub.misuse(), "");
  EXPECT_EQ(stub.counts().live, 0);
  EXPECT_EQ(stub.counts().registered, 0);
  EXPECT_EQ(stub.counts().memory_blocks, 0);
}

void expect_all_contain(const std::vector<std::string>& failures, const std::string& text) {
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find(text), std::string::npos) << failure;
  }
}

TEST(Nccl, CallsWaitWhileACommunicatorIsInProgress) {
  const NcclStub stub({.init_polls = 5, .call_polls = 20});
  expect_none(run_nccl_ranks(stub, {.ranks = 3}, [](const NcclRank& rank) {
    const auto group = connect_all(rank, 3);
    for (int i = 0; i < 3; ++i) expect_sum(*group);
    group->barrier();
  }));
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 0);
  EXPECT_EQ(stub.counts().destroys, 6);  // of 3 ranks: all of them, and the group
}

TEST(Nccl, LargeJobsMeetThroughSeveralIds) {
  const NcclStub stub;
  NcclRun run{.ranks = 7};
  run.change = [](NcclEndpoint::Options& options) { options.ranks_per_id = 3; };
  expect_none(
      run_nccl_ranks(stub, run, [](const NcclRank& rank) { expect_sum(*connect_all(rank, 7)); }));
  expect_clean(stub);
  EXPECT_EQ(stub.counts().ids, 3);
  EXPECT_EQ(stub.counts().ids_of_init, 3);
}

TEST(Nccl, GroupsAreSplitFromOneCommunicatorOfAllRanks) {
  const NcclStub stub;
  expect_none(run_nccl_ranks(stub, {.ranks = 5}, [](const NcclRank& rank) {
    // tp: {0, 1}, {2, 3}; rank 4 is in none.
    std::unique_ptr<Communicator> tp;
    if (rank.rank == 4) {
      rank.endpoint.stand_by("tp", rank.store);
    } else {
      const int first = rank.rank / 2 * 2;
      tp = rank.endpoint.connect({.name = "tp/" + std::to_string(first),
                                  .rank = rank.rank - first,
                                  .size = 2,
                                  .kind = "tp",
                                  .color = first},
                                 rank.store);
      expect_sum(*tp);
    }
    // Groups of one need no communicator, but take their turn.
    const auto alone = rank.endpoint.connect(
        {.name = "dp/" + std::to_string(rank.rank), .kind = "dp", .color = rank.rank}, rank.store);
    EXPECT_EQ(alone->size(), 1);
    expect_sum(*connect_all(rank, 5));
  }));
  expect_clean(stub);
  EXPECT_EQ(stub.counts().ids, 1);
  EXPECT_EQ(stub.counts().inits, 5);
  EXPECT_EQ(stub.counts().splits, 4 + 5);
}

TEST(Nccl, GroupsHaveTheirOwnConfigurations) {
  const NcclStub stub;
  NcclRun run;
  run.change = [](NcclEndpoint::Options& options) {
    add_group_options(options.groups, "test:min_ctas=2,max_ctas=16,net=IB");
    add_group_options(options.groups, "*:cga_cluster_size=4,traffic_class=105");
  };
  expect_none(run_nccl_ranks(stub, run, [](const NcclRank& rank) { connect_all(rank, 2); }));
  NcclStubConfig test, world;
  ASSERT_TRUE(stub.has_config("test", test));
  ASSERT_TRUE(stub.has_config("world", world));
  EXPECT_EQ(test.blocking, 0);
  EXPECT_EQ(test.min_ctas, 2);
  EXPECT_EQ(test.max_ctas, 16);
  EXPECT_EQ(test.traffic_class, INT_MIN);
  EXPECT_STREQ(test.net_name, "IB");
  EXPECT_EQ(world.blocking, 0);
  EXPECT_EQ(world.max_ctas, INT_MIN);
  EXPECT_EQ(world.cga_cluster_size, 4);
  EXPECT_EQ(world.traffic_class, 105);
}

TEST(Nccl, OptionsOfGroupsThatAreWrongAreNamed) {
  runtime::NcclGroups groups;
  for (const char* text : {"max_ctas=4", "dp:max_ctas", "dp:max_ctas=x", "dp:ctas=4"}) {
    EXPECT_THROW(add_group_options(groups, text), Error) << text;
  }
}

TEST(Nccl, ABrokenNetworkEndsAllRanksAndTheirGroups) {
  // The sixth all-reduce of rank 2 fails; the others hear of it from NCCL or through the store.
  const NcclStub stub({.error_rank = 2, .error_after = 5});
  const auto failures = run_nccl_ranks(stub, {.ranks = 4}, [](const NcclRank& rank) {
    const auto group = connect_all(rank, 4);
    const auto other = connect_all(rank, 4);
    for (;;) expect_sum(*group);
  });
  expect_all_contain(failures, "all_reduce of 1028 bytes: ");
  EXPECT_NE(failures[2].find("unhandled system error; NCCL says: the stub was told to"),
            std::string::npos)
      << failures[2];
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 12);  // of 4 ranks: all of them, and two groups
}

TEST(Nccl, AnOperationThatNeverEndsFailsAtTheDeadline) {
  const NcclStub stub({.swallow_rank = 1, .swallow_after = 1});
  NcclRun run{.ranks = 3};
  run.change = [](NcclEndpoint::Options& options) { options.timeout = milliseconds(300); };
  const auto failures = run_nccl_ranks(stub, run, [](const NcclRank& rank) {
    const auto group = connect_all(rank, 3);
    expect_sum(*group);
    expect_sum(*group);
    FAIL() << "an operation ended of which one rank's part is missing";
  });
  expect_all_contain(failures, "not done after 300 ms");
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 6);
}

TEST(Nccl, RanksThatIssueOtherOperationsFailAtTheDeadline) {
  const NcclStub stub;
  NcclRun run;
  run.change = [](NcclEndpoint::Options& options) { options.timeout = milliseconds(300); };
  const auto failures = run_nccl_ranks(stub, run, [](const NcclRank& rank) {
    const auto group = connect_all(rank, 2);
    at::Tensor tensor = at::zeros({4});
    if (rank.rank == 0) group->all_reduce(tensor, Reduction::Sum);
    if (rank.rank == 1) group->broadcast(tensor, 0);
  });
  expect_all_contain(failures, "has issued other operations");
  expect_clean(stub);
}

TEST(Nccl, ARankThatFailsElsewhereIsNamedToThoseThatWait) {
  const NcclStub stub;
  const auto failures = run_nccl_ranks(stub, {.ranks = 4}, [](const NcclRank& rank) {
    const auto group = connect_all(rank, 4);
    if (rank.rank == 3) return rank.endpoint.report_failure("no batch 7");
    expect_sum(*group);
  });
  EXPECT_EQ(failures[3], "");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(failures[static_cast<std::size_t>(rank)], "stopped: rank 3 failed: no batch 7");
  }
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 8);
}

TEST(Nccl, ARefusedInitEndsAllRanks) {
  const NcclStub stub({.refused_init_rank = 1});
  const auto failures =
      run_nccl_ranks(stub, {.ranks = 3}, [](const NcclRank& rank) { connect_all(rank, 3); });
  expect_all_contain(failures, "world: init: unhandled system error");
  EXPECT_EQ(failures[0].find("stopped: rank 1 failed: "), 0u) << failures[0];
  expect_clean(stub);
}

/// Hands one rank an id that no library gave out.
class ForeignIds : public runtime::Store {
 public:
  explicit ForeignIds(runtime::Store& shared) : shared_(shared) {}
  void set(const std::string& key, const std::string& value) override { shared_.set(key, value); }
  std::string get(const std::string& key) override {
    std::string value = shared_.get(key);
    return key.starts_with("nccl/id/") ? std::string(value.size(), 'x') : value;
  }
  std::int64_t add(const std::string& key, std::int64_t delta) override {
    return shared_.add(key, delta);
  }
  bool has(const std::string& key) override { return shared_.has(key); }

 private:
  runtime::Store& shared_;
};

TEST(Nccl, AWrongIdEndsAllRanks) {
  const NcclStub stub;
  NcclRun run;
  run.store = [](int rank, runtime::Store& shared) -> std::unique_ptr<runtime::Store> {
    if (rank == 0) return nullptr;
    return std::make_unique<ForeignIds>(shared);
  };
  const auto failures =
      run_nccl_ranks(stub, run, [](const NcclRank& rank) { connect_all(rank, 2); });
  expect_all_contain(failures, "world: init: invalid argument");
  expect_clean(stub);
}

TEST(Nccl, GroupsConnectedInDifferentOrdersAreRefused) {
  const NcclStub stub;
  const auto failures = run_nccl_ranks(stub, {.ranks = 4}, [](const NcclRank& rank) {
    // Rank 3 takes this turn for one of four ranks, the others for one of pairs.
    const int size = rank.rank == 3 ? 4 : 2;
    const int first = rank.rank / size * size;
    rank.endpoint.connect(
        {.name = "pair", .rank = rank.rank - first, .size = size, .kind = "pair", .color = first},
        rank.store);
    connect_all(rank, 4);
  });
  EXPECT_NE(failures[3].find("ranks connect their groups in different orders"), std::string::npos)
      << failures[3];
  for (const std::string& failure : failures) EXPECT_NE(failure, "");
  expect_clean(stub);
}

TEST(Nccl, AnAbortedCommunicatorRefusesWithoutAskingNccl) {
  const NcclStub stub;
  const auto failures = run_nccl_ranks(stub, {.ranks = 2}, [](const NcclRank& rank) {
    const auto group = connect_all(rank, 2);
    group->abort();
    group->abort();
    expect_sum(*group);
  });
  expect_all_contain(failures,
                     "test: all_reduce of 1028 bytes: aborted: test: aborted by its owner");
  expect_clean(stub);
  EXPECT_EQ(stub.counts().aborts, 4);
}

TEST(Nccl, RegisteredBuffersMoveIntoMemoryOfTheLibraryUnderTheirViews) {
  const NcclStub stub;
  NcclRun run;
  run.change = [](NcclEndpoint::Options& options) {
    options.registration = BufferRegistration::On;
  };
  expect_none(run_nccl_ranks(stub, run, [&](const NcclRank& rank) {
    at::Tensor buffer = at::arange(64, at::kFloat);
    const at::Tensor view = buffer.narrow(0, 10, 4);
    const void* before = buffer.data_ptr();
    const auto group = connect_all(rank, 2);
    const auto registered = group->register_buffer(buffer);
    ASSERT_NE(registered, nullptr);
    EXPECT_NE(buffer.data_ptr(), before);
    group->all_reduce(buffer, Reduction::Sum);
    EXPECT_TRUE(at::equal(view, at::arange(20, 28, 2, at::kFloat)));
  }));
  expect_clean(stub);
  EXPECT_EQ(stub.counts().registrations, 2);
}

TEST(Nccl, WithoutRegistrationBuffersStay) {
  const NcclStub stub;
  expect_none(run_nccl_ranks(stub, {}, [](const NcclRank& rank) {
    at::Tensor buffer = at::zeros({8});
    const void* before = buffer.data_ptr();
    EXPECT_EQ(connect_all(rank, 2)->register_buffer(buffer), nullptr);
    EXPECT_EQ(buffer.data_ptr(), before);
  }));
  EXPECT_EQ(stub.counts().registrations, 0);
}

TEST(Nccl, TheRealLibraryIsLoadedAndRefusesWithoutADriver) {
  try {
    runtime::describe_nccl();
  } catch (const Error& missing) {
    GTEST_SKIP() << missing.what();
  }
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this host has a driver";
  const NcclStub stub;
  NcclRun run{.ranks = 1};
  run.change = [](NcclEndpoint::Options& options) { options.library.clear(); };
  const auto failures =
      run_nccl_ranks(stub, run, [](const NcclRank& rank) { connect_all(rank, 1); });
  EXPECT_EQ(failures[0].find("world: init: unhandled cuda error"), 0u) << failures[0];
  EXPECT_EQ(stub.counts().inits, 0);
}

TEST(Nccl, ALibraryThatIsMissingOrNotNcclIsNamed) {
  const NcclStub stub;
  StubStreams streams(stub);
  NcclEndpoint::Options options{.streams = &streams, .library = "libnot-there.so.2"};
  try {
    const NcclEndpoint endpoint(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFound);
    EXPECT_EQ(std::string(error.what()).find("libnot-there.so.2: NCCL cannot be loaded"), 0u);
  }
  options.library = "libm.so.6";
  try {
    const NcclEndpoint endpoint(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_STREQ(error.what(), "libm.so.6: has no ncclGetVersion");
  }
}

}  // namespace
}  // namespace foresail::testing
