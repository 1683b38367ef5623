#include "transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "foresail/base/error.h"

namespace foresail::report {
namespace {

using program::Op;
using program::OpId;
using program::OpKind;
using program::Program;
using program::Span;
using program::Trace;

bool is_message(const Op& op) {
  return op.kind == OpKind::Send || op.kind == OpKind::Recv;
}

/// Pairs the k-th send from one stage to another with the k-th receive there.
class Pairing {
 public:
  explicit Pairing(const Program& program) {
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
      std::vector<Position>& positions = positions_.emplace_back();
      for (const Op& op : program.stages[stage].ops) {
        const OpId id{static_cast<std::uint32_t>(positions.size())};
        Position& position = positions.emplace_back();
        if (!is_message(op)) continue;
        const int own = static_cast<int>(stage);
        const bool is_send = op.kind == OpKind::Send;
        Channel& channel =
            is_send ? channels_[{own, op.peer_stage}] : channels_[{op.peer_stage, own}];
        std::vector<OpId>& side = is_send ? channel.sends : channel.recvs;
        position = {&channel, side.size()};
        side.push_back(id);
      }
    }
  }

  /// The op on the peer's stage that meets `op`, if there is one.
  const OpId* partner(std::size_t stage, OpId id, OpKind kind) const {
    const Position& position = positions_[stage][id.value];
    const std::vector<OpId>& side =
        kind == OpKind::Send ? position.channel->recvs : position.channel->sends;
    return position.index < side.size() ? &side[position.index] : nullptr;
  }

 private:
  struct Channel {
    std::vector<OpId> sends, recvs;
  };
  struct Position {
    const Channel* channel = nullptr;  // nothing for what is no message
    std::size_t index = 0;
  };
  std::map<std::pair<int, int>, Channel> channels_;
  std::vector<std::vector<Position>> positions_;
};

using SpanKey = std::tuple<int, RankId, OpId>;

struct Indexed {
  SpanKey key;
  std::size_t span;
};

}  // namespace

const Op& op_of(const Program& program, const Span& span) {
  if (span.rank.value >= static_cast<std::uint32_t>(program.grid.world_size())) {
    throw Error(ErrorCode::InvalidInput, fmt::format("trace: rank {} of {} is not in the program",
                                                     span.rank.value, program.grid.world_size()));
  }
  const auto& ops = program.of(span.rank).ops;
  if (span.op.value >= ops.size()) {
    throw Error(ErrorCode::InvalidInput, fmt::format("trace: op {} of rank {}, which runs {} ops",
                                                     span.op.value, span.rank.value, ops.size()));
  }
  return ops[span.op];
}

const Kernel& kernel_of(const Program& program, const Span& span) {
  const Op& op = op_of(program, span);
  const bool has_kernels =
      op.kind == OpKind::Compute && op.kernels.value < program.kernel_lists.size();
  const std::size_t count = has_kernels ? program.kernel_lists[op.kernels.value].kernels.size() : 0;
  const auto index = static_cast<std::size_t>(span.kernel);
  if (span.kernel < 0 || index >= count) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("trace: kernel {} of rank {} op {}, which has {} kernels", span.kernel,
                            span.rank.value, span.op.value, count));
  }
  return program.kernel_lists[op.kernels.value].kernels[index];
}

int first_step(const Trace& trace) {
  return trace.steps.size() > 1 ? 1 : 0;
}

std::vector<SimTime> transfer_starts(const Program& program, const Trace& trace) {
  const Pairing pairing(program);
  std::vector<Indexed> messages;
  std::vector<SimTime> starts;
  for (const Span& span : trace.spans) {
    if (is_message(op_of(program, span))) {
      messages.push_back({{span.step, span.rank, span.op}, starts.size()});
    }
    starts.push_back(span.start);
  }
  std::ranges::stable_sort(messages, {}, &Indexed::key);
  for (const Indexed& message : messages) {
    const Span& span = trace.spans[message.span];
    const Op& op = op_of(program, span);
    const auto stage = static_cast<std::size_t>(
        program.grid.coordinates(span.rank)[static_cast<std::size_t>(program::Axis::Pp)]);
    const OpId* const partner = pairing.partner(stage, span.op, op.kind);
    if (partner == nullptr) continue;
    const SpanKey wanted{span.step, program.peer(span.rank, op.peer_stage), *partner};
    const auto found = std::ranges::lower_bound(messages, wanted, {}, &Indexed::key);
    if (found == messages.end() || found->key != wanted) continue;
    starts[message.span] = std::min(span.end, std::max(span.start, trace.spans[found->span].start));
  }
  return starts;
}

}  // namespace foresail::report
