// Rules about what crosses stage borders: messages in pairs and waited for, collectives in one
// order.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "stage_order.h"
#include "verify_rules.h"

namespace foresail::program {
namespace {

/// Messages from one stage to another, in the order of the sender or of the receiver.
struct Channel {
  std::vector<const Op*> sends, recvs;
};

std::string communicator_name(const Program& program, CommunicatorId id) {
  if (id.value >= program.communicators.size()) return fmt::format("#{}", id.value);
  return program.communicators[id.value].name;
}

/// The message as the receiver must see it: "activation chunk 1 microbatch 0, 64 B bf16 on pp".
std::string contents(const Program& program, const Op& op, int chunk) {
  return fmt::format("{} chunk {} microbatch {}, {} B {} on {}", to_string(op.payload), chunk,
                     op.microbatch, op.bytes.count(), to_string(op.dtype),
                     communicator_name(program, op.communicator));
}

/// Who receives what chunk `op.chunk` of `stage` produced; nothing at the ends of the model.
std::optional<ChunkPlace> receiver(const Program& program, int stage, const Op& op) {
  if (op.chunk < 0 || op.chunk >= program.chunks) return std::nullopt;
  const GlobalStages global = program.global_stages();
  const ChunkPlace from{stage, op.chunk};
  return op.payload == Payload::Activation ? global.next(from) : global.previous(from);
}

/// Refuses passes that do not wait for their message, and sends that do not wait for their pass.
class WaitCheck {
 public:
  WaitCheck(const Program& program, int stage, Complaints& complaints)
      : program_(program),
        ops_(program.stages[static_cast<std::size_t>(stage)].ops),
        stage_(stage),
        order_(program.stages[static_cast<std::size_t>(stage)]),
        complaints_(complaints) {}

  void run() {
    for (std::uint32_t i = 0; i < ops_.size(); ++i) note(ops_[OpId{i}], i);
    for (std::uint32_t i = 0; i < ops_.size(); ++i) check(ops_[OpId{i}], i);
  }

 private:
  using Key = std::tuple<Payload, int, int>;  // payload, chunk, microbatch
  struct Sources {
    std::map<Key, std::size_t> passes, recvs;
  };

  static bool is_backward(Pass pass) {
    return pass == Pass::Backward || pass == Pass::BackwardInput;
  }
  static Key key(const Op& op) {
    const bool is_gradient =
        op.kind == OpKind::Compute ? is_backward(op.pass) : op.payload == Payload::Gradient;
    return {is_gradient ? Payload::Gradient : Payload::Activation, op.chunk, op.microbatch};
  }
  static bool is_moving(const Op& op) {
    return op.kind == OpKind::Compute && (op.pass == Pass::Forward || is_backward(op.pass));
  }

  void note(const Op& op, std::size_t index) {
    if (op.kind == OpKind::Recv) sources_.recvs.emplace(key(op), index);
    if (is_moving(op)) sources_.passes.emplace(key(op), index);
  }

  void check(const Op& op, std::size_t index) {
    if (op.kind == OpKind::Send) wait_for(sources_.passes, key(op), index);
    if (!is_moving(op)) return;
    if (op.chunk < 0 || op.chunk >= program_.chunks) return;  // the rule of passes says so
    const ChunkPlace place{stage_, op.chunk};
    const GlobalStages global = program_.global_stages();
    const auto source = op.pass == Pass::Forward ? global.previous(place) : global.next(place);
    if (!source) return;
    if (source->stage != stage_) {
      wait_for(sources_.recvs, key(op), index);
      return;
    }
    // Chunks of one stage hand their output on without a message.
    Key before = key(op);
    std::get<1>(before) = source->chunk;
    wait_for(sources_.passes, before, index);
  }

  void wait_for(const std::map<Key, std::size_t>& sources, const Key& source, std::size_t index) {
    const auto found = sources.find(source);
    if (found != sources.end() && order_.is_finished(found->second, index)) return;
    const auto name = [&](std::size_t id) {
      return fmt::format("op {} {}", id, describe(ops_[OpId{static_cast<std::uint32_t>(id)}]));
    };
    const char* const missing =
        &sources == &sources_.passes ? "a pass that makes it" : "a recv of its input";
    complaints_.add(fmt::format("stage {} {}: does not wait for {}", stage_, name(index),
                                found == sources.end() ? missing : name(found->second)));
  }
  const Program& program_;
  const IdVector<OpId, Op>& ops_;
  int stage_;
  StageOrder order_;
  Complaints& complaints_;
  Sources sources_;
};

class MessageCheck {
 public:
  explicit MessageCheck(const Program& program)
      : program_(program),
        stages_(program.grid.size(Axis::Pp)),
        channels_(static_cast<std::size_t>(stages_) * static_cast<std::size_t>(stages_)) {}

