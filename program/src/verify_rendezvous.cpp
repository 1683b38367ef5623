// The rule that the Program reaches its end when every message is a rendezvous: one rank per stage
// is run without time, its lanes as queues. Replicas behave alike, so one rank stands for all.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "foresail/base/error.h"
#include "verify_rules.h"

namespace foresail::program {
namespace {

constexpr std::size_t kLanes = kLaneCount;

/// An op of one stage.
struct Node {
  int stage = 0;
  std::uint32_t op = 0;
  friend bool operator==(const Node&, const Node&) = default;
};

struct StageState {
  const StageProgram* program = nullptr;
  std::array<std::vector<std::uint32_t>, kLanes> queue;  // ops by lane, in order
  std::array<std::size_t, kLanes> head{};                // next position in each queue
  std::vector<bool> is_done;
  std::vector<std::size_t> met;  // leading entries of each op's `after` known to be done
  bool is_waiting_for_visit = false;
};

class Rendezvous {
 public:
  explicit Rendezvous(const Program& program);
  std::vector<std::string> run();

 private:
  const Op& op(Node node) const {
    return program_.stages[static_cast<std::size_t>(node.stage)].ops[OpId{node.op}];
  }
  StageState& state(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  const StageState& state(int stage) const { return stages_[static_cast<std::size_t>(stage)]; }

  void plan_visit(int stage);
  void visit(int stage);
  bool try_head(int stage, std::size_t lane);
  void complete(Node node, std::size_t lane);
  std::optional<Node> head(int stage, std::size_t lane) const;
  bool is_ready(Node node);
  /// The head of some lane of `stage` that is ready and satisfies `wanted`.
  template <class Wanted>
  std::optional<Node> ready_head(int stage, Wanted wanted);
  bool try_message(Node node, std::size_t lane);
  bool try_collective(Node node, std::size_t lane);

  template <class Wanted>
  std::optional<Node> first_undone(int stage, Wanted wanted) const;
  std::optional<Node> blocker(Node node) const;
  std::string explain(Node start) const;

  const Program& program_;
  std::vector<StageState> stages_;
  std::vector<std::vector<int>> members_;  // by communicator: its stages, if it couples several
  std::deque<int> visits_;
};

Rendezvous::Rendezvous(const Program& program) : program_(program) {
  stages_.resize(program.stages.size());
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    StageState& stage = stages_[i];
    stage.program = &program.stages[i];
    const std::size_t count = stage.program->ops.size();
    stage.is_done.assign(count, false);
    stage.met.assign(count, 0);
    for (std::uint32_t op = 0; op < count; ++op) {
      stage.queue[static_cast<std::size_t>(stage.program->ops[OpId{op}].lane)].push_back(op);
    }
  }
  for (const Communicator& communicator : program.communicators) {
    members_.push_back(is_coupling(program, communicator) ? stages_of(program, communicator)
                                                          : std::vector<int>());
  }
}

void Rendezvous::plan_visit(int stage) {
  if (state(stage).is_waiting_for_visit) return;
  state(stage).is_waiting_for_visit = true;
  visits_.push_back(stage);
}

std::optional<Node> Rendezvous::head(int stage, std::size_t lane) const {
  const StageState& at = state(stage);
  if (at.head[lane] == at.queue[lane].size()) return std::nullopt;
  return Node{stage, at.queue[lane][at.head[lane]]};
}

bool Rendezvous::is_ready(Node node) {
  StageState& at = state(node.stage);
  const std::vector<OpId>& after = op(node).after;
  std::size_t& met = at.met[node.op];
  while (met < after.size() && at.is_done[after[met].value]) ++met;
  return met == after.size();
}

template <class Wanted>
std::optional<Node> Rendezvous::ready_head(int stage, Wanted wanted) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::optional<Node> node = head(stage, lane);
    if (node && wanted(op(*node)) && is_ready(*node)) return node;
  }
  return std::nullopt;
}

void Rendezvous::complete(Node node, std::size_t lane) {
  StageState& at = state(node.stage);
  at.is_done[node.op] = true;
  ++at.head[lane];
  plan_visit(node.stage);
}

bool Rendezvous::try_message(Node node, std::size_t lane) {
  const Op& own = op(node);
  const OpKind other = own.kind == OpKind::Send ? OpKind::Recv : OpKind::Send;
  const std::optional<Node> peer = ready_head(own.peer_stage, [&](const Op& candidate) {
    return candidate.kind == other && candidate.peer_stage == node.stage;
  });
  if (!peer || *peer == node) return false;
  complete(*peer, static_cast<std::size_t>(op(*peer).lane));
  complete(node, lane);
  return true;
}

