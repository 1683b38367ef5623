#include "stage_lowering.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "foresail/base/error.h"
#include "gradient_sync.h"

namespace foresail::planner {
namespace {

using program::CommunicatorId;
using program::HostWork;
using program::Op;
using program::OpId;
using program::OpKind;
using program::Pass;
using program::Payload;

class StageLowering {
 public:
  explicit StageLowering(const StageInput& input)
      : in_(input),
        graph_(input.schedule),
        order_(input.schedule.order[static_cast<std::size_t>(input.stage)]),
        sync_(input, ops_) {
    receive_.resize(order_.size());
    send_.resize(order_.size());
  }

  program::StageProgram finish() {
    load_batch();
    sync_.begin();
    for (const Message& message : in_.messages) {
      if (message.from.stage == in_.stage) send(message);
      if (message.to.stage == in_.stage) receive(message);
    }
    compute_until(order_.size());
    sync_.finish(compute_);
    return {std::move(ops_)};
  }

 private:
  /// The first stage reads inputs, the last one targets; the whole step's batch at once.
  void load_batch() {
    if (in_.stage != 0 && in_.stage != in_.plan.layout.pp - 1) return;
    Op op;
    op.kind = OpKind::Host;
    op.lane = Lane::Host;
    op.host = HostWork::LoadBatch;
    loaded_ = ops_.push_back(op);
  }

  void send(const Message& message) {
    const std::size_t at = graph_.position(message.from);
    compute_until(at + 1);
    Op op = transfer(OpKind::Send, message.from.pass, message.to.stage);
    op.after = {compute_[at]};
    send_[at] = ops_.push_back(op);
  }

  void receive(const Message& message) {
    Op op = transfer(OpKind::Recv, message.to.pass, message.from.stage);
    receive_[graph_.position(message.to)] = ops_.push_back(op);
  }

  Op transfer(OpKind kind, const SchedulePass& pass, int peer_stage) const {
    Op op;
    op.kind = kind;
    op.lane = Lane::Pp;
    op.chunk = pass.chunk;
    op.microbatch = pass.microbatch;
    op.payload = pass.pass == Pass::Forward ? Payload::Activation : Payload::Gradient;
    op.peer_stage = peer_stage;
    op.communicator = *in_.communicators.find("pp");
    op.bytes = message_bytes(in_.plan);
    op.dtype = storage_dtype(in_.plan.training);
    return op;
  }

  void compute_until(std::size_t end) {
    while (compute_.size() < end) compute(compute_.size());
  }

  void compute(std::size_t at) {
    const SchedulePass& pass = order_[at];
    const auto chunk = static_cast<std::size_t>(pass.chunk);
    const bool is_forward = pass.pass == Pass::Forward;
    Op op;
    op.pass = pass.pass;
    op.chunk = pass.chunk;
    op.microbatch = pass.microbatch;
    op.kernels = (is_forward ? in_.kernels.forward : in_.kernels.backward)[chunk];
    const auto input = graph_.input({in_.stage, pass});
    if (input && input->stage != in_.stage) {
      FORESAIL_EXPECT(receive_[at].has_value());
      op.after.push_back(*receive_[at]);
    }
    // Without overlap a stage does nothing else until its last output is on its way.
    const bool waits_for_send = !in_.plan.layout.overlap.pp && at > 0;
    if (waits_for_send && send_[at - 1]) op.after.push_back(*send_[at - 1]);
    if (loaded_ && is_forward && needs_batch(pass.chunk)) {
      op.after.push_back(*std::exchange(loaded_, std::nullopt));
    }
    for (const OpId id : sync_.before(at, compute_)) op.after.push_back(id);
    compute_.push_back(ops_.push_back(op));
    sync_.after(at, compute_);
  }

  /// The first pass that reads tokens waits for the batch, and all others stand behind it.
  bool needs_batch(int chunk) const {
    const StagePart part = stage_part(in_.plan, in_.stage, chunk);
    return part.has_embedding || part.has_head;
  }

  const StageInput& in_;
  PassGraph graph_;
  const std::vector<SchedulePass>& order_;
  IdVector<OpId, Op> ops_;
  GradientSync sync_;
  std::vector<OpId> compute_;  // by position in order_
  std::vector<std::optional<OpId>> receive_, send_;
  std::optional<OpId> loaded_;
};

}  // namespace

program::StageProgram lower_stage(const StageInput& input) {
  return StageLowering(input).finish();
}

Communicators::Communicators(const Plan& plan) {
  using program::Axis;
  const program::RankGrid grid = plan.layout.grid();
  const int stages = plan.layout.pp;
  const auto add = [&](std::string name, program::AxisSet axes, std::vector<int> only) {
    std::int64_t members = 1;
    for (int axis = 0; axis < program::kAxisCount; ++axis) {
      const auto at = static_cast<Axis>(axis);
      if (axes.has(at)) members *= grid.size(at);
    }
    if (members > 1) list_.push_back({std::move(name), axes, std::move(only)});
  };
  add("tp", {Axis::Tp}, {});
  add("cp", {Axis::Cp}, {});
  add("dp", {Axis::Dp, Axis::Cp}, {});
  add("pp", {Axis::Pp}, {});
  if (stages > 1 && has_embedding_bucket(plan)) add("embedding", {Axis::Pp}, {0, stages - 1});
  add("world", {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp, Axis::Pp}, {});
}

std::optional<program::CommunicatorId> Communicators::find(std::string_view name) const {
  for (std::size_t at = 0; at < list_.size(); ++at) {
    if (list_[at].name == name) return program::CommunicatorId{static_cast<std::uint32_t>(at)};
  }
  return std::nullopt;
}

}  // namespace foresail::planner
