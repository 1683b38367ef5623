/// \file
/// Measures this host: kernels as the stages issue them, and transfers among processes.
#pragma once

#include <chrono>

#include "foresail/program/profile.h"
#include "foresail/runtime/gloo.h"
#include "foresail/runtime/job.h"
#include "foresail/runtime/store.h"

namespace foresail::runtime {

/// `processes` processes call calibrate with the same options but `rank`. Kernels are measured by
/// all of them at once, in CPU time of their thread: what a kernel takes on one core, however many
/// processes share it, with the caches as contended as in a run. Transfers are measured in wall
/// time, one group at a time.
struct CalibrateOptions {
  /// Whose kernels and transfers to measure; each process takes the stage of its rank. Null: a
  /// sweep of sizes.
  const Job* job = nullptr;
  int rank = 0;
  int processes = 1;
  Store* store = nullptr;
  const GlooEndpoint* endpoint = nullptr;
  /// How long passes (or sweeps) are repeated.
  std::chrono::milliseconds budget{8000};
};

/// On rank 0 the Profile of all; on others an empty one. Throws Error{Unsupported} for a job that
/// check_supported refuses.
program::Profile calibrate(const CalibrateOptions& options);

}  // namespace foresail::runtime
