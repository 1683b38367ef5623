/// \file
/// Predicted against measured, op class by op class.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/units.h"
#include "foresail/program/program.h"
#include "foresail/program/trace.h"

namespace foresail::report {

/// Ops of one kind, such as "forward", "send activation", "dp reduce_scatter chunk_gradients" or
/// "tp all_gather (in passes)"; "step" is the whole step.
struct ComparisonRow {
  std::string op_class;
  std::int64_t count = 0;             ///< per step, over the compared ranks
  std::optional<Duration> predicted;  ///< mean of the class; nothing if the trace has none
  std::optional<Duration> measured;   ///< median over the steps of each step's mean

  /// predicted / measured - 1, where both are there and the latter is not 0.
  std::optional<double> error() const;
};

struct Comparison {
  std::string plan_digest, program_digest;
  std::vector<RankId> ranks;  ///< that both traces hold
  std::size_t steps = 0;      ///< measured ones that count: all but the first, or the only one
  std::vector<ComparisonRow> rows;
};

/// Messages count from when both sides are there, so that waiting for the other does not.
/// Throws Error{InvalidInput} if plan or program digests differ, if `program` is not that of the
/// traces, or if the traces have no rank in common.
Comparison compare(const program::Program& program, const program::Trace& predicted,
                   const program::Trace& measured);

Document to_document(const Comparison& comparison);
/// A table for people.
std::string to_text(const Comparison& comparison);

}  // namespace foresail::report
