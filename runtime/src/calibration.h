/// \file
/// The parts of a calibration.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "foresail/program/profile.h"
#include "foresail/runtime/calibrate.h"
#include "foresail/runtime/device.h"

namespace foresail::runtime {

/// Seconds of every kernel of one kernel list, by index; collectives 0.
using ListTimes = std::vector<double>;

/// What one process found out about its stage.
struct StageTimes {
  std::map<std::uint32_t, ListTimes> lists;  ///< by KernelListId
  double op_overhead = 0;    ///< seconds of a forward or backward pass beyond its kernels
  double step_overhead = 0;  ///< seconds of a step beyond its ops
};

/// The time between two points of the calling thread: CPU time of the thread, or on a device what
/// passed between two marks in its stream.
class CostClock {
 public:
  /// `device` may be null (the CPU), and must outlive the clock.
  explicit CostClock(Device* device) : device_(device) {}
  /// From here on times are exact again: a device tells them in fp32 from its last beginning.
  void begin() const {
    if (device_ != nullptr) device_->begin_step();
  }
  Mark now() const;
  /// Waits until a device has passed both.
  std::int64_t between_ns(const Mark& start, const Mark& end) const;
  bool is_of_device() const { return device_ != nullptr; }

 private:
  Device* device_;
};

/// Passes of the stage of `options.rank`, again and again for `options.budget`.
StageTimes measure_stage(const CalibrateOptions& options);

/// What a sweep goes through.
struct SweepSizes {
  std::vector<std::int64_t> gemm_sides;
  double gemm_flops_max = 0;  ///< of larger products none is measured
  std::vector<std::int64_t> rows;
  std::int64_t width = 0;
  std::vector<DType> formats;
};
/// For a device (null: the CPU), which is asked for its formats.
SweepSizes sweep_sizes(Device* device);

/// The formats in which `device` multiplies fast: fp32, and bf16 where matrices of `side` take no
/// longer in it.
std::vector<DType> fast_formats(Device& device, std::int64_t side);

/// Timings of common sizes of every kind of kernel, for a host without a plan.
std::vector<program::KernelTiming> sweep_kernels(Device* device, const SweepSizes& sizes,
                                                 std::chrono::milliseconds budget);

/// From the start of one kernel to that of the next, of many that do next to nothing.
Duration measure_launches(Device& device);

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
