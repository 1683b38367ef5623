#include "foresail/report/breakdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "foresail/base/error.h"
#include "transfers.h"

namespace foresail::report {
namespace {

using program::Op;
using program::OpKind;
using program::Program;
using program::Span;
using program::Trace;

/// In the order of precedence.
enum class Category { Compute, Optimizer, Data, Tp, Ep, Cp, Dp, Pp, Inside, Waiting, Ignored };
constexpr std::size_t kCategories = 10;  // those that count
/// Idle time is no span's: what ends it decides whether it was a bubble.
enum class IdleEnd { Peer, Own };

std::size_t index(Category category) {
  return static_cast<std::size_t>(category);
}

Category of_lane(Lane lane) {
  switch (lane) {
    case Lane::Tp:
      return Category::Tp;
    case Lane::Cp:
      return Category::Cp;
    case Lane::Ep:
      return Category::Ep;
    case Lane::Dp:
    case Lane::Replica:
      return Category::Dp;
    case Lane::Pp:
      return Category::Pp;
    case Lane::Compute:
    case Lane::Host:
    case Lane::Copy:
      return Category::Ignored;
  }
  return Category::Ignored;
}

/// One change of what runs.
struct Event {
  Duration time;
  int change;  // +1: something of `category` starts, -1: it ends
  Category category;
  bool is_peer_op;  // a message or collective starts
};

/// One rank in one step: which spans run when.
class RankStep {
 public:
  RankStep(Duration step, bool has_stages) : step_(step), has_stages_(has_stages) {}

  void add(Category category, SimTime from, SimTime to, bool is_peer_op = false) {
    const Duration begin = clip(from);
    const Duration end = clip(to);
    if (category == Category::Ignored || begin >= end) return;
    events_.push_back({begin, 1, category, is_peer_op});
    events_.push_back({end, -1, category, false});
  }

  /// Adds each instant to `sums`, bubble and other last. `all_end`: when the last rank ended.
  void sweep(Duration all_end, std::array<Duration, kCategories>& sums) {
    std::ranges::stable_sort(events_, {}, &Event::time);
    std::array<int, kCategories> running{};
    Duration now{};
    Duration idle{};
    for (std::size_t i = 0; i < events_.size();) {
      const Duration next = events_[i].time;
      charge(running, next - now, idle, sums);
      bool is_peer_op = false;
      bool is_start = false;
      for (; i < events_.size() && events_[i].time == next; ++i) {
        running[index(events_[i].category)] += events_[i].change;
        is_start |= events_[i].change > 0;
        is_peer_op |= events_[i].is_peer_op;
      }
      if (is_start) settle(is_peer_op ? IdleEnd::Peer : IdleEnd::Own, idle, sums);
      now = next;
    }
    const Duration behind = std::max(now, std::min(all_end, step_));
    idle += behind - now;
    settle(has_stages_ ? IdleEnd::Peer : IdleEnd::Own, idle, sums);
    sums[index(Category::Inside)] += step_ - behind;
  }

 private:
  Duration clip(SimTime time) const {
    return std::clamp(time.time_since_epoch(), Duration::zero(), step_);
  }
  /// The time since the last change goes to the first category that runs, or to idle.
  static void charge(const std::array<int, kCategories>& running, Duration time, Duration& idle,
                     std::array<Duration, kCategories>& sums) {
    const auto first = std::ranges::find_if(running, [](int count) { return count > 0; });
    if (first == running.end()) {
      idle += time;
    } else {
      sums[static_cast<std::size_t>(first - running.begin())] += time;
    }
  }
  static void settle(IdleEnd end, Duration& idle, std::array<Duration, kCategories>& sums) {
    sums[index(end == IdleEnd::Peer ? Category::Waiting : Category::Inside)] += idle;
    idle = Duration::zero();
  }

  Duration step_;
  bool has_stages_;
  std::vector<Event> events_;
};

/// The spans [begin, end) of one rank in one step.
struct Block {
  std::size_t begin = 0, end = 0;
};

class Sweep {
 public:
  Sweep(const Program& program, const Trace& trace)
      : program_(program), trace_(trace), starts_(transfer_starts(program, trace)) {}

  Breakdown run();

 private:
  std::vector<Block> blocks() const;
  void add_span(std::size_t index, const std::vector<bool>& has_kernels, RankStep& target) const;

