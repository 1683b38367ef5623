#include "search_pass_time.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace foresail::planner {

PricedPart price_part(const std::vector<Kernel>& kernels,
                      const std::function<double(const Kernel&)>& price) {
  PricedPart part;
  std::set<int> waiting;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const Kernel& kernel = kernels[i];
    const bool is_collective = kernel.kind == KernelKind::Collective;
    for (const int before : kernel.after) waiting.erase(before);
    if (is_collective) waiting.insert(static_cast<int>(i));
    part.steps.push_back(
        {price(kernel), is_collective, is_collective ? kernel.lane : Lane::Compute, kernel.after});
  }
  part.unawaited.assign(waiting.begin(), waiting.end());
  return part;
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
    lane = start + step.seconds;
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