  std::vector<std::string> run() {
    for (int stage = 0; stage < stages_; ++stage) collect(stage);
    for (int from = 0; from < stages_; ++from) {
      for (int to = 0; to < stages_; ++to) compare(from, to);
    }
    for (int stage = 0; stage < stages_; ++stage) WaitCheck(program_, stage, complaints_).run();
    return complaints_.take();
  }

 private:
  Channel& channel(int from, int to) {
    return channels_[static_cast<std::size_t>(from) * static_cast<std::size_t>(stages_) +
                     static_cast<std::size_t>(to)];
  }
  void complain(int stage, const Op& op, const std::string& why) {
    complaints_.add(fmt::format("stage {} {}: {}", stage, describe(op), why));
  }

  void collect(int stage) {
    for (const Op& op : program_.stages[static_cast<std::size_t>(stage)].ops) {
      if (op.kind == OpKind::Recv) channel(op.peer_stage, stage).recvs.push_back(&op);
      if (op.kind != OpKind::Send) continue;
      channel(stage, op.peer_stage).sends.push_back(&op);
      check_direction(stage, op);
    }
  }

  void check_direction(int stage, const Op& op) {
    if (op.payload != Payload::Activation && op.payload != Payload::Gradient) {
      complain(stage, op, "a message carries activation or gradient only");
      return;
    }
    const auto due = receiver(program_, stage, op);
    if (!due) {
      complain(stage, op, fmt::format("no chunk of {} can receive it", program_.chunks));
    } else if (due->stage == stage) {
      complain(stage, op, "the stage itself uses it and needs no message");
    } else if (op.peer_stage != due->stage) {
      complain(stage, op, fmt::format("must go to stage {}", due->stage));
    }
  }

  void compare(int from, int to) {
    const Channel& between = channel(from, to);
    if (between.sends.size() != between.recvs.size()) {
      complaints_.add(fmt::format("stage {} sends {} messages to stage {}, which receives {}", from,
                                  between.sends.size(), to, between.recvs.size()));
    }
    const std::size_t pairs = std::min(between.sends.size(), between.recvs.size());
    for (std::size_t i = 0; i < pairs; ++i) {
      const Op& send = *between.sends[i];
      const Op& recv = *between.recvs[i];
      const auto due = receiver(program_, from, send);
      const std::string sent = contents(program_, send, due ? due->chunk : -1);
      const std::string received = contents(program_, recv, recv.chunk);
      if (sent == received) continue;
      complaints_.add(
          fmt::format("message {} from stage {} to stage {}: sent is {}, but received is {}", i,
                      from, to, sent, received));
      break;  // after the first difference all others follow from it
    }
  }

  const Program& program_;
  int stages_;
  std::vector<Channel> channels_;
  Complaints complaints_;
};

bool is_same_collective(const Op& a, const Op& b) {
  return a.collective == b.collective && a.payload == b.payload && a.bytes == b.bytes &&
         a.dtype == b.dtype;
}

std::string contents(const Op* op) {
  if (op == nullptr) return "nothing";
  return fmt::format("{} of {} B {}", describe(*op), op->bytes.count(), to_string(op->dtype));
}

}  // namespace

std::vector<std::string> check_messages(const Program& program) {
  return MessageCheck(program).run();
}

std::vector<std::string> check_collectives(const Program& program) {
  Complaints complaints;
  // order[communicator][stage]: the ops that stage issues on it
  std::vector<std::vector<std::vector<const Op*>>> order(
      program.communicators.size(), std::vector<std::vector<const Op*>>(program.stages.size()));
  for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
    for (const Op& op : program.stages[stage].ops) {
      if (op.kind == OpKind::Collective) order[op.communicator.value][stage].push_back(&op);
    }
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Communicator& communicator = program.communicators[i];
    const std::vector<int> members = stages_of(program, communicator);
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
      if (order[i][stage].empty()) continue;
      if (std::ranges::binary_search(members, static_cast<int>(stage))) continue;
      complaints.add(fmt::format("stage {} {}: it is not a member of {}", stage,
                                 describe(*order[i][stage].front()), communicator.name));
    }
    if (!is_coupling(program, communicator)) continue;
    const auto& first = order[i][static_cast<std::size_t>(members.front())];
    for (const int stage : members) {
      const auto& own = order[i][static_cast<std::size_t>(stage)];
      for (std::size_t k = 0; k < std::max(first.size(), own.size()); ++k) {
        const Op* const a = k < first.size() ? first[k] : nullptr;
        const Op* const b = k < own.size() ? own[k] : nullptr;
        if (a != nullptr && b != nullptr && is_same_collective(*a, *b)) continue;
        complaints.add(
            fmt::format("collective {} on {}: stage {} issues {}, but stage {} issues {}", k,
                        communicator.name, members.front(), contents(a), stage, contents(b)));
        break;
      }
    }
  }
  return complaints.take();
}

}  // namespace foresail::program
