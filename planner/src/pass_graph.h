/// \file
/// Which pass feeds which: the data flow behind every schedule.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "foresail/planner/schedule.h"

namespace foresail::planner {

/// A pass and the stage that runs it.
struct PassPlace {
  int stage = 0;
  SchedulePass pass;
  friend bool operator==(const PassPlace&, const PassPlace&) = default;
};

/// Forward passes flow through the global stages of the schedule's stage map, backward passes (or
/// their input halves) back. A weight half needs its input half alone.
class PassGraph {
 public:
  /// Requires every pass exactly once in its stage's order. `schedule` must outlive the graph.
  explicit PassGraph(const Schedule& schedule);

  /// The pass whose output `place` needs; nothing for a forward of the first global stage. The
  /// backward of the last global stage needs its own forward.
  std::optional<PassPlace> input(const PassPlace& place) const;
  /// The pass of another global stage that needs the output of `place`.
  std::optional<PassPlace> output(const PassPlace& place) const;
  /// Index in the order of the stage.
  std::size_t position(const PassPlace& place) const;

 private:
  /// Forwards, backwards (whole or input half), weight halves.
  enum class Row { Forward, Backward, Weight };

  static program::ChunkPlace chunk_of(const PassPlace& place) {
    return {place.stage, place.pass.chunk};
  }
  static Row row_of(program::Pass pass);
  std::size_t position(Row row, program::ChunkPlace at, int microbatch) const;
  PassPlace place_at(Row row, program::ChunkPlace at, int microbatch) const;
  std::size_t index(Row row, int chunk, int microbatch) const;
  void check_complete() const;

  const Schedule& schedule_;
  program::GlobalStages global_;
  std::vector<std::vector<std::size_t>> position_;  // [stage][index]
};

/// The cost of one pass under `costs`.
double cost_of(const PassCosts& costs, const PassPlace& place);

}  // namespace foresail::planner
