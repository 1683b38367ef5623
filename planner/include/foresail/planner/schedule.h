/// \file
/// Pipeline schedules as data: an order of passes per stage, and the one simulation that turns an
/// order into start times and into a deadlock-free order of messages.
#pragma once

#include <string>
#include <vector>

#include "foresail/planner/layout.h"
#include "foresail/program/program.h"

namespace foresail::planner {

/// One pass of one microbatch through one local chunk.
struct SchedulePass {
  program::Pass pass = program::Pass::Forward;
  int microbatch = 0;
  int chunk = 0;
  friend bool operator==(const SchedulePass&, const SchedulePass&) = default;
};

/// order[stage] lists that stage's passes. Global stage of a pass: chunk * stages + stage.
struct Schedule {
  int stages = 1;
  int chunks = 1;
  int microbatches = 1;
  std::vector<std::vector<SchedulePass>> order;
};

struct ScheduleShape {
  int stages = 1;
  int chunks = 1;
  int microbatches = 1;
  int group_size = 0;  ///< interleaved only; 0: stages
};

/// Orders of GPipe, 1F1B (Narayanan 2021) and interleaved 1F1B (facts: Megatron-LM schedules.py:
/// warm-up 2(p-r-1) + (v-1)G). Requires the laws of interleaving; see check_laws.
Schedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);
/// "F0.0 F1.0 B0.1 ..." of one stage ("pass, microbatch, chunk").
std::string to_text(const Schedule& schedule, int stage);

/// Costs in any one unit of time.
struct PassCosts {
  double forward = 1;  ///< of one chunk, indexed [stage][chunk] if the tables below are not empty
  double backward = 2;
  double message = 0;  ///< from the end of a pass to the start of the pass that needs its output
  std::vector<std::vector<double>> forward_of{}, backward_of{};
  bool blocking = false;  ///< a stage waits for its own sends (overlap.pp off)
};

struct TimedSchedule {
  std::vector<std::vector<double>> start, end;  ///< [stage][position in order]
  double makespan = 0;
};

/// Runs the order with these costs, messages contending for nothing. Throws Error{InvalidInput}
/// with the cycle if the order deadlocks: "stage 0 F4.0 waits for stage 3 F0.1 waits for ...".
TimedSchedule simulate(const Schedule& schedule, const PassCosts& costs);

/// Most forwards without their backward at one time on `stage`, in chunks.
int peak_in_flight(const Schedule& schedule, int stage);

}  // namespace foresail::planner
