#include "programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace foresail::program {
namespace {

constexpr CommunicatorId kDp{0}, kPp{1}, kWorld{3};
constexpr KernelListId kPassKernels{0}, kOptimizerKernels{1};
constexpr Bytes kMessage{4096};
constexpr double kForwardTime = 1, kBackwardTime = 2, kMessageTime = 0.1;

using PassKey = std::tuple<int, int, int>;  // global stage, microbatch, 0 forward or 1 backward

bool is_forward(Pass pass) {
  return pass == Pass::Forward;
}

/// An op that is to stand at `time`, together with the pass it belongs to.
struct Item {
  double time = 0;
  int rank = 0;  // orders items of one time
  Op op;
  PassKey pass;
};

/// End times of all passes if messages take kMessageTime.
class Timing {
 public:
  Timing(const Shape& shape, const std::vector<std::vector<PassSlot>>& order) : shape_(shape) {
    std::vector<std::size_t> next(order.size(), 0);
    std::vector<double> free(order.size(), 0);
    for (bool is_moving = true; is_moving;) {
      is_moving = false;
      for (std::size_t stage = 0; stage < order.size(); ++stage) {
        while (next[stage] < order[stage].size()) {
          const PassSlot& slot = order[stage][next[stage]];
          const double ready = input_time(slot, static_cast<int>(stage));
          if (ready < 0) break;
          const double duration = is_forward(slot.pass) ? kForwardTime : kBackwardTime;
          free[stage] = std::max(free[stage], ready) + duration;
          end_[key(slot, static_cast<int>(stage))] = free[stage];
          ++next[stage];
          is_moving = true;
        }
      }
    }
  }

  PassKey key(const PassSlot& slot, int stage) const {
    return {slot.chunk * shape_.stages + stage, slot.microbatch, is_forward(slot.pass) ? 0 : 1};
  }
  double end(const PassKey& pass) const { return end_.at(pass); }
  int last() const { return shape_.chunks * shape_.stages - 1; }

 private:
  /// When the input is there: 0 at the ends of the pipeline, negative if not yet known.
  double input_time(const PassSlot& slot, int stage) const {
    PassKey source = key(slot, stage);
    int& global = std::get<0>(source);
    const int before = is_forward(slot.pass) ? global - 1 : global + 1;
    if (before < 0) return 0;
    if (before > last()) {
      source = {global, slot.microbatch, 0};
    } else {
      global = before;
    }
    const auto found = end_.find(source);
    return found == end_.end() ? -1 : found->second + kMessageTime;
  }

