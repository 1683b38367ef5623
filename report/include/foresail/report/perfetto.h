/// \file
/// Timelines for Perfetto and chrome://tracing.
#pragma once

#include <string>

#include "foresail/program/program.h"
#include "foresail/program/trace.h"

namespace foresail::report {

/// The trace in the Chrome trace event format (JSON): one process per rank, one thread per lane,
/// one complete event per span, steps one after the other. Throws Error{InvalidInput} if the trace
/// has spans that `program` does not know.
std::string to_perfetto(const program::Program& program, const program::Trace& trace);

}  // namespace foresail::report
