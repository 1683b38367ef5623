/// \file
/// Where the time of a step goes.
#pragma once

#include "foresail/base/document.h"
#include "foresail/base/units.h"
#include "foresail/program/program.h"
#include "foresail/program/trace.h"

namespace foresail::report {

/// Each instant of each rank has one category, the first that matches of compute, optimizer, data,
/// tp, ep, cp, dp, pp, bubble, other. Hence communication beside compute does not count: what
/// remains of it is exposed. The values are means over the ranks of the trace and sum to the step.
///
/// - compute: a kernel of a pass runs; where a trace has no kernels of an op, the op does.
/// - tp, ep, cp, dp, pp exposed: only a collective on that lane, or a message, moves. A message
/// that
///   is still waiting for the other side does not move.
/// - bubble: another rank is waited for: a message of this rank waits for its peer, the next thing
///   to start is a message or a collective, or other pipeline stages still work.
/// - other: the rest, such as kernel launches inside an op.
struct Breakdown {
  Duration compute{}, optimizer{}, data{};
  Duration tp_exposed{}, ep_exposed{}, cp_exposed{}, dp_exposed{}, pp_exposed{};
  Duration bubble{}, other{};

  Duration total() const {
    return compute + optimizer + data + tp_exposed + ep_exposed + cp_exposed + dp_exposed +
           pp_exposed + bubble + other;
  }
  friend bool operator==(const Breakdown&, const Breakdown&) = default;
};

/// Of all steps but the first, which warms up, or of the only one. Throws Error{InvalidInput} if
/// the trace has no spans there, or spans that `program` does not know.
Breakdown break_down(const program::Program& program, const program::Trace& trace);

/// The same shares of another step; what the roundings leave over is in `other`.
Breakdown scaled_to(const Breakdown& breakdown, Duration step);

/// The keys of `breakdown_s` (docs/reference/result.md), in seconds.
Document to_document(const Breakdown& breakdown);

}  // namespace foresail::report
