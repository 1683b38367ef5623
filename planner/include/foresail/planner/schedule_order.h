/// \file
/// Orders of passes as data, and their text: what a schedule is made of, and what a file of the
/// user holds.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/yaml.h"
#include "foresail/program/program.h"
#include "foresail/program/stage_map.h"

namespace foresail::planner {

/// One pass of one microbatch through one local chunk. The backward pass may come in two halves,
/// the input gradients (on the way to the stage before) and the weight gradients (free to wait).
struct SchedulePass {
  program::Pass pass = program::Pass::Forward;
  int microbatch = 0;
  int chunk = 0;
  /// Kernel by kernel interleaved with the next pass (DualPipe's F&B): both start when the inputs
  /// of both are there, and both outputs leave when both have ended.
  bool is_joined = false;
  friend bool operator==(const SchedulePass&, const SchedulePass&) = default;
};

using PassOrder = std::vector<SchedulePass>;

/// "F0.1": forward (F), backward (B), its halves for input (I) and weights (W); microbatch; chunk.
std::string to_text(const SchedulePass& pass);
/// "F0.0 F1.0&B0.1 W0.1": joined passes with &.
std::string to_text(const PassOrder& order);

/// A schedule that the user has written down.
struct WrittenSchedule {
  program::StageMap stage_map = program::StageMap::Ring;
  int chunks = 0;
  int microbatches = 0;
  std::vector<PassOrder> order;  ///< by stage; empty if there is none
  friend bool operator==(const WrittenSchedule&, const WrittenSchedule&) = default;
};

/// `{file: PATH}` (relative to the file of `node`; there `foresail_schedule: 1` and the same two
/// keys) or `{stage_map: ring|v|mirrored, order: ["F0.0 B0.0", ...]}`, one text per stage. Throws
/// Error{InvalidInput} with file, line and key if a pass is malformed, missing, doubled or before
/// what it needs, or if the stages wait for each other in a cycle.
WrittenSchedule read_written_schedule(const Yaml& node);
Document to_document(const WrittenSchedule& schedule);

}  // namespace foresail::planner