  Shape shape_;
  std::map<PassKey, double> end_;
};

Program make_frame(const Shape& shape) {
  Program program;
  program.grid = RankGrid({1, 1, 1, shape.replicas, shape.stages},
                          {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp, Axis::Pp});
  program.chunks = shape.chunks;
  program.microbatches = shape.microbatches;
  program.communicators = {{"dp", {Axis::Dp}, {}},
                           {"pp", {Axis::Pp}, {}},
                           {"embedding", {Axis::Pp}, {0, shape.stages - 1}},
                           {"world", {Axis::Dp, Axis::Pp}, {}}};
  Kernel gemm;
  gemm.kind = KernelKind::Gemm;
  gemm.name = "fc1";
  gemm.m = gemm.n = gemm.k = 64;
  gemm.flops = Flops(2.0 * 64 * 64 * 64);
  gemm.bytes = Bytes(3 * 64 * 64 * 2);
  Kernel gather;
  gather.kind = KernelKind::Collective;
  gather.name = "tp.gather_fc1";
  gather.collective = Collective::AllGather;
  gather.lane = Lane::Tp;
  gather.bytes = kMessage;
  gather.after = {0};
  Kernel adam;
  adam.kind = KernelKind::Optimizer;
  adam.name = "adam";
  adam.dtype = DType::Fp32;
  adam.bytes = Bytes(28000);
  program.kernel_lists = {{"pass", {gemm, gather}}, {"optimizer", {adam}}};
  program.stages.resize(static_cast<std::size_t>(shape.stages));
  const MemoryNeed need{Bytes(100), Bytes(200), Bytes(300), Bytes(400), Bytes(500)};
  program.memory.assign(program.stages.size(), need);
  program.memory_limit = Bytes(1500);
  return program;
}

Op message(OpKind kind, const PassKey& pass, const Shape& shape) {
  const auto [global, microbatch, direction] = pass;
  Op op;
  op.kind = kind;
  op.lane = Lane::Pp;
  op.chunk = global / shape.stages;
  op.microbatch = microbatch;
  op.payload = direction == 0 ? Payload::Activation : Payload::Gradient;
  const int step = (direction == 0) == (kind == OpKind::Send) ? 1 : shape.stages - 1;
  op.peer_stage = (global % shape.stages + step) % shape.stages;
  op.communicator = kPp;
  op.bytes = kMessage;
  op.dtype = DType::Bf16;
  return op;
}

/// Passes and messages of one stage, in the order of the clock.
std::vector<Item> items_of(const Shape& shape, const std::vector<PassSlot>& order, int stage,
                           const Timing& timing) {
  std::vector<Item> items;
  for (const PassSlot& slot : order) {
    const PassKey pass = timing.key(slot, stage);
    const auto [global, microbatch, direction] = pass;
    Op compute;
    compute.pass = slot.pass;
    compute.chunk = slot.chunk;
    compute.microbatch = microbatch;
    compute.kernels = kPassKernels;
    const double end = timing.end(pass);
    const double start = end - (direction == 0 ? kForwardTime : kBackwardTime);
    const PassKey source{direction == 0 ? global - 1 : global + 1, microbatch, direction};
    const bool has_peers = shape.stages > 1;
    if (has_peers && std::get<0>(source) >= 0 && std::get<0>(source) <= timing.last()) {
      const int rank = std::get<0>(source) * 2 + direction;
      items.push_back({timing.end(source), rank, message(OpKind::Recv, pass, shape), pass});
    }
    items.push_back({start, -1, compute, pass});
    if (has_peers && (direction == 0 ? global < timing.last() : global > 0)) {
      items.push_back({end, global * 2 + direction, message(OpKind::Send, pass, shape), pass});
    }
  }
  std::ranges::stable_sort(items, {},
                           [](const Item& item) { return std::tuple(item.time, item.rank); });
  return items;
}

/// Appends the items with their dependencies: a pass waits for its message, a send for its pass.
void append_items(StageProgram& stage, const std::vector<Item>& items) {
  std::map<PassKey, OpId> compute, received;
  for (const Item& item : items) {
    Op op = item.op;
    if (op.kind == OpKind::Compute && received.contains(item.pass)) {
      op.after = {received[item.pass]};
    }
    if (op.kind == OpKind::Send) op.after = {compute.at(item.pass)};
    const OpId id = stage.ops.push_back(op);
    if (op.kind == OpKind::Compute) compute[item.pass] = id;
    if (op.kind == OpKind::Recv) received[item.pass] = id;
  }
}

void append_end_of_step(const Shape& shape, StageProgram& stage) {
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    Op sync;
    sync.kind = OpKind::Collective;
    sync.lane = Lane::Dp;
    sync.chunk = chunk;
    sync.payload = Payload::ChunkGradients;
    sync.collective = Collective::ReduceScatter;
    sync.communicator = kDp;
    sync.bytes = Bytes(8192);
    for (std::uint32_t i = 0; i < stage.ops.size(); ++i) {
      const Op& op = stage.ops[OpId{i}];
      if (op.kind == OpKind::Compute && op.pass == Pass::Backward && op.chunk == chunk) {
        sync.after = {OpId{i}};
      }
    }
    stage.ops.push_back(sync);
  }
  Op scalars;
  scalars.kind = OpKind::Collective;
  scalars.lane = Lane::Dp;
  scalars.payload = Payload::StepScalars;
  scalars.communicator = kWorld;
  scalars.bytes = Bytes(8);
  const OpId norm = stage.ops.push_back(scalars);
  Op optimizer;
  optimizer.pass = Pass::Optimizer;
  optimizer.kernels = kOptimizerKernels;
  optimizer.after = {norm};
  stage.ops.push_back(optimizer);
}

