#include "nccl_stub.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "stub_world.h"

using namespace foresail::testing;  // NOLINT: the symbols below are NCCL's, outside any namespace

namespace {

/// What this thread has issued since ncclGroupStart.
struct OpenGroup {
  int depth = 0;
  std::vector<std::pair<NcclComm, StubOp>> ops;
};
thread_local OpenGroup open_group;

NcclResult issue_op(const char* function, NcclComm comm, const StubOp& op) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check(function, comm, false);
  if (state != NcclResult::Success) return state;
  if (open_group.depth > 0) {
    open_group.ops.emplace_back(comm, op);
    return NcclResult::Success;
  }
  all.issue(comm, {op});
  return all.is_busy(comm) ? NcclResult::InProgress : NcclResult::Success;
}

NcclResult join(const char* function, NcclComm* comm, const std::string& ids, int ranks, int rank,
                const NcclConfig* config) {
  StubWorld& all = world();
  ++all.counts.inits;
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0) {
    return all.blame(function, "not a configuration of a non-blocking communicator");
  }
  if (rank == all.fault.refused_init_rank) return NcclResult::SystemError;
  for (std::size_t at = 0; at < ids.size(); at += sizeof(NcclUniqueId)) {
    if (!all.ids.contains(ids.substr(at, sizeof(NcclUniqueId)))) return NcclResult::InvalidArgument;
  }
  auto& clique = all.forming[ids];
  if (clique == nullptr) {
    clique = std::make_shared<StubClique>();
    clique->members.resize(static_cast<std::size_t>(ranks));
  }
  auto& place = clique->members.at(static_cast<std::size_t>(rank));
  if (place != nullptr) return all.blame(function, "two ranks are one");
  NcclComm made = all.make(rank, rank, config);
  made->clique = clique;
  place = made;
  *comm = made;
  return NcclResult::InProgress;
}

std::string text_of(const NcclUniqueId* ids, int count) {
  return {reinterpret_cast<const char*>(ids),
          sizeof(NcclUniqueId) * static_cast<std::size_t>(count)};
}

}  // namespace

extern "C" {

void nccl_stub_reset(const NcclStubFault* fault) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  all.fault = *fault;
  all.counts = {};
  all.misuse.clear();
  all.comms.clear();
  all.forming.clear();
  all.configs.clear();
  all.memory.clear();
}

void nccl_stub_counts(NcclStubCounts* counts) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  *counts = all.counts;
}

const char* nccl_stub_misuse() {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  all.told = all.misuse;
  return all.told.c_str();
}

bool nccl_stub_config(const char* name, NcclStubConfig* config) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.configs.find(name);
  if (found == all.configs.end()) return false;
  *config = found->second;
  return true;
}

bool nccl_stub_stream_is_done(void* stream) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  for (const auto& comm : all.comms) {
    if (comm->state != ncclComm::State::Alive) continue;
    for (const StubBatch& batch : comm->queue) {
      for (const StubOp& op : batch.ops) {
        if (op.stream == stream) return false;
      }
    }
  }
  return true;
}

NcclResult ncclGetVersion(int* version) {
  *version = 22809;
  return NcclResult::Success;
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case NcclResult::Success:
      return "no error";
    case NcclResult::SystemError:
      return "unhandled system error";
    case NcclResult::InvalidArgument:
      return "invalid argument";
    case NcclResult::InvalidUsage:
      return "invalid usage";
    case NcclResult::RemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::InProgress:
      return "NCCL operation in progress";
    default:
      return "another error";
  }
}

const char* ncclGetLastError(NcclComm) {
  return "the stub was told to";
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  std::memset(id->internal, 0, sizeof(id->internal));
  const int number = all.next_id++;
  std::memcpy(id->internal, &number, sizeof(number));
  std::memcpy(id->internal + sizeof(number), "stub", 4);
  all.ids.insert(text_of(id, 1));
  ++all.counts.ids;
  return NcclResult::Success;
}

NcclResult ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  return join("ncclCommInitRankConfig", comm, text_of(&id, 1), ranks, rank, config);
}

NcclResult ncclCommInitRankScalable(NcclComm* comm, int ranks, int rank, int count,
                                    NcclUniqueId* ids, NcclConfig* config) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  all.counts.ids_of_init = std::max(all.counts.ids_of_init, count);
  return join("ncclCommInitRankScalable", comm, text_of(ids, count), ranks, rank, config);
}

NcclResult ncclCommSplit(NcclComm comm, int color, int key, NcclComm* made, NcclConfig* config) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommSplit", comm, false);
  if (state != NcclResult::Success) return state;
  if (!comm->queue.empty()) return all.blame("ncclCommSplit", "operations are outstanding");
  auto split = std::make_unique<StubSplit>();
  split->color = color;
  split->key = key;
  split->made = made;
  if (config != nullptr) split->config = *config;
  if (config != nullptr && config->comm_name != nullptr) split->name = config->comm_name;
  comm->split = std::move(split);
  all.finish_split(*comm->clique);
  return NcclResult::InProgress;
}

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* error) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommGetAsyncError", comm, true);
  if (state != NcclResult::Success) return state;
  *error = comm->error;
  if (comm->error != NcclResult::Success) return NcclResult::Success;
  if (all.is_busy(comm)) *error = NcclResult::InProgress;
  if (comm->polls_left > 0 && comm->clique->is_complete()) --comm->polls_left;
  return NcclResult::Success;
}