  const Program& program_;
  const Trace& trace_;
  std::vector<SimTime> starts_;
};

std::vector<Block> Sweep::blocks() const {
  const std::vector<Span>& spans = trace_.spans;
  FORESAIL_EXPECT(std::ranges::is_sorted(
      spans, {}, [](const Span& span) { return std::pair(span.step, span.rank); }));
  std::vector<Block> all;
  for (std::size_t begin = 0; begin < spans.size();) {
    std::size_t end = begin;
    while (end < spans.size() && spans[end].step == spans[begin].step &&
           spans[end].rank == spans[begin].rank) {
      ++end;
    }
    const auto step = static_cast<std::size_t>(spans[begin].step);
    FORESAIL_EXPECT(step < trace_.steps.size());
    if (spans[begin].step >= first_step(trace_)) all.push_back({begin, end});
    begin = end;
  }
  return all;
}

void Sweep::add_span(std::size_t i, const std::vector<bool>& has_kernels, RankStep& target) const {
  const Span& span = trace_.spans[i];
  const Op& op = op_of(program_, span);
  if (span.kernel >= 0) {
    const Kernel& kernel = kernel_of(program_, span);
    if (op.pass == program::Pass::Optimizer) return;
    target.add(kernel.kind == KernelKind::Collective ? of_lane(kernel.lane) : Category::Compute,
               span.start, span.end);
    return;
  }
  switch (op.kind) {
    case OpKind::Compute:
      if (op.pass == program::Pass::Optimizer) {
        target.add(Category::Optimizer, span.start, span.end);
      } else {
        target.add(has_kernels[span.op.value] ? Category::Inside : Category::Compute, span.start,
                   span.end);
      }
      break;
    case OpKind::Send:
    case OpKind::Recv:
      target.add(Category::Waiting, span.start, starts_[i]);
      target.add(Category::Pp, starts_[i], span.end, true);
      break;
    case OpKind::Collective:
      target.add(of_lane(span.lane), span.start, span.end, true);
      break;
    case OpKind::Host:
      target.add(op.host == program::HostWork::LoadBatch ? Category::Data : Category::Ignored,
                 span.start, span.end);
      break;
  }
}

Breakdown Sweep::run() {
  const std::vector<Block> all = blocks();
  if (all.empty()) throw Error(ErrorCode::InvalidInput, "trace: no spans in the steps that count");
  std::vector<Duration> ends(trace_.steps.size(), Duration::zero());
  for (const Span& span : trace_.spans) {
    Duration& end = ends[static_cast<std::size_t>(span.step)];
    end = std::max(end, span.end.time_since_epoch());
  }
  std::array<Duration, kCategories> sums{};
  Duration steps{};
  for (const Block& block : all) {
    const auto step = static_cast<std::size_t>(trace_.spans[block.begin].step);
    std::vector<bool> has_kernels(program_.of(trace_.spans[block.begin].rank).ops.size(), false);
    for (std::size_t i = block.begin; i < block.end; ++i) {
      if (trace_.spans[i].kernel >= 0) has_kernels[trace_.spans[i].op.value] = true;
    }
    RankStep rank(trace_.steps[step], program_.grid.size(program::Axis::Pp) > 1);
    for (std::size_t i = block.begin; i < block.end; ++i) add_span(i, has_kernels, rank);
    rank.sweep(ends[step], sums);
    steps += trace_.steps[step];
  }
  const auto mean = [&](Category category) {
    return sums[index(category)] / static_cast<std::int64_t>(all.size());
  };
  Breakdown result;
  result.compute = mean(Category::Compute);
  result.optimizer = mean(Category::Optimizer);
  result.data = mean(Category::Data);
  result.tp_exposed = mean(Category::Tp);
  result.ep_exposed = mean(Category::Ep);
  result.cp_exposed = mean(Category::Cp);
  result.dp_exposed = mean(Category::Dp);
  result.pp_exposed = mean(Category::Pp);
  result.bubble = mean(Category::Waiting);
  // The rest, with the picoseconds that the divisions left over, so that the sum is the step.
  result.other = steps / static_cast<std::int64_t>(all.size()) - result.total();
  return result;
}

}  // namespace

Breakdown break_down(const Program& program, const Trace& trace) {
  return Sweep(program, trace).run();
}

Breakdown scaled_to(const Breakdown& breakdown, Duration step) {
  const Duration whole = breakdown.total();
  FORESAIL_EXPECT(whole > Duration::zero());
  const double ratio = to_seconds(step) / to_seconds(whole);
  Breakdown result = breakdown;
  for (const auto part :
       {&Breakdown::compute, &Breakdown::optimizer, &Breakdown::data, &Breakdown::tp_exposed,
        &Breakdown::ep_exposed, &Breakdown::cp_exposed, &Breakdown::dp_exposed,
        &Breakdown::pp_exposed, &Breakdown::bubble, &Breakdown::other}) {
    result.*part = duration_from_seconds(ratio * to_seconds(breakdown.*part));
  }
  result.other += step - result.total();
  return result;
}

Document to_document(const Breakdown& breakdown) {
  return {{"compute", to_seconds(breakdown.compute)},
          {"tp_exposed", to_seconds(breakdown.tp_exposed)},
          {"cp_exposed", to_seconds(breakdown.cp_exposed)},
          {"ep_exposed", to_seconds(breakdown.ep_exposed)},
          {"pp_exposed", to_seconds(breakdown.pp_exposed)},
          {"dp_exposed", to_seconds(breakdown.dp_exposed)},
          {"bubble", to_seconds(breakdown.bubble)},
          {"optimizer", to_seconds(breakdown.optimizer)},
          {"data", to_seconds(breakdown.data)},
          {"other", to_seconds(breakdown.other)}};
}

}  // namespace foresail::report
