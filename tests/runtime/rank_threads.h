/// \file
/// Groups whose ranks are threads of the test, over Gloo, common memory or NCCL's stub.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "foresail/runtime/communicator.h"
#include "foresail/runtime/nccl.h"
#include "nccl_stub/nccl_stub.h"

namespace foresail::testing {

enum class Network { Gloo, Local, NcclStub };

/// Runs `body` on every rank of a group of threads. Nobody leaves while others may still connect.
void with_group(Network network, int size, const std::function<void(runtime::Communicator&)>& body);

/// The stub as a loaded library. Making one resets it.
class NcclStub {
 public:
  explicit NcclStub(const NcclStubFault& fault = {});
  static std::string path();
  NcclStubCounts counts() const;
  /// What was done that NCCL does not allow; empty if nothing.
  std::string misuse() const;
  bool has_config(const std::string& name, NcclStubConfig& config) const;
  /// A function of the library.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
};

/// Each thread has a stream of its own, in host memory.
class StubStreams : public runtime::StreamSource {
 public:
  explicit StubStreams(const NcclStub& stub);
  void* current() override;
  bool is_done(void* stream) override;
  runtime::Tensor make_token() override;

 private:
  bool (*is_done_)(void*) = nullptr;
};

/// Runs `body` in one thread per rank, each with an endpoint of the stub, and returns what each
/// rank's failure said; empty where there was none. `change` edits the options.
struct NcclRank {
  int rank = 0;
  const runtime::NcclEndpoint& endpoint;
  runtime::Store& store;
};
struct NcclRun {
  int ranks = 2;
  std::function<void(runtime::NcclEndpoint::Options&)> change{};
  /// Called for each rank with the store it is to see; the rank's own store wraps it, if given.
  std::function<std::unique_ptr<runtime::Store>(int rank, runtime::Store& shared)> store{};
};
std::vector<std::string> run_nccl_ranks(const NcclStub& stub, const NcclRun& run,
                                        const std::function<void(const NcclRank&)>& body);

/// The group of all ranks.
std::unique_ptr<runtime::Communicator> connect_all(const NcclRank& rank, int ranks);

}  // namespace foresail::testing
