/// \file
/// What happened: one schema for predicted and measured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/id.h"
#include "foresail/base/units.h"
#include "foresail/program/program.h"

namespace foresail::program {

/// One op, or one kernel of a Compute op, on one rank. Times count from the start of the step.
struct Span {
  RankId rank;
  Lane lane = Lane::Compute;
  OpId op{};
  int kernel = -1;  ///< index into the op's kernel list; -1: the whole op
  int step = 0;
  SimTime start{}, end{};  ///< measured spans: the host's steady clock, moved to the step's start
  Bytes bytes;             ///< messages and collectives
};

/// Origin of a Trace.
enum class TraceKind { Predicted, Measured };

struct Trace {
  TraceKind kind = TraceKind::Predicted;
  std::string version;  ///< of Foresail
  std::string plan_digest;
  std::string program_digest;  ///< of the whole Program
  std::uint64_t seed = 0;
  std::string fidelity;  ///< "analytic", "flow", "packet"; "measured"
  /// Duration of each step, in order (predicted: one).
  std::vector<Duration> steps;
  std::vector<Span> spans;  ///< ordered by (step, rank, start, lane, op, kernel)
  /// Text form of the Program that the op ids refer to; may be left out (empty) where a reader has
  /// it from elsewhere.
  std::string program;
};

/// JSON form (docs/reference/trace.md). from_document throws Error{InvalidInput}.
Document to_document(const Trace& trace);
Trace trace_from_document(const Document& document, const std::string& name);

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::TraceKind> = std::to_array<Named<program::TraceKind>>(
    {{program::TraceKind::Predicted, "predicted"}, {program::TraceKind::Measured, "measured"}});
}  // namespace foresail
