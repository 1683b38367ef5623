#include "activity_board.h"

#include <fmt/format.h>

#include "span_log.h"

namespace foresail::runtime {

using program::Op;
using program::OpKind;

template <class Change>
void ActivityBoard::note(const Change& change) {
  const std::scoped_lock lock(mutex_);
  change();
  moved_ns_ = steady_ns();
}

void ActivityBoard::begin_step(int step) {
  note([&] {
    step_ = step;
    is_in_step_ = true;
  });
}

void ActivityBoard::end_step() {
  note([&] {
    ++step_;
    is_in_step_ = false;
  });
}

void ActivityBoard::enter(Lane lane, program::OpId op) {
  note([&] { running_[lane] = op; });
}

void ActivityBoard::leave(Lane lane) {
  note([&] { running_.erase(lane); });
}

void ActivityBoard::enter_kernel(std::size_t kernel) {
  note([&] { kernel_ = kernel; });
}

void ActivityBoard::leave_kernel() {
  note([&] { kernel_.reset(); });
}

Activity ActivityBoard::look(const program::Program& program, RankId rank) const {
  const std::scoped_lock lock(mutex_);
  Activity seen;
  seen.step = step_;
  seen.quiet = std::chrono::nanoseconds(moved_ns_ == 0 ? 0 : steady_ns() - moved_ns_);
  if (!is_in_step_) {
    seen.text = fmt::format("front of step {}", step_);
    return seen;
  }
  seen.occupation = running_.empty() ? Occupation::Device : Occupation::Peers;
  std::string own, others;
  for (const auto& [lane, id] : running_) {
    const Op& op = program.of(rank).ops[id];
    const bool is_in_kernel = op.kind == OpKind::Compute && lane == Lane::Compute && kernel_;
    std::string text = program::describe(op);
    if (is_in_kernel) {
      const auto& kernels = program.kernel_lists[op.kernels.value].kernels;
      text += fmt::format(", kernel {}", kernels.at(*kernel_).name);
    }
    const bool is_own = is_in_kernel || op.kind == OpKind::Host;
    if (is_own) seen.occupation = Occupation::OwnWork;
    (is_own ? own : others) += (is_own ? own : others).empty() ? text : "; " + text;
  }
  const std::string what = running_.empty() ? "waits for its device" : own.empty() ? others : own;
  seen.text = fmt::format("step {}: {}", step_, what);
  return seen;
}

}  // namespace foresail::runtime
