#include "rank_threads.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/runtime/gloo.h"
#include "foresail/runtime/local.h"
#include "foresail/runtime/store.h"

namespace foresail::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

void with_gloo(int size, const std::function<void(runtime::Communicator&)>& body) {
  runtime::MemoryStore store{seconds(30)};
  const runtime::GlooEndpoint endpoint({.timeout = seconds(30)});
  std::barrier connected(size);
  run_threads(size, [&](int rank) {
    const auto group = endpoint.connect({.name = "test", .rank = rank, .size = size}, store);
    connected.arrive_and_wait();
    body(*group);
  });
}

void with_memory(int size, const std::function<void(runtime::Communicator&)>& body) {
  runtime::MemoryStore store{seconds(30)};
  runtime::LocalNetwork network{seconds(30)};
  run_threads(size, [&](int rank) {
    const auto endpoint = network.endpoint();
    body(*endpoint->connect({.name = "test", .rank = rank, .size = size}, store));
  });
}

}  // namespace

void with_group(Network network, int size,
                const std::function<void(runtime::Communicator&)>& body) {
  if (network == Network::Gloo) return with_gloo(size, body);
  if (network == Network::Local) return with_memory(size, body);
  const NcclStub stub;
  const auto failures = run_nccl_ranks(
      stub, {.ranks = size}, [&](const NcclRank& rank) { body(*connect_all(rank, size)); });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  EXPECT_EQ(stub.misuse(), "");
  EXPECT_EQ(stub.counts().live, 0);
  EXPECT_EQ(stub.counts().aborts, 0);
}

NcclStub::NcclStub(const NcclStubFault& fault) {
  handle_ = dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) throw std::runtime_error(dlerror());
  reinterpret_cast<decltype(&nccl_stub_reset)>(symbol("nccl_stub_reset"))(&fault);
}

std::string NcclStub::path() {
  return FORESAIL_NCCL_STUB;
}

void* NcclStub::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) throw std::runtime_error(std::string("no ") + name);
  return found;
}

NcclStubCounts NcclStub::counts() const {
  NcclStubCounts counts;
  reinterpret_cast<decltype(&nccl_stub_counts)>(symbol("nccl_stub_counts"))(&counts);
  return counts;
}

std::string NcclStub::misuse() const {
  return reinterpret_cast<decltype(&nccl_stub_misuse)>(symbol("nccl_stub_misuse"))();
}

bool NcclStub::has_config(const std::string& name, NcclStubConfig& config) const {
  const auto ask = reinterpret_cast<decltype(&nccl_stub_config)>(symbol("nccl_stub_config"));
  return ask(name.c_str(), &config);
}

StubStreams::StubStreams(const NcclStub& stub)
    : is_done_(reinterpret_cast<decltype(&nccl_stub_stream_is_done)>(
          stub.symbol("nccl_stub_stream_is_done"))) {}

void* StubStreams::current() {
  thread_local char stream = 0;
  return &stream;
}

bool StubStreams::is_done(void* stream) {
  return is_done_(stream);
}

runtime::Tensor StubStreams::make_token() {
  return at::zeros({1});
}

std::vector<std::string> run_nccl_ranks(const NcclStub& stub, const NcclRun& run,
                                        const std::function<void(const NcclRank&)>& body) {
  runtime::MemoryStore shared{seconds(30)};
  std::vector<std::string> failures(static_cast<std::size_t>(run.ranks));
  run_threads(run.ranks, [&](int rank) {
    StubStreams streams(stub);
    runtime::NcclEndpoint::Options options;
    options.rank = rank;
    options.world_size = run.ranks;
    options.streams = &streams;
    options.library = NcclStub::path();
    options.timeout = seconds(30);
    options.flag_interval = milliseconds(5);
    if (run.change) run.change(options);
    const auto own = run.store ? run.store(rank, shared) : nullptr;
    try {
      const runtime::NcclEndpoint endpoint(options);
      body({.rank = rank, .endpoint = endpoint, .store = own != nullptr ? *own : shared});
    } catch (const Error& error) {
      failures[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return failures;
}

std::unique_ptr<runtime::Communicator> connect_all(const NcclRank& rank, int ranks) {
  return rank.endpoint.connect(
      {.name = "test", .rank = rank.rank, .size = ranks, .kind = "test", .color = 0}, rank.store);
}

}  // namespace foresail::testing
