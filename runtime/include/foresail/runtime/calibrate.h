/// \file
/// Measures this host or its devices: kernels as the stages issue them, and transfers among
/// processes.
#pragma once

#include <chrono>

#include <string>

#include "foresail/program/profile.h"
#include "foresail/runtime/communicator.h"
#include "foresail/runtime/device.h"
#include "foresail/runtime/job.h"
#include "foresail/runtime/store.h"

namespace foresail::runtime {

/// `processes` processes call calibrate with the same options but `rank` and what is this rank's.
///
/// On the CPU kernels are measured by all of them at once, in CPU time of their thread: what a
/// kernel takes on one core, however many processes share it, with the caches as contended as in a
/// run. Transfers are measured in wall time, one group at a time.
///
/// On devices, of which each process has one, all times are those of the device's clock (marks in
/// the stream of a lane), after a warm-up. Kernels of a sweep are queued one behind another, many
/// for each measurement, so that a short one costs what lies between two launches; those of a job
/// come one by one with a mark on both sides, as a run records them.
struct CalibrateOptions {
  /// Whose kernels and transfers to measure; each process takes the stage of its rank. Null: a
  /// sweep of sizes.
  const Job* job = nullptr;
  int rank = 0;
  int processes = 1;
  Store* store = nullptr;
  /// Null if this process is the only one: there is nothing to transfer.
  const Endpoint* endpoint = nullptr;
  Device* device = nullptr;   ///< null: the CPU
  std::string device_name{};  ///< of `device`, and which BLAS it has, for the Profile
  std::string device_blas{};
  /// How long passes (or sweeps) are repeated.
  std::chrono::milliseconds budget{8000};
};

/// On rank 0 the Profile of all; on others an empty one. Throws Error{Unsupported} for a job that
/// check_supported refuses.
program::Profile calibrate(const CalibrateOptions& options);

}  // namespace foresail::runtime
