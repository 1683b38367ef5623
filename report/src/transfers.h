/// \file
/// What the ops of a Trace are, and when its messages really moved.
#pragma once

#include <cstddef>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/program/program.h"
#include "foresail/program/trace.h"

namespace foresail::report {

/// The op of `span`. Throws Error{InvalidInput} if `program` has no such rank, op or kernel.
const program::Op& op_of(const program::Program& program, const program::Span& span);
/// The kernel of a span with kernel >= 0, checked as above.
const Kernel& kernel_of(const program::Program& program, const program::Span& span);

/// The first step that counts: the first of several warms up.
int first_step(const program::Trace& trace);

/// For each span of `trace` when it began to move: a message moves once both sides are there, so
/// its own start, or that of the matching op on the peer if the trace holds it and it came later
/// (but never after the span's end). For anything but messages the start of the span.
std::vector<SimTime> transfer_starts(const program::Program& program, const program::Trace& trace);

}  // namespace foresail::report
