/// \file
/// One microbatch through two stages, and a trace of it whose numbers fit on a page.
#pragma once

#include "foresail/program/program.h"
#include "foresail/program/trace.h"

namespace foresail::report {

/// tp 2 x pp 2; ranks 0 and 1 are stage 0, ranks 2 and 3 stage 1.
program::Program example_program();

/// A span in microseconds.
program::Span span(std::uint32_t rank, std::uint32_t op, double from, double to);
program::Span kernel_span(std::uint32_t rank, std::uint32_t op, int kernel, double from, double to);

/// Ranks 0 and 2 of one step of 20 us (op ids in brackets):
///
///     us      0  1  2     4  5  6        8         12 13        17 18     20
///     rank 0  |data|  forward [1]  |>|     idle      |<| backward|dp| adam |
///     rank 2  |      idle        |<|forward|backward |>|   idle  |dp| adam |
///
/// Rank 0's forward has kernels: GEMM 1-2, tensor-parallel all-reduce 2-4, GEMM 4-5.
program::Trace example_trace();

/// Sorts spans as a Trace demands, after a test changed some.
void sort_spans(program::Trace& trace);

}  // namespace foresail::report
