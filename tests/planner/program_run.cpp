#include "program_run.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace foresail::planner {
namespace {

using program::Op;
using program::OpId;
using program::OpKind;
using program::Program;

class Stage {
 public:
  explicit Stage(const program::StageProgram& stage) : ops_(stage.ops), end_(ops_.size(), -1) {
    for (std::size_t at = 0; at < ops_.size(); ++at) {
      const OpId id{static_cast<std::uint32_t>(at)};
      lanes_[static_cast<std::size_t>(ops_[id].lane)].push_back(id);
    }
  }

  const Op* head(Lane lane) const {
    const auto at = static_cast<std::size_t>(lane);
    return next_[at] < lanes_[at].size() ? &ops_[lanes_[at][next_[at]]] : nullptr;
  }
  /// When the head of `lane` may start as far as this stage is concerned.
  std::optional<double> ready(Lane lane) const {
    const Op* op = head(lane);
    if (op == nullptr) return std::nullopt;
    double time = free_at_[static_cast<std::size_t>(lane)];
    for (const OpId before : op->after) {
      if (end_[before.value] < 0) return std::nullopt;
      time = std::max(time, end_[before.value]);
    }
    return time;
  }
  void pop(Lane lane, double end) {
    const auto at = static_cast<std::size_t>(lane);
    end_[lanes_[at][next_[at]++].value] = end;
    free_at_[at] = end;
  }
  bool is_done() const { return std::ranges::count(end_, -1) == 0; }
  double end() const { return *std::ranges::max_element(free_at_); }

 private:
  const IdVector<OpId, Op>& ops_;
  std::vector<double> end_;
  std::array<std::vector<OpId>, kLaneCount> lanes_;
  std::array<std::size_t, kLaneCount> next_{};
  std::array<double, kLaneCount> free_at_{};
};

class Run {
 public:
  Run(const Program& program, const UnitCosts& costs) : program_(program), costs_(costs) {
    for (const auto& stage : program.stages) stages_.emplace_back(stage);
  }

  std::optional<double> finish() {
    bool has_moved = true;
    while (has_moved) {
      has_moved = false;
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        for (int lane = 0; lane < kLaneCount; ++lane) {
          while (step(stage, static_cast<Lane>(lane))) has_moved = true;
        }
      }
    }
    double makespan = 0;
    for (const Stage& stage : stages_) {
      if (!stage.is_done()) return std::nullopt;
      makespan = std::max(makespan, stage.end());
    }
    return makespan;
  }

 private:
  bool step(std::size_t stage, Lane lane) {
    const auto start = stages_[stage].ready(lane);
    if (!start) return false;
    const Op& op = *stages_[stage].head(lane);
    if (op.kind == OpKind::Recv) return false;  // its Send moves both
    if (op.kind == OpKind::Send) return transfer(stage, op, *start);
    if (op.kind == OpKind::Collective) return collective(stage, op);
    stages_[stage].pop(lane, *start + (op.kind == OpKind::Compute ? cost_of(op.pass) : 0));
    return true;
  }

  double cost_of(program::Pass pass) const {
    switch (pass) {
      case program::Pass::Forward:
        return costs_.forward;
      case program::Pass::Backward:
        return costs_.backward;
      case program::Pass::BackwardInput:
        return costs_.backward_input;
      case program::Pass::BackwardWeight:
        return costs_.backward_weight;
      case program::Pass::Optimizer:
        break;
    }
    return 0;
  }

  bool transfer(std::size_t stage, const Op& send, double start) {
    Stage& receiver = stages_[static_cast<std::size_t>(send.peer_stage)];
    const Op* recv = receiver.head(Lane::Pp);
    const auto ready = receiver.ready(Lane::Pp);
    if (!ready || recv->kind != OpKind::Recv || recv->microbatch != send.microbatch ||
        recv->payload != send.payload || static_cast<std::size_t>(recv->peer_stage) != stage) {
      return false;
    }
    const double end = std::max(start, *ready) + costs_.message;
    stages_[stage].pop(Lane::Pp, end);
    receiver.pop(Lane::Pp, end);
    return true;
  }

  bool collective(std::size_t stage, const Op& op) {
    const program::Communicator& communicator = program_.communicators[op.communicator.value];
    std::vector<std::size_t> members{stage};
    if (communicator.axes.has(program::Axis::Pp)) {
      members.clear();
      for (std::size_t at = 0; at < stages_.size(); ++at) members.push_back(at);
      if (!communicator.stages.empty()) {
        members.assign(communicator.stages.begin(), communicator.stages.end());
      }
    }
    double start = 0;
    for (const std::size_t member : members) {
      const Op* other = stages_[member].head(op.lane);
      const auto ready = stages_[member].ready(op.lane);
      if (!ready || other->kind != OpKind::Collective || other->communicator != op.communicator) {
        return false;
      }
      start = std::max(start, *ready);
    }
    const Lane lane = op.lane;
    for (const std::size_t member : members) stages_[member].pop(lane, start);
    return true;
  }

  const Program& program_;
  UnitCosts costs_;
  std::vector<Stage> stages_;
};

}  // namespace

std::optional<double> run(const Program& program, const UnitCosts& costs) {
  return Run(program, costs).finish();
}

}  // namespace foresail::planner
