#include "search_pass_time.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace foresail::planner {
namespace {

/// The simulator rounds to whole picoseconds, maybe down.
double less(double seconds) {
  return std::max(0.0, seconds - 2e-12);
}

}  // namespace

PricedPart price_part(const std::vector<Kernel>& kernels,
                      const std::function<double(const Kernel&)>& price) {
  PricedPart part;
  std::set<int> waiting;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const Kernel& kernel = kernels[i];
    const bool is_collective = kernel.kind == KernelKind::Collective;
    for (const int before : kernel.after) waiting.erase(before);
    if (is_collective) waiting.insert(static_cast<int>(i));
    const bool is_last = i + 1 == kernels.size();
    const auto waits_for = [&](const Kernel& next) {
      return std::ranges::find(next.after, static_cast<int>(i)) != next.after.end();
    };
    const bool is_beside = is_collective && !is_last && !waits_for(kernels[i + 1]);
    part.steps.push_back({price(kernel), is_collective, is_beside,
                          is_collective ? kernel.lane : Lane::Compute, kernel.after});
  }
  part.unawaited.assign(waiting.begin(), waiting.end());
  return part;
}

PassClock::PassClock(const topologies::CostConstants& constants)
    : slowdown_(std::max(1.0, constants.overlap_slowdown)),
      inefficiency_(std::max(0.0, constants.overlap_inefficiency)) {}

/// How long a step that starts at `start` takes.
double PassClock::span(const PricedPart::Step& step, double start) const {
  if (step.is_collective) {
    return step.is_beside ? less(step.seconds * (1 + inefficiency_)) : step.seconds;
  }
  if (start >= collectives_end_) return step.seconds;
  const double beside = collectives_end_ - start;
  const double done = beside / slowdown_;
  return less(step.seconds <= done ? step.seconds * slowdown_ : beside + (step.seconds - done));
}

void PassClock::append(const PricedPart& part) {
  if (part.steps.empty()) return;
  ends_.clear();
  double first = carried_;
  for (const PricedPart::Step& step : part.steps) {
    double& lane = free_[static_cast<std::size_t>(step.lane)];
    double start = std::max(lane, first);
    first = 0;
    for (const int before : step.after) {
      start = std::max(start, ends_[static_cast<std::size_t>(before)]);
    }
    lane = start + span(step, start);
    if (step.is_collective) collectives_end_ = std::max(collectives_end_, lane);
    ends_.push_back(lane);
    last_ = std::max(last_, lane);
  }
  carried_ = 0;
  for (const int each : part.unawaited) {
    carried_ = std::max(carried_, ends_[static_cast<std::size_t>(each)]);
  }
  kernels_ += part.steps.size();
}

double PassClock::seconds(double host_per_kernel_s) const {
  return std::max(last_, host_per_kernel_s * static_cast<double>(kernels_));
}

}  // namespace foresail::planner
