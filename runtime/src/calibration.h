/// \file
/// The parts of a calibration.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "foresail/program/profile.h"
#include "foresail/runtime/calibrate.h"

namespace foresail::runtime {

/// Seconds of every kernel of one kernel list, by index; collectives 0.
using ListTimes = std::vector<double>;

/// What one process found out about its stage.
struct StageTimes {
  std::map<std::uint32_t, ListTimes> lists;  ///< by KernelListId
  double op_overhead = 0;    ///< seconds of a forward or backward pass beyond its kernels
  double step_overhead = 0;  ///< seconds of a step beyond its ops
};

/// Passes of the stage of `options.rank`, again and again for `options.budget`.
StageTimes measure_stage(const CalibrateOptions& options);

/// Timings of common sizes of every kind of kernel, for a host without a plan.
std::vector<program::KernelTiming> sweep_kernels(std::chrono::milliseconds budget);

/// Collectives and messages among the first n ranks, for every n that the job (or a job of
/// `processes` ranks) may use. Only rank 0's answer is filled.
std::vector<program::TransferTiming> measure_transfers(const CalibrateOptions& options);

/// Every distinct kernel of the lists once, with the mean time of all its places.
std::vector<program::KernelTiming> distinct_kernels(
    const program::Program& program, const std::map<std::uint32_t, ListTimes>& times);

/// CPU time of the calling thread in nanoseconds.
std::int64_t thread_cpu_ns();

/// Middle value; 0 of none.
double median(std::vector<double> values);

}  // namespace foresail::runtime
