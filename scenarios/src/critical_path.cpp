#include "critical_path.h"

#include <algorithm>
#include <map>
#include <optional>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

using program::Op;
using program::OpId;
using program::OpKind;

struct Place {
  std::size_t unit;
  std::uint32_t op;
};

class Walk {
 public:
  Walk(const program::Program& program, const sim::StepOutcome& outcome)
      : program_(program), outcome_(outcome), stages_(program.stages.size()) {
    for (const program::StageProgram& stage : program.stages) {
      std::vector<std::int64_t>& before = lane_before_.emplace_back();
      std::map<Lane, std::int64_t> last;
      std::uint32_t id = 0;
      for (const Op& op : stage.ops) {
        const auto known = last.find(op.lane);
        before.push_back(known == last.end() ? -1 : known->second);
        last[op.lane] = id++;
      }
    }
  }

  CriticalPath run() {
    Place at = last_of_all();
    for (;;) {
      at = joined_last(at);
      account(at);
      const std::optional<Place> before = predecessor(at);
      if (!before) break;
      path_.waiting += time(at).start - std::min(time(at).start, time(*before).end);
      at = *before;
    }
    Duration most{};
    for (const auto& [unit, busy] : by_unit_) {
      if (busy <= most) continue;
      most = busy;
      path_.unit = unit;
    }
    if (path_.compute.count() > 0)
      path_.share_of_unit = to_seconds(most) / to_seconds(path_.compute);
    return path_;
  }

 private:
  const Op& op(Place at) const { return program_.stages[at.unit % stages_].ops[OpId{at.op}]; }
  const sim::StepOutcome::OpTime& time(Place at) const { return outcome_.op_times[at.unit][at.op]; }

  Place last_of_all() const {
    Place last{0, 0};
    for (std::size_t u = 0; u < outcome_.op_times.size(); ++u) {
      for (std::uint32_t o = 0; o < outcome_.op_times[u].size(); ++o) {
        if (outcome_.op_times[u][o].end > time(last).end) last = {u, o};
      }
    }
    return last;
  }

  // Of a collective over replicas, the member that everyone waited for.
  Place joined_last(Place at) const {
    if (op(at).kind != OpKind::Collective) return at;
    const auto& communicator = program_.communicators[op(at).communicator.value];
    if (!communicator.axes.has(program::Axis::Dp) || communicator.axes.has(program::Axis::Pp)) {
      return at;
    }
    Place latest = at;
    for (std::size_t u = at.unit % stages_; u < outcome_.op_times.size(); u += stages_) {
      const Place other{u, at.op};
      if (time(other).end != time(at).end) continue;  // in another part of a group that is cut
      if (time(other).start > time(latest).start) latest = other;
    }
    return latest;
  }

  void account(Place at) {
    const Op& each = op(at);
    const Duration span = time(at).end - time(at).start;
    ++path_.ops;
    switch (each.kind) {
      case OpKind::Compute:
        (each.pass == program::Pass::Optimizer ? path_.optimizer : path_.compute) += span;
        if (each.pass != program::Pass::Optimizer) by_unit_[at.unit] += span;
        break;
      case OpKind::Send:
      case OpKind::Recv:
        path_.messages += span;
        break;
      case OpKind::Collective:
        (each.lane == Lane::Dp || each.lane == Lane::Replica ? path_.gradients : path_.other) +=
            span;
        break;
      case OpKind::Host:
        path_.other += span;
        break;
    }
  }

  void consider(Place at, std::optional<Place>& best) const {
    const auto take = [&](Place candidate) {
      if (!best || time(candidate).end > time(*best).end) best = candidate;
    };
    const std::int64_t before = lane_before_[at.unit % stages_][at.op];
    if (before >= 0) take({at.unit, static_cast<std::uint32_t>(before)});
    for (const OpId id : op(at).after) take({at.unit, id.value});
  }

  // The other end of a message: the op with the same span on the peer's pp lane.
  std::optional<Place> other_end(Place at) const {
    const Op& mine = op(at);
    const std::size_t peer =
        at.unit / stages_ * stages_ + static_cast<std::size_t>(mine.peer_stage);
    std::uint32_t id = 0;
    for (const Op& each : program_.stages[peer % stages_].ops) {
      const bool is_match = each.lane == mine.lane && each.kind != mine.kind &&
                            each.payload == mine.payload && each.microbatch == mine.microbatch &&
                            (each.kind == OpKind::Send || each.kind == OpKind::Recv) &&
                            outcome_.op_times[peer][id].end == time(at).end;
      if (is_match) return Place{peer, id};
      ++id;
    }
    return std::nullopt;
  }

  std::optional<Place> predecessor(Place at) const {
    std::optional<Place> best;
    consider(at, best);
    if (op(at).kind == OpKind::Send || op(at).kind == OpKind::Recv) {
      if (const auto other = other_end(at)) consider(*other, best);
    }
    return best;
  }

  const program::Program& program_;
  const sim::StepOutcome& outcome_;
  std::size_t stages_;
  std::vector<std::vector<std::int64_t>> lane_before_;  // by stage and op; -1: first of its lane
  std::map<std::size_t, Duration> by_unit_;
  CriticalPath path_;
};

}  // namespace

CriticalPath critical_path(const program::Program& program, const sim::StepOutcome& outcome) {
  FORESAIL_EXPECT(!outcome.op_times.empty());
  return Walk(program, outcome).run();
}

}  // namespace foresail::scenarios
