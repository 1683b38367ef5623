#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "foresail/base/error.h"
#include "foresail/runtime/communicator.h"
#include "foresail/runtime/store.h"
#include "rank_threads.h"

namespace foresail::runtime {
namespace {

using std::chrono::seconds;

/// Small integers: every order of summation gives the same fp32 result.
at::Tensor numbers(int rank, std::int64_t count) {
  return at::arange(count, at::kFloat).remainder_(17).add_(static_cast<double>(rank));
}

using testing::Network;

class Collectives : public ::testing::TestWithParam<std::tuple<Network, int>> {
 protected:
  template <class Body>
  void with_group(int size, const Body& body) const {
    testing::with_group(std::get<0>(GetParam()), size, body);
  }
  int size() const { return std::get<1>(GetParam()); }
};

// The wheels' libtorch exports the symbols of another Gloo: a mixture of the two crashes.
TEST(Gloo, IsTheSystemsOneWhateverLibtorchExports) {
  const void* all_reduce = ::dlsym(RTLD_DEFAULT, "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE");
  ASSERT_NE(all_reduce, nullptr);
  Dl_info library{};
  ASSERT_NE(::dladdr(all_reduce, &library), 0);
  EXPECT_THAT(library.dli_fname, ::testing::HasSubstr("/libgloo.so"));
}

TEST_P(Collectives, AllReduceSumsAndTakesMaxima) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    at::Tensor sum = numbers(group.rank(), 1001);
    group.all_reduce(sum, Reduction::Sum);
    // sum over r of (x + r) = n x + n (n - 1) / 2
    EXPECT_TRUE(at::equal(sum, numbers(0, 1001).mul_(n).add_(n * (n - 1) / 2)));
    at::Tensor max = numbers(group.rank(), 3);
    group.all_reduce(max, Reduction::Max);
    EXPECT_TRUE(at::equal(max, numbers(n - 1, 3)));
  });
}

TEST_P(Collectives, SumsOfBf16RoundEveryAddition) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    // Multiples of 1/4 below 8: bf16 has all their sums below 64.
    const at::Tensor exact = numbers(group.rank(), 128 * n).div_(4).to(at::kBFloat16);
    at::Tensor sum = exact.clone();
    group.all_reduce(sum, Reduction::Sum);
    const at::Tensor expected =
        numbers(0, 128 * n).mul_(n).add_(n * (n - 1) / 2).div_(4).to(at::kBFloat16);
    EXPECT_TRUE(at::equal(sum, expected));
    at::Tensor part = at::empty({128}, at::kBFloat16);
    group.reduce_scatter(exact, part);
    EXPECT_TRUE(at::equal(part, expected.narrow(0, 128 * group.rank(), 128)));
    // 256 + 1 is no number of bf16 and rounds to the even 256, whatever the order.
    at::Tensor lost = at::full({4}, group.rank() == 0 ? 256.0 : 0.0, at::kBFloat16);
    if (group.rank() == 1) lost.fill_(1);
    group.all_reduce(lost, Reduction::Sum);
    EXPECT_TRUE(at::equal(lost, at::full({4}, 256.0, at::kBFloat16)));
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPartOfTheSum) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    const at::Tensor input = numbers(group.rank(), 100 * n);
    at::Tensor part = at::empty({100});
    group.reduce_scatter(input, part);
    const at::Tensor sum = numbers(0, 100 * n).mul_(n).add_(n * (n - 1) / 2);
    EXPECT_TRUE(at::equal(part, sum.narrow(0, 100 * group.rank(), 100)));
  });
}

TEST_P(Collectives, AllGatherPutsPartsInRankOrder) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    at::Tensor whole = at::empty({50 * n});
    group.all_gather(numbers(group.rank(), 50), whole);
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_TRUE(at::equal(whole.narrow(0, 50 * rank, 50), numbers(rank, 50)));
    }
  });
}

/// No token went to the experts of a tensor-parallel group: Gloo's all-gather died of that.
TEST_P(Collectives, GathersAndSumsOfNoRowsMoveNothing) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    at::Tensor rows = at::empty({0, 8});
    group.all_gather(at::empty({0, 8}), rows);
    group.reduce_scatter(at::empty({0, 8}), rows);
    at::Tensor sum = at::ones({2});
    group.all_reduce(sum, Reduction::Sum);
    EXPECT_TRUE(at::equal(sum, at::full({2}, static_cast<double>(n))));
  });
}

TEST_P(Collectives, AllToAllTransposesParts) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    // Part r of rank s is s * 10 + r.
    at::Tensor input = at::arange(n, at::kFloat).add_(10.0 * group.rank());
    at::Tensor output = at::empty({n});
    group.all_to_all(input, output);
    const at::Tensor expected = at::arange(n, at::kFloat).mul_(10).add_(group.rank());
    EXPECT_TRUE(at::equal(output, expected));
  });
}

TEST_P(Collectives, BroadcastCopiesTheRoot) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    at::Tensor tensor = numbers(group.rank(), 7);
    group.broadcast(tensor, n - 1);
    EXPECT_TRUE(at::equal(tensor, numbers(n - 1, 7)));
  });
}