bool Rendezvous::try_collective(Node node, std::size_t lane) {
  const CommunicatorId communicator = op(node).communicator;
  const std::vector<int>& members = members_[communicator.value];
  if (std::ranges::find(members, node.stage) == members.end()) {
    complete(node, lane);  // on one stage alone all ranks run the same ops: nobody is waited for
    return true;
  }
  std::vector<Node> joined;
  for (const int stage : members) {
    const std::optional<Node> member = ready_head(stage, [&](const Op& candidate) {
      return candidate.kind == OpKind::Collective && candidate.communicator == communicator;
    });
    if (!member) return false;
    joined.push_back(*member);
  }
  if (std::ranges::find(joined, node) == joined.end()) return false;  // another lane was first
  for (const Node member : joined) complete(member, static_cast<std::size_t>(op(member).lane));
  return true;
}

bool Rendezvous::try_head(int stage, std::size_t lane) {
  const std::optional<Node> node = head(stage, lane);
  if (!node || !is_ready(*node)) return false;
  switch (op(*node).kind) {
    case OpKind::Send:
    case OpKind::Recv:
      return try_message(*node, lane);
    case OpKind::Collective:
      return try_collective(*node, lane);
    case OpKind::Compute:
    case OpKind::Host:
      complete(*node, lane);
      return true;
  }
  return false;
}

void Rendezvous::visit(int stage) {
  bool is_moving = true;
  while (is_moving) {
    is_moving = false;
    for (std::size_t lane = 0; lane < kLanes; ++lane) is_moving |= try_head(stage, lane);
  }
}

std::vector<std::string> Rendezvous::run() {
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) plan_visit(static_cast<int>(stage));
  while (!visits_.empty()) {
    const int stage = visits_.front();
    visits_.pop_front();
    state(stage).is_waiting_for_visit = false;
    visit(stage);
  }
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (const auto node = head(static_cast<int>(stage), lane)) return {explain(*node)};
    }
  }
  return {};
}

template <class Wanted>
std::optional<Node> Rendezvous::first_undone(int stage, Wanted wanted) const {
  const StageState& at = state(stage);
  for (std::uint32_t i = 0; i < at.is_done.size(); ++i) {
    if (!at.is_done[i] && wanted(op({stage, i}))) return Node{stage, i};
  }
  return std::nullopt;
}

/// What an unfinished op waits for; nothing if that op does not exist.
std::optional<Node> Rendezvous::blocker(Node node) const {
  const Op& own = op(node);
  const Node first = *head(node.stage, static_cast<std::size_t>(own.lane));
  if (first != node) return first;
  for (const OpId id : own.after) {
    if (!state(node.stage).is_done[id.value]) return Node{node.stage, id.value};
  }
  if (own.kind == OpKind::Send || own.kind == OpKind::Recv) {
    const OpKind other = own.kind == OpKind::Send ? OpKind::Recv : OpKind::Send;
    return first_undone(own.peer_stage, [&](const Op& candidate) {
      return candidate.kind == other && candidate.peer_stage == node.stage;
    });
  }
  // A collective: the first member that has not come to it.
  const auto is_same = [&](const Op& candidate) {
    return candidate.kind == OpKind::Collective && candidate.communicator == own.communicator;
  };
  for (const int stage : members_[own.communicator.value]) {
    const std::optional<Node> member = first_undone(stage, is_same);
    if (!member) return std::nullopt;
    const bool is_head = *head(stage, static_cast<std::size_t>(op(*member).lane)) == *member;
    const bool has_all = std::ranges::all_of(
        op(*member).after, [&](OpId id) { return state(stage).is_done[id.value]; });
    if (!is_head || !has_all) return member;
  }
  return std::nullopt;
}

std::string Rendezvous::explain(Node start) const {
  const auto name = [&](Node node) {
    return fmt::format("stage {} {}", node.stage, describe(op(node)));
  };
  std::vector<Node> path;
  std::vector<std::vector<std::size_t>> position(stages_.size());
  for (std::size_t i = 0; i < stages_.size(); ++i) position[i].assign(stages_[i].is_done.size(), 0);
  std::optional<Node> node = start;
  std::size_t cycle = 0;
  while (node) {
    std::size_t& seen = position[static_cast<std::size_t>(node->stage)][node->op];
    if (seen > 0) {
      cycle = seen - 1;
      break;
    }
    path.push_back(*node);
    seen = path.size();
    node = blocker(*node);
  }
  if (!node) cycle = path.size() - 1;
  std::string text = "deadlock: ";
  for (std::size_t i = cycle; i < path.size(); ++i) {
    text += name(path[i]) + (i == cycle ? " waits for " : ", which waits for ");
  }
  if (node) return text + name(*node);
  const Op& last = op(path.back());
  if (last.kind == OpKind::Collective) return text + "a member that never joins";
  return text + fmt::format("stage {}, which has no {} for it", last.peer_stage,
                            last.kind == OpKind::Send ? "recv" : "send");
}

}  // namespace

std::vector<std::string> check_rendezvous(const Program& program) {
  return Rendezvous(program).run();
}

}  // namespace foresail::program
