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
  /// Chunks with the embedding read inputs, chunks with the head targets; the whole step's batch at
  /// once.
  void load_batch() {
    bool is_reader = false;
    for (int chunk = 0; chunk < in_.schedule.chunks; ++chunk) {
      is_reader = is_reader || needs_batch(chunk);
    }
    if (!is_reader) return;
    Op op;
    op.kind = OpKind::Host;
    op.lane = Lane::Host;
    op.host = HostWork::LoadBatch;
    loaded_ = ops_.push_back(op);
  }

  void send(const Message& message) {
    const std::size_t at = graph_.position(message.from);
    const std::size_t last = order_[at].is_joined ? at + 1 : at;
    compute_until(last + 1);
    Op op = transfer(OpKind::Send, message.from.pass, message.to.stage);
    op.after = {compute_[last]};
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
    op.bytes = message_bytes(in_.plan, op.payload);
    op.dtype = storage_dtype(in_.plan.training);
    return op;
  }

  void compute_until(std::size_t end) {
    while (compute_.size() < end) compute(compute_.size());
  }

  void compute(std::size_t at) {
    const SchedulePass& pass = order_[at];
    const auto chunk = static_cast<std::size_t>(pass.chunk);
    Op op;
    op.pass = pass.pass;
    op.chunk = pass.chunk;
    op.microbatch = pass.microbatch;
    op.kernels = kernels_of(pass.pass)[chunk];
    await_input(at, op);
    if (pass.is_joined) await_input(at + 1, op);
    if (!in_.plan.layout.overlap.pp) await_sends(at, op);
    if (loaded_ && pass.pass == Pass::Forward && needs_batch(pass.chunk)) {
      op.after.push_back(*std::exchange(loaded_, std::nullopt));
    }
    const std::vector<OpId> inputs = op.after;
    for (const OpId id : sync_.before(at, compute_, inputs)) op.after.push_back(id);
    compute_.push_back(ops_.push_back(op));
    sync_.after(at, compute_);
  }

  const std::vector<program::KernelListId>& kernels_of(Pass pass) const {
    switch (pass) {
      case Pass::Forward:
        return in_.kernels.forward;
      case Pass::BackwardInput:
        return in_.kernels.backward_input;
      case Pass::BackwardWeight:
        return in_.kernels.backward_weight;
      case Pass::Backward:
      case Pass::Optimizer:
        break;
    }
    return in_.kernels.backward;
  }

  /// The message for the pass at `at`, if its input comes from another stage.
  void await_input(std::size_t at, Op& op) const {
    const auto input = graph_.input({in_.stage, order_[at]});
    if (!input || input->stage == in_.stage) return;
    FORESAIL_EXPECT(receive_[at].has_value());
    op.after.push_back(*receive_[at]);
  }

  /// Without overlap a stage does nothing else until its last outputs are on their way. Those of
  /// joined passes leave behind both.
  void await_sends(std::size_t at, Op& op) const {
    if (at == 0 || order_[at - 1].is_joined) return;
    if (at > 1 && order_[at - 2].is_joined && send_[at - 2]) op.after.push_back(*send_[at - 2]);
    if (send_[at - 1]) op.after.push_back(*send_[at - 1]);
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

}  // namespace foresail::planner
