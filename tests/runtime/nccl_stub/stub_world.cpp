#include "stub_world.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace foresail::testing {
namespace {

float widen(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

std::uint16_t narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
void reduce_as(const std::vector<const char*>& inputs, char* output, std::size_t count,
               NcclReduction reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    T total{};
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      T value{};
      std::memcpy(&value, inputs[rank] + i * sizeof(T), sizeof(T));
      if (rank == 0) {
        total = value;
      } else if (reduction == NcclReduction::Max) {
        total = std::max(total, value);
      } else {
        total = static_cast<T>(total + value);
      }
    }
    std::memcpy(output + i * sizeof(T), &total, sizeof(T));
  }
}

void reduce_bf16(const std::vector<const char*>& inputs, char* output, std::size_t count,
                 NcclReduction reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    float total = 0;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      std::uint16_t half = 0;
      std::memcpy(&half, inputs[rank] + 2 * i, 2);
      const float value = widen(half);
      const bool takes_max = reduction == NcclReduction::Max;
      total = rank == 0 ? value : takes_max ? std::max(total, value) : total + value;
    }
    const std::uint16_t half = narrow(total);
    std::memcpy(output + 2 * i, &half, 2);
  }
}

/// In the order of ranks.
std::vector<char> reduced(const std::vector<const char*>& inputs, std::size_t count, NcclType type,
                          NcclReduction reduction) {
  std::vector<char> output(count * bytes_of(type));
  switch (type) {
    case NcclType::Float32:
      reduce_as<float>(inputs, output.data(), count, reduction);
      break;
    case NcclType::Float64:
      reduce_as<double>(inputs, output.data(), count, reduction);
      break;
    case NcclType::Int64:
      reduce_as<std::int64_t>(inputs, output.data(), count, reduction);
      break;
    case NcclType::Int32:
      reduce_as<std::int32_t>(inputs, output.data(), count, reduction);
      break;
    case NcclType::Int8:
      reduce_as<std::int8_t>(inputs, output.data(), count, reduction);
      break;
    case NcclType::Uint8:
      reduce_as<std::uint8_t>(inputs, output.data(), count, reduction);
      break;
    case NcclType::Bfloat16:
      reduce_bf16(inputs, output.data(), count, reduction);
      break;
    case NcclType::Float16:
      world().blame("reduction", "fp16 is not in the stub");
      break;
  }
  return output;
}

bool is_message(const StubOp& op) {
  return op.kind == OpKind::Send || op.kind == OpKind::Recv;
}

bool is_same(const StubOp& a, const StubOp& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.reduction == b.reduction &&
         a.peer == b.peer;
}

StubBatch* head(NcclComm comm) {
  if (comm == nullptr || comm->queue.empty() || comm->queue.front().is_swallowed) return nullptr;
  return &comm->queue.front();
}

/// The first open op of `kind` with `peer` in the batch.
StubOp* find(StubBatch* batch, OpKind kind, int peer) {
  if (batch == nullptr) return nullptr;
  for (StubOp& op : batch->ops) {
    if (!op.is_done && op.kind == kind && op.peer == peer) return &op;
  }
  return nullptr;
}

bool deliver_messages(StubClique& clique) {
  bool has_moved = false;
  for (NcclComm from : clique.members) {
    for (NcclComm to : clique.members) {
      StubOp* send = find(head(from), OpKind::Send, to->rank);
      StubOp* recv = find(head(to), OpKind::Recv, from->rank);
      if (send == nullptr || recv == nullptr || send->count != recv->count) continue;
      std::memmove(recv->output, send->input, send->count * bytes_of(send->type));
      send->is_done = true;
      recv->is_done = true;
      has_moved = true;
    }
  }
  return has_moved;
}

bool reduce_together(StubClique& clique) {
  std::vector<StubOp*> ops;
  for (NcclComm member : clique.members) {
    StubBatch* batch = head(member);
    if (batch == nullptr || batch->ops.size() != 1) return false;
    if (batch->ops.front().is_done || is_message(batch->ops.front())) return false;
    ops.push_back(&batch->ops.front());
  }
  return run_collective(ops);
}

bool drop_done(StubClique& clique) {
  bool has_dropped = false;
  for (NcclComm member : clique.members) {
    StubBatch* batch = head(member);
    if (batch == nullptr || !std::ranges::all_of(batch->ops, &StubOp::is_done)) continue;
    member->queue.pop_front();
    has_dropped = true;
  }
  return has_dropped;
}

NcclStubConfig recorded(const NcclConfig& config) {
  NcclStubConfig record;
  record.blocking = config.blocking;
  record.cga_cluster_size = config.cga_cluster_size;
  record.min_ctas = config.min_ctas;
  record.max_ctas = config.max_ctas;
  record.traffic_class = config.traffic_class;
  if (config.net_name != nullptr) {
    std::strncpy(record.net_name, config.net_name, sizeof(record.net_name) - 1);
  }
  return record;
}

}  // namespace

StubWorld& world() {
  static StubWorld only;
  return only;
}

std::size_t bytes_of(NcclType type) {
  switch (type) {
    case NcclType::Int8:
    case NcclType::Uint8:
      return 1;
    case NcclType::Float16:
    case NcclType::Bfloat16:
      return 2;
    case NcclType::Int32:
    case NcclType::Float32:
      return 4;
    case NcclType::Int64:
    case NcclType::Float64:
      return 8;
  }
  return 0;
}

