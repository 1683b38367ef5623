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

/// Forward passes flow through the global stages 0 .. stages * chunks - 1, backward passes back.
/// Global stage g is chunk g / stages of stage g % stages.
class PassGraph {
 public:
  /// Requires every forward and backward exactly once in its stage's order.
  explicit PassGraph(const Schedule& schedule);

  /// The pass whose output `place` needs; nothing for a forward of the first global stage. The
  /// backward of the last global stage needs its own forward.
  std::optional<PassPlace> input(const PassPlace& place) const;
  /// The pass of another global stage that needs the output of `place`.
  std::optional<PassPlace> output(const PassPlace& place) const;
  /// Index in the order of the stage.
  std::size_t position(const PassPlace& place) const;

 private:
  int global_stage(const PassPlace& place) const {
    return place.pass.chunk * stages_ + place.stage;
  }
  PassPlace place_at(int global, program::Pass pass, int microbatch) const;
  std::size_t index(const SchedulePass& pass) const;

  int stages_;
  int chunks_;
  int microbatches_;
  std::vector<std::vector<std::size_t>> position_;  // [stage][index(pass)]
};

/// The cost of one pass under `costs`.
double cost_of(const PassCosts& costs, const PassPlace& place);

}  // namespace foresail::planner
