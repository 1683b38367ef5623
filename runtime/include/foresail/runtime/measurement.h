/// \file
/// What one rank measured, how ranks hand it to rank 0, and the Trace that it becomes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/program/trace.h"
#include "foresail/runtime/job.h"

namespace foresail::runtime {

/// Which ranks keep spans for the Trace.
enum class Recording { Off, On };

/// An op (kernel -1) or a kernel, in nanoseconds of the host's steady clock.
struct MeasuredSpan {
  std::int32_t lane = 0;  ///< a Lane
  std::int32_t kernel = -1;
  std::uint32_t op = 0;
  std::int32_t step = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const MeasuredSpan&, const MeasuredSpan&) = default;
};

/// What one step came to on one rank. Times: nanoseconds of the host's steady clock.
struct StepSummary {
  int step = 0;
  double loss = 0;           ///< mean over the global batch; equal on all ranks
  double gradient_norm = 0;  ///< before clipping; equal on all ranks
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t data_wait_ns = 0;  ///< how long the load of the batch waited for its data
  std::string executed_digest;    ///< of the ops that ran, program::ProgramDigest
  /// Most bytes of tensors that the rank held at one time on its device; 0 on a CPU unless
  /// TensorMemory counts.
  std::int64_t peak_bytes = 0;
  friend bool operator==(const StepSummary&, const StepSummary&) = default;
};

struct RankMeasurement {
  RankId rank;
  std::string host;            ///< ranks of one host share a steady clock
  std::string plan_digest;     ///< as this rank computed it
  std::string program_digest;  ///< of the Program that this rank lowered
  std::vector<StepSummary> steps;
  std::vector<MeasuredSpan> spans;  ///< empty if this rank did not record
  friend bool operator==(const RankMeasurement&, const RankMeasurement&) = default;
};

/// A compact form for the store. unpack requires what pack made.
std::string pack(const RankMeasurement& measurement);
RankMeasurement unpack(const std::string& packed);

/// Times move to the start of their step: the earliest start among the ranks of the same host. A
/// step lasts until the last rank's end. `ranks` has every rank once.
program::Trace make_trace(const Job& job, const std::string& version,
                          const std::vector<RankMeasurement>& ranks);

}  // namespace foresail::runtime