bool run_collective(const std::vector<StubOp*>& ops) {
  const StubOp& first = *ops.front();
  for (const StubOp* op : ops) {
    if (!is_same(*op, first)) return false;  // as with NCCL: nobody gets done
  }
  std::vector<const char*> inputs;
  for (const StubOp* op : ops) inputs.push_back(static_cast<const char*>(op->input));
  const std::size_t part = first.count * bytes_of(first.type);
  std::vector<char> result;
  switch (first.kind) {
    case OpKind::AllReduce:
      result = reduced(inputs, first.count, first.type, first.reduction);
      break;
    case OpKind::ReduceScatter:
      result = reduced(inputs, first.count * ops.size(), first.type, first.reduction);
      break;
    case OpKind::AllGather:
      for (const char* input : inputs) result.insert(result.end(), input, input + part);
      break;
    default: {
      const char* root = inputs[static_cast<std::size_t>(first.peer)];
      result.assign(root, root + part);
    }
  }
  for (std::size_t rank = 0; rank < ops.size(); ++rank) {
    const bool is_scattered = first.kind == OpKind::ReduceScatter;
    const char* own = result.data() + (is_scattered ? rank * part : 0);
    std::memcpy(ops[rank]->output, own, is_scattered ? part : result.size());
    ops[rank]->is_done = true;
  }
  return true;
}

bool StubClique::is_complete() const {
  return std::ranges::find(members, nullptr) == members.end();
}

NcclResult StubWorld::blame(const char* function, const char* what) {
  misuse += std::string(function) + ": " + what + "\n";
  return NcclResult::InvalidUsage;
}

bool StubWorld::is_busy(NcclComm comm) const {
  return !comm->clique->is_complete() || comm->polls_left > 0 || comm->split != nullptr;
}

NcclResult StubWorld::check(const char* function, NcclComm comm, bool may_be_busy) {
  const auto found = std::ranges::find(comms, comm, [](const auto& each) { return each.get(); });
  if (found == comms.end()) return blame(function, "not a communicator");
  if (comm->state == ncclComm::State::Aborted) return blame(function, "use after abort");
  if (comm->state == ncclComm::State::Destroyed) return blame(function, "use after destroy");
  if (comm->error != NcclResult::Success && !may_be_busy) return comm->error;
  if (!may_be_busy && is_busy(comm)) return blame(function, "call while in progress");
  return NcclResult::Success;
}

NcclComm StubWorld::make(int rank, int world_rank, const NcclConfig* config) {
  comms.push_back(std::make_unique<ncclComm>());
  NcclComm made = comms.back().get();
  made->rank = rank;
  made->world_rank = world_rank;
  made->polls_left = fault.init_polls;
  if (config != nullptr && config->comm_name != nullptr) made->name = config->comm_name;
  if (config != nullptr) configs[made->name] = recorded(*config);
  ++counts.live;
  return made;
}

void StubWorld::issue(NcclComm comm, std::vector<StubOp> ops) {
  const int number = comm->issued++;
  StubBatch batch{.ops = std::move(ops)};
  batch.is_swallowed = comm->world_rank == fault.swallow_rank && number == fault.swallow_after;
  comm->queue.push_back(std::move(batch));
  comm->polls_left = fault.call_polls;
  if (comm->world_rank == fault.error_rank && number >= fault.error_after) {
    for (NcclComm member : comm->clique->members) member->error = NcclResult::RemoteError;
    comm->error = NcclResult::SystemError;
    return;
  }
  advance(*comm->clique);
}

void StubWorld::advance(StubClique& clique) {
  if (!clique.is_complete()) return;
  for (NcclComm member : clique.members) {
    if (member->error != NcclResult::Success) return;
    // Who has left after all its operations were done keeps nobody from theirs.
    const bool has_left = member->state != ncclComm::State::Aborted && member->queue.empty();
    if (member->state != ncclComm::State::Alive && !has_left) return;
  }
  while (deliver_messages(clique) || reduce_together(clique) || drop_done(clique)) {
  }
}

void StubWorld::finish_split(StubClique& parent) {
  for (NcclComm member : parent.members) {
    if (member->split == nullptr) return;
  }
  std::map<int, std::vector<NcclComm>> by_color;
  for (NcclComm member : parent.members) by_color[member->split->color].push_back(member);
  for (auto& [color, members] : by_color) {
    if (color == runtime::kNcclNoColor) continue;
    std::ranges::stable_sort(members, {}, [](NcclComm each) { return each->split->key; });
    auto clique = std::make_shared<StubClique>();
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      StubSplit& split = *members[rank]->split;
      split.config.comm_name = split.name.c_str();
      NcclComm made = make(static_cast<int>(rank), members[rank]->world_rank, &split.config);
      made->clique = clique;
      clique->members.push_back(made);
      __atomic_store_n(split.made, made, __ATOMIC_RELEASE);
      ++counts.splits;
    }
  }
  for (NcclComm member : parent.members) {
    member->split = nullptr;
    member->polls_left = fault.init_polls;
  }
}

}  // namespace foresail::testing
