#include "foresail/planner/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "foresail/base/error.h"

namespace foresail::planner {
namespace {

using program::Pass;
using Order = std::vector<SchedulePass>;

/// All microbatches one after the other; used when there is no pipeline.
Order single_stage_order(const ScheduleShape& shape) {
  Order order;
  for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      order.push_back({Pass::Forward, microbatch, chunk});
    }
    for (int chunk = shape.chunks - 1; chunk >= 0; --chunk) {
      order.push_back({Pass::Backward, microbatch, chunk});
    }
  }
  return order;
}

/// The k-th forward is steps[k], the k-th backward mirrors it to the opposite chunk. `warm_up`
/// forwards run ahead, then forwards and backwards alternate, then the backwards left over.
Order warm_up_order(const Order& steps, int chunks, std::size_t warm_up) {
  const auto mirrored = [&](std::size_t step) {
    return SchedulePass{Pass::Backward, steps[step].microbatch, chunks - 1 - steps[step].chunk};
  };
  Order order(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(warm_up));
  for (std::size_t step = 0; step < steps.size(); ++step) {
    if (step + warm_up < steps.size()) order.push_back(steps[step + warm_up]);
    order.push_back(mirrored(step));
  }
  return order;
}

/// Groups of `group` microbatches visit all chunks before the next group starts.
Order interleaved_steps(const ScheduleShape& shape, int group) {
  Order steps;
  for (int first = 0; first < shape.microbatches; first += group) {
    const int last = std::min(first + group, shape.microbatches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int microbatch = first; microbatch < last; ++microbatch) {
        steps.push_back({Pass::Forward, microbatch, chunk});
      }
    }
  }
  return steps;
}

}  // namespace

Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape) {
  FORESAIL_EXPECT(shape.stages >= 1);
  FORESAIL_EXPECT(shape.chunks >= 1);
  FORESAIL_EXPECT(shape.microbatches >= 1);
  FORESAIL_EXPECT(shape.group_size >= 0);
  FORESAIL_EXPECT(shape.stages == 1 || shape.chunks == 1 || kind == ScheduleKind::Interleaved);
  Schedule schedule{shape.stages, shape.chunks, shape.microbatches, {}};
  const int group = shape.group_size == 0 ? shape.stages : shape.group_size;
  const Order steps = interleaved_steps(shape, group);
  for (int stage = 0; stage < shape.stages; ++stage) {
    if (shape.stages == 1) {
      schedule.order.push_back(single_stage_order(shape));
      continue;
    }
    const auto behind = static_cast<std::size_t>(shape.stages - 1 - stage);
    std::size_t warm_up = steps.size();
    if (kind == ScheduleKind::OneForwardOneBackward) warm_up = behind;
    if (kind == ScheduleKind::Interleaved) {
      const auto ahead = static_cast<std::size_t>(shape.chunks - 1);
      warm_up = 2 * behind + ahead * static_cast<std::size_t>(group);
    }
    schedule.order.push_back(warm_up_order(steps, shape.chunks, std::min(warm_up, steps.size())));
  }
  return schedule;
}

std::string to_text(const Schedule& schedule, int stage) {
  std::string text;
  for (const SchedulePass& pass : schedule.order.at(static_cast<std::size_t>(stage))) {
    if (!text.empty()) text += ' ';
    text +=
        fmt::format("{}{}.{}", pass.pass == Pass::Forward ? 'F' : 'B', pass.microbatch, pass.chunk);
  }
  return text;
}

int peak_in_flight(const Schedule& schedule, int stage) {
  int in_flight = 0;
  int peak = 0;
  for (const SchedulePass& pass : schedule.order.at(static_cast<std::size_t>(stage))) {
    in_flight += pass.pass == Pass::Forward ? 1 : -1;
    peak = std::max(peak, in_flight);
  }
  return peak;
}

}  // namespace foresail::planner
