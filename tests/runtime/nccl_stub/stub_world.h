/// \file
/// The stub's state: communicators, cliques of ranks, and operations on their way.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "nccl_api.h"
#include "nccl_stub.h"

namespace foresail::testing {

using runtime::NcclComm;
using runtime::NcclConfig;
using runtime::NcclReduction;
using runtime::NcclResult;
using runtime::NcclStream;
using runtime::NcclType;
using runtime::NcclUniqueId;

enum class OpKind { AllReduce, AllGather, ReduceScatter, Broadcast, Send, Recv };

struct StubOp {
  OpKind kind = OpKind::AllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  NcclType type = NcclType::Float32;
  NcclReduction reduction = NcclReduction::Sum;
  int peer = 0;  ///< or root
  NcclStream stream = nullptr;
  bool is_done = false;
};

/// What one call or one group of sends and receives issued; the next begins when all of it is done.
struct StubBatch {
  std::vector<StubOp> ops;
  bool is_swallowed = false;
};

struct StubSplit {
  int color = 0, key = 0;
  NcclComm* made = nullptr;
  NcclConfig config;
  std::string name;
};

/// The ranks of one communicator.
struct StubClique {
  std::vector<NcclComm> members;  ///< null: not there yet
  bool is_complete() const;
};

}  // namespace foresail::testing

/// NCCL's opaque type.
struct ncclComm {
  enum class State { Alive, Finalized, Aborted, Destroyed };
  State state = State::Alive;
  std::shared_ptr<foresail::testing::StubClique> clique;  // shared with the other members
  int rank = 0;
  int world_rank = 0;
  int polls_left = 0;
  int issued = 0;
  foresail::testing::NcclResult error = foresail::testing::NcclResult::Success;
  std::deque<foresail::testing::StubBatch> queue;
  std::unique_ptr<foresail::testing::StubSplit> split;
  std::set<void*> registered;
  std::string name;
};

namespace foresail::testing {

/// Everything, under one lock.
struct StubWorld {
  std::mutex mutex;
  NcclStubFault fault;
  NcclStubCounts counts;
  std::string misuse, told;
  std::vector<std::unique_ptr<ncclComm>> comms;                // never freed before the reset
  std::map<std::string, std::shared_ptr<StubClique>> forming;  // by ids; shared with members
  std::map<std::string, NcclStubConfig> configs;
  std::set<std::string> ids;
  std::set<void*> memory;
  int next_id = 0;

  NcclResult blame(const char* function, const char* what);
  /// Success if `comm` may be used by `function`.
  NcclResult check(const char* function, NcclComm comm, bool may_be_busy);
  NcclComm make(int rank, int world_rank, const NcclConfig* config);
  bool is_busy(NcclComm comm) const;
  /// Puts a batch into the queue, with the fault that is due.
  void issue(NcclComm comm, std::vector<StubOp> ops);
  /// Does all that can be done now.
  void advance(StubClique& clique);
  void finish_split(StubClique& parent);
};

/// Whether the heads of all queues are one collective, which is then done.
bool run_collective(const std::vector<StubOp*>& ops);
std::size_t bytes_of(NcclType type);
StubWorld& world();

}  // namespace foresail::testing
