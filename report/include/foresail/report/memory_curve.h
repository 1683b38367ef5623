/// \file
/// What a rank holds over the time of a step, and what it is at the fullest moment.
#pragma once

#include <string>
#include <vector>

#include "foresail/program/live_memory.h"
#include "foresail/program/program.h"

namespace foresail::report {

/// When one op of the stage ran.
struct OpInterval {
  SimTime start{}, end{};
};

/// Bytes from one moment on until the next point.
struct MemoryPoint {
  SimTime time{};
  Bytes total;
  Bytes activations;  ///< the part that waits for backward passes
  Bytes buffers;
};

/// One owner's bytes at the peak.
struct OwnedBytes {
  program::LiveTensor tensor;
  int count = 1;  ///< microbatches, or messages
  Bytes bytes() const { return count * tensor.bytes; }
};

struct MemoryCurve {
  std::vector<MemoryPoint> points;  ///< in order of time, at most one per moment
  std::size_t peak = 0;             ///< index of the first of the highest
  program::OpId op{};               ///< the pass that runs at the peak; before all passes: op 0
  std::vector<OwnedBytes> owners;   ///< at the peak, largest first, then by name
};

/// `times` has every op of the stage. At one moment groups go before others come.
MemoryCurve memory_curve(const program::StageProgram& stage, const program::StageMemory& memory,
                         const std::vector<OpInterval>& times);

/// Ops one after the other in the order in which they stand: op i from tick 2 i to 2 i + 1.
std::vector<OpInterval> program_order(const program::StageProgram& stage);

/// "time_s,total_bytes,activation_bytes,buffer_bytes", one line per point.
std::string to_csv(const MemoryCurve& curve);

}  // namespace foresail::report
