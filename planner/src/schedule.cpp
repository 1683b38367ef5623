#include "foresail/planner/schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "foresail/base/error.h"
#include "schedule_orders.h"

namespace foresail::planner {
namespace {

using program::Pass;
using Order = PassOrder;

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

/// Forwards in groups, `warm_up` of them ahead of the first backward.
Order forward_backward_order(ScheduleKind kind, const ScheduleShape& shape, int stage) {
  FORESAIL_EXPECT(shape.chunks == 1 || kind == ScheduleKind::Interleaved);
  const int group = shape.group_size == 0 ? shape.stages : shape.group_size;
  const Order steps = interleaved_steps(shape, group);
  const auto behind = static_cast<std::size_t>(shape.stages - 1 - stage);
  std::size_t warm_up = steps.size();
  if (kind == ScheduleKind::OneForwardOneBackward) warm_up = behind;
  if (kind == ScheduleKind::Interleaved) {
    const auto ahead = static_cast<std::size_t>(shape.chunks - 1);
    warm_up = 2 * behind + ahead * static_cast<std::size_t>(group);
  }
  return warm_up_order(steps, shape.chunks, std::min(warm_up, steps.size()));
}

/// The order of one of several stages.
Order stage_order(ScheduleKind kind, const ScheduleShape& shape, int stage) {
  switch (kind) {
    case ScheduleKind::Gpipe:
    case ScheduleKind::OneForwardOneBackward:
    case ScheduleKind::Interleaved:
      return forward_backward_order(kind, shape, stage);
    case ScheduleKind::ZbH1:
      return zb_h1_order(shape, stage);
    case ScheduleKind::ZbH2:
      return zb_h2_order(shape, stage);
    case ScheduleKind::ZbV:
      return zb_v_order(shape, stage);
    case ScheduleKind::DualPipe:
      return dualpipe_order(shape, stage);
    case ScheduleKind::File:
      break;
  }
  return {};
}

}  // namespace

program::StageMap stage_map_of(ScheduleKind kind) {
  if (kind == ScheduleKind::ZbV) return program::StageMap::V;
  if (kind == ScheduleKind::DualPipe) return program::StageMap::Mirrored;
  return program::StageMap::Ring;
}

Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape) {
  FORESAIL_EXPECT(shape.stages >= 1);
  FORESAIL_EXPECT(shape.chunks >= 1);
  FORESAIL_EXPECT(shape.microbatches >= 1);
  FORESAIL_EXPECT(shape.group_size >= 0);
  FORESAIL_EXPECT(kind != ScheduleKind::File);
  const bool is_pipeline = shape.stages > 1;
  Schedule schedule{shape.stages,
                    shape.chunks,
                    shape.microbatches,
                    {},
                    is_pipeline ? stage_map_of(kind) : program::StageMap::Ring};
  for (int stage = 0; stage < shape.stages; ++stage) {
    schedule.order.push_back(is_pipeline ? stage_order(kind, shape, stage)
                                         : single_stage_order(shape));
  }
  return schedule;
}

Schedule make_schedule(const WrittenSchedule& written) {
  return {static_cast<int>(written.order.size()), written.chunks, written.microbatches,
          written.order, written.stage_map};
}

std::string to_text(const Schedule& schedule, int stage) {
  return to_text(schedule.order.at(static_cast<std::size_t>(stage)));
}

int peak_in_flight(const Schedule& schedule, int stage) {
  int in_flight = 0;
  int peak = 0;
  for (const SchedulePass& pass : schedule.order.at(static_cast<std::size_t>(stage))) {
    if (pass.pass == Pass::Forward) ++in_flight;
    peak = std::max(peak, in_flight);
    if (pass.pass == Pass::Backward || pass.pass == Pass::BackwardWeight) --in_flight;
  }
  return peak;
}

}  // namespace foresail::planner