TEST_P(Collectives, MessagesArriveInTheOrderSent) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    for (int i = 0; i < 3; ++i) {
      if (group.rank() == 0) group.send(numbers(i, 64), n - 1);
      if (group.rank() != n - 1) continue;
      at::Tensor message = at::empty({64});
      group.recv(message, 0);
      EXPECT_TRUE(at::equal(message, numbers(i, 64)));
    }
    group.barrier();
  });
}

TEST_P(Collectives, SplitMakesGroupsByColorInOrderOfKey) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    // Even and odd ranks; keys turn the order round.
    const int parity = group.rank() % 2;
    const auto half = group.split(parity, -group.rank());
    const int members = (n + 1 - parity) / 2;
    ASSERT_EQ(half->size(), members);
    EXPECT_EQ(half->rank(), members - 1 - group.rank() / 2);
    at::Tensor sum = at::full({1}, static_cast<double>(group.rank()));
    half->all_reduce(sum, Reduction::Sum);
    // 0 + 2 + ... or 1 + 3 + ...
    EXPECT_EQ(sum.item<float>(), static_cast<float>(members * (members - 1) + parity * members));
  });
}

TEST_P(Collectives, RowsGoToTheirRanksWhateverTheirNumbers) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    // Rank s sends s + r rows of value 10 s + r to rank r.
    std::vector<std::int64_t> sends, receives;
    std::vector<at::Tensor> parts, expected;
    for (int peer = 0; peer < n; ++peer) {
      const std::int64_t rows = group.rank() + peer;
      sends.push_back(rows);
      receives.push_back(rows);
      parts.push_back(at::full({rows, 3}, 10.0 * group.rank() + peer));
      expected.push_back(at::full({rows, 3}, 10.0 * peer + group.rank()));
    }
    const at::Tensor wanted = at::cat(expected);
    at::Tensor output = at::empty_like(wanted);
    group.all_to_all_rows(at::cat(parts), sends, output, receives);
    EXPECT_TRUE(at::equal(output, wanted));
  });
}

TEST_P(Collectives, AllMembersOfARingMayExchange) {
  const int n = size();
  with_group(n, [&](Communicator& group) {
    at::Tensor input = at::empty({64});
    const int before = (group.rank() + n - 1) % n;
    group.exchange(numbers(group.rank(), 64), (group.rank() + 1) % n, input, before);
    EXPECT_TRUE(at::equal(input, numbers(before, 64)));
  });
}

INSTANTIATE_TEST_SUITE_P(Gloo, Collectives,
                         ::testing::Combine(::testing::Values(Network::Gloo),
                                            ::testing::Values(2, 3, 4)));
INSTANTIATE_TEST_SUITE_P(Local, Collectives,
                         ::testing::Combine(::testing::Values(Network::Local),
                                            ::testing::Values(2, 3, 4)));
INSTANTIATE_TEST_SUITE_P(NcclStub, Collectives,
                         ::testing::Combine(::testing::Values(Network::NcclStub),
                                            ::testing::Values(2, 3, 4)));

TEST(Gloo, ALostPeerIsAnErrorThatNamesTheOperation) {
  testing::with_group(Network::Gloo, 2, [&](Communicator& group) {
    // Both are connected once rank 1 has a message.
    at::Tensor tensor = at::zeros({256});
    if (group.rank() == 1) {
      group.recv(tensor, 0);
      return group.abort();
    }
    group.send(tensor, 1);
    try {
      group.all_reduce(tensor, Reduction::Sum);
      FAIL() << "a group with a dead member reduced";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Device);
      EXPECT_NE(std::string(error.what()).find("test: all_reduce of 1024 bytes"), std::string::npos)
          << error.what();
    }
  });
}

TEST(LocalCommunicator, IsAGroupOfOneInWhichCollectivesCopy) {
  const auto group = make_local_communicator("alone");
  EXPECT_EQ(group->size(), 1);
  at::Tensor output = at::empty({5});
  group->reduce_scatter(numbers(3, 5), output);
  EXPECT_TRUE(at::equal(output, numbers(3, 5)));
  at::Tensor none = at::zeros({1});
  EXPECT_THROW(group->recv(none, 0), ContractViolation);
}

TEST(MemoryStore, SaysWhichKeyNobodySet) {
  MemoryStore store{std::chrono::milliseconds(10)};
  store.set("here", "value");
  EXPECT_EQ(store.get("here"), "value");
  EXPECT_EQ(store.add("count", 2), 2);
  EXPECT_EQ(store.add("count", 3), 5);
  try {
    store.get("missing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"missing\""), std::string::npos);
  }
}

TEST(TcpStore, SharesKeysBetweenServerAndClient) {
  std::unique_ptr<Store> server;
  int port = 29731;
  for (; server == nullptr && port < 29831; ++port) {
    try {
      server = make_tcp_store({.port = port, .role = StoreRole::Server});
    } catch (const Error&) {
      continue;
    }
    break;
  }
  ASSERT_NE(server, nullptr);
  const auto client = make_tcp_store({.port = port, .role = StoreRole::Client});
  client->set("a", std::string("zero \0 inside", 13));
  EXPECT_EQ(server->get("a"), std::string("zero \0 inside", 13));
  server->add("n", 1);
  EXPECT_EQ(client->add("n", 1), 2);
}

}  // namespace
}  // namespace foresail::runtime