NcclResult ncclCommFinalize(NcclComm comm) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommFinalize", comm, false);
  if (state != NcclResult::Success) return state;
  if (comm->state == ncclComm::State::Finalized) return all.blame("ncclCommFinalize", "twice");
  if (!comm->registered.empty()) all.blame("ncclCommFinalize", "buffers are still registered");
  comm->state = ncclComm::State::Finalized;
  comm->polls_left = all.fault.call_polls;
  ++all.counts.finalizes;
  return NcclResult::InProgress;
}

NcclResult ncclCommDestroy(NcclComm comm) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommDestroy", comm, false);
  if (state != NcclResult::Success) return state;
  if (comm->state != ncclComm::State::Finalized) {
    return all.blame("ncclCommDestroy", "not finalized");
  }
  comm->state = ncclComm::State::Destroyed;
  ++all.counts.destroys;
  --all.counts.live;
  return NcclResult::Success;
}

NcclResult ncclCommAbort(NcclComm comm) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommAbort", comm, true);
  if (state != NcclResult::Success) return state;
  comm->state = ncclComm::State::Aborted;
  comm->queue.clear();
  comm->split = nullptr;
  all.counts.registered -= static_cast<int>(comm->registered.size());
  ++all.counts.aborts;
  --all.counts.live;
  return NcclResult::Success;
}

NcclResult ncclCommCount(NcclComm comm, int* ranks) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommCount", comm, false);
  if (state == NcclResult::Success) *ranks = static_cast<int>(comm->clique->members.size());
  return state;
}

NcclResult ncclCommUserRank(NcclComm comm, int* rank) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommUserRank", comm, false);
  if (state == NcclResult::Success) *rank = comm->rank;
  return state;
}

NcclResult ncclGroupStart() {
  ++open_group.depth;
  return NcclResult::Success;
}

NcclResult ncclGroupEnd() {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  if (open_group.depth == 0) return all.blame("ncclGroupEnd", "no group is open");
  if (--open_group.depth > 0) return NcclResult::Success;
  std::map<NcclComm, std::vector<StubOp>> by_comm;
  for (auto& [comm, op] : open_group.ops) by_comm[comm].push_back(op);
  open_group.ops.clear();
  NcclResult result = NcclResult::Success;
  for (auto& [comm, ops] : by_comm) {
    all.issue(comm, std::move(ops));
    if (all.is_busy(comm)) result = NcclResult::InProgress;
  }
  return result;
}

NcclResult ncclAllReduce(const void* input, void* output, std::size_t count, NcclType type,
                         NcclReduction reduction, NcclComm comm, NcclStream stream) {
  return issue_op("ncclAllReduce", comm,
                  {OpKind::AllReduce, input, output, count, type, reduction, 0, stream});
}

NcclResult ncclAllGather(const void* input, void* output, std::size_t count, NcclType type,
                         NcclComm comm, NcclStream stream) {
  return issue_op("ncclAllGather", comm,
                  {OpKind::AllGather, input, output, count, type, NcclReduction::Sum, 0, stream});
}

NcclResult ncclReduceScatter(const void* input, void* output, std::size_t count, NcclType type,
                             NcclReduction reduction, NcclComm comm, NcclStream stream) {
  return issue_op("ncclReduceScatter", comm,
                  {OpKind::ReduceScatter, input, output, count, type, reduction, 0, stream});
}

NcclResult ncclBroadcast(const void* input, void* output, std::size_t count, NcclType type,
                         int root, NcclComm comm, NcclStream stream) {
  return issue_op(
      "ncclBroadcast", comm,
      {OpKind::Broadcast, input, output, count, type, NcclReduction::Sum, root, stream});
}

NcclResult ncclSend(const void* input, std::size_t count, NcclType type, int peer, NcclComm comm,
                    NcclStream stream) {
  return issue_op("ncclSend", comm,
                  {OpKind::Send, input, nullptr, count, type, NcclReduction::Sum, peer, stream});
}

NcclResult ncclRecv(void* output, std::size_t count, NcclType type, int peer, NcclComm comm,
                    NcclStream stream) {
  return issue_op("ncclRecv", comm,
                  {OpKind::Recv, nullptr, output, count, type, NcclReduction::Sum, peer, stream});
}

NcclResult ncclMemAlloc(void** memory, std::size_t bytes) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  *memory = std::malloc(bytes);
  all.memory.insert(*memory);
  ++all.counts.memory_blocks;
  return NcclResult::Success;
}

NcclResult ncclMemFree(void* memory) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  if (all.memory.erase(memory) == 0) return all.blame("ncclMemFree", "not allocated, or freed");
  std::free(memory);
  --all.counts.memory_blocks;
  return NcclResult::Success;
}

NcclResult ncclCommRegister(NcclComm comm, void* memory, std::size_t, void** handle) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommRegister", comm, false);
  if (state != NcclResult::Success) return state;
  if (!comm->registered.insert(memory).second) return all.blame("ncclCommRegister", "twice");
  ++all.counts.registered;
  ++all.counts.registrations;
  *handle = memory;
  return NcclResult::Success;
}

NcclResult ncclCommDeregister(NcclComm comm, void* handle) {
  StubWorld& all = world();
  const std::scoped_lock lock(all.mutex);
  const NcclResult state = all.check("ncclCommDeregister", comm, false);
  if (state != NcclResult::Success) return state;
  if (comm->registered.erase(handle) == 0) {
    return all.blame("ncclCommDeregister", "not registered, or deregistered");
  }
  --all.counts.registered;
  return NcclResult::Success;
}

}  // extern "C"
