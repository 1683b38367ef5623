/// \file
/// Pipeline schedules as data: an order of passes per stage, and the one simulation that turns an
/// order into start times and into a deadlock-free order of messages.
#pragma once

#include <string>
#include <vector>

#include "foresail/planner/layout.h"
#include "foresail/program/program.h"

namespace foresail::planner {

/// order[stage] lists that stage's passes; stage_map says which global stage a chunk is.
struct Schedule {
  int stages = 1;
  int chunks = 1;
  int microbatches = 1;
  std::vector<PassOrder> order;
  program::StageMap stage_map = program::StageMap::Ring;
};

struct ScheduleShape {
  int stages = 1;
  int chunks = 1;
  int microbatches = 1;
  int group_size = 0;  ///< interleaved only; 0: stages
};

/// Orders of GPipe, 1F1B (Narayanan 2021), interleaved 1F1B (facts: Megatron-LM schedules.py:
/// warm-up 2(p-r-1) + (v-1)G), ZB-H1, ZB-H2, ZB-V (Qi 2024) and DualPipe (DeepSeek-V3 2024).
/// Requires the laws of the kind; see check_laws. Without a pipeline (one stage) all kinds run one
/// microbatch after the other.
Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);
/// The schedule that stands in a file.
Schedule make_schedule(const WrittenSchedule& written);
program::StageMap stage_map_of(ScheduleKind kind);  ///< of all kinds but File
/// "F0.0 F1.0 B0.1 ..." of one stage; see schedule_order.h.
std::string to_text(const Schedule& schedule, int stage);

/// Costs in any one unit of time.
struct PassCosts {
  double forward = 1;  ///< of one chunk, indexed [stage][chunk] if the tables below are not empty
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;  ///< from the end of a pass to the start of the pass that needs its output
  std::vector<std::vector<double>> forward_of{}, backward_of{}, backward_input_of{},
      backward_weight_of{};
  bool blocking = false;  ///< a stage waits for its own sends (overlap.pp off)
};

/// The end of a pass is when its output leaves; joined passes share start and end.
struct TimedSchedule {
  std::vector<std::vector<double>> start, end;  ///< [stage][position in order]
  double makespan = 0;
};

/// Runs the order with these costs, messages contending for nothing. Throws Error{InvalidInput}
/// with the cycle if the order deadlocks: "stage 0 F4.0 waits for stage 3 F0.1 waits for ...".
TimedSchedule simulate(const Schedule& schedule, const PassCosts& costs);

/// Most forwards without their backward (its weight half, if it comes in halves) at one time on
/// `stage`, in chunks.
int peak_in_flight(const Schedule& schedule, int stage);

}  // namespace foresail::planner
