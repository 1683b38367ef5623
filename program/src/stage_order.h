/// \file
/// Which ops of one stage have surely finished when another starts, in any timing.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "foresail/program/program.h"

namespace foresail::program {

/// A lane is a queue, so what has finished of it when an op starts is a prefix: one number per
/// lane says it all, and one pass over the ops finds them (a vector clock).
class StageOrder {
 public:
  explicit StageOrder(const StageProgram& stage);

  /// Whether op `earlier` has always finished when op `later` starts. Ops in or behind a cycle of
  /// dependencies never start, so for them everything is true.
  bool is_finished(std::size_t earlier, std::size_t later) const;

 private:
  /// By lane the number of the last op known to be finished, plus 1.
  using Clock = std::array<std::size_t, kLaneCount>;
  std::vector<Clock> clocks_;
  std::vector<std::size_t> lanes_;
  std::vector<bool> starts_;
};

}  // namespace foresail::program