/// Recv, compute, send of each pass in one lane.
std::vector<Item> in_one_lane(const std::vector<Item>& items) {
  std::vector<Item> ordered;
  for (const Item& compute : items) {
    if (compute.op.kind != OpKind::Compute) continue;
    for (const OpKind kind : {OpKind::Recv, OpKind::Compute, OpKind::Send}) {
      for (const Item& item : items) {
        if (item.pass == compute.pass && item.op.kind == kind) ordered.push_back(item);
      }
    }
  }
  for (Item& item : ordered) item.op.lane = Lane::Compute;
  return ordered;
}

}  // namespace

std::vector<PassSlot> one_forward_one_backward(const Shape& shape, int stage) {
  const int warm_up = std::min(shape.stages - stage - 1, shape.microbatches);
  std::vector<PassSlot> order;
  for (int i = 0; i < warm_up; ++i) order.push_back({Pass::Forward, i, 0});
  for (int i = 0; i < shape.microbatches; ++i) {
    if (i + warm_up < shape.microbatches) order.push_back({Pass::Forward, i + warm_up, 0});
    order.push_back({Pass::Backward, i, 0});
  }
  return order;
}

std::vector<PassSlot> gpipe(const Shape& shape) {
  std::vector<PassSlot> order;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    for (int i = 0; i < shape.microbatches; ++i) order.push_back({Pass::Forward, i, chunk});
  }
  for (int chunk = shape.chunks - 1; chunk >= 0; --chunk) {
    for (int i = 0; i < shape.microbatches; ++i) order.push_back({Pass::Backward, i, chunk});
  }
  return order;
}

Program make_program(const Shape& shape, const std::vector<std::vector<PassSlot>>& order,
                     Queueing queueing) {
  Program program = make_frame(shape);
  const Timing timing(shape, order);
  for (int stage = 0; stage < shape.stages; ++stage) {
    StageProgram& own = program.stages[static_cast<std::size_t>(stage)];
    Op load;
    load.kind = OpKind::Host;
    load.lane = Lane::Host;
    load.host = HostWork::LoadBatch;
    own.ops.push_back(load);
    const std::vector<Item> items =
        items_of(shape, order[static_cast<std::size_t>(stage)], stage, timing);
    append_items(own, queueing == Queueing::Blocking ? in_one_lane(items) : items);
    append_end_of_step(shape, own);
  }
  return program;
}

Program make_1f1b(const Shape& shape, Queueing queueing) {
  std::vector<std::vector<PassSlot>> order;
  for (int stage = 0; stage < shape.stages; ++stage) {
    order.push_back(one_forward_one_backward(shape, stage));
  }
  return make_program(shape, order, queueing);
}

OpId find_op(const Program& program, int stage, const std::string& description) {
  const auto& ops = program.stages[static_cast<std::size_t>(stage)].ops;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (describe(ops[OpId{i}]) == description) return OpId{i};
  }
  ADD_FAILURE() << "stage " << stage << " has no op \"" << description << '"';
  return OpId{0};
}

Program without(Program program, int stage, const std::string& description) {
  const OpId gone = find_op(program, stage, description);
  auto& ops = program.stages[static_cast<std::size_t>(stage)].ops;
  IdVector<OpId, Op> kept;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (OpId{i} == gone) continue;
    Op op = ops[OpId{i}];
    std::erase(op.after, gone);
    for (OpId& id : op.after) id.value -= id > gone ? 1u : 0u;
    kept.push_back(std::move(op));
  }
  ops = kept;
  return program;
}

Op& op_at(Program& program, int stage, const std::string& description) {
  const OpId id = find_op(program, stage, description);
  return program.stages[static_cast<std::size_t>(stage)].ops[id];
}

}  // namespace foresail::program
