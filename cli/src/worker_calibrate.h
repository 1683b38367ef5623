/// \file
/// What one process does in `foresail-worker calibrate`.
#pragma once

#include <filesystem>
#include <string>

namespace foresail::cli {

struct CalibrateRunOptions {
  std::filesystem::path output;  ///< the Profile
  std::filesystem::path plan;    ///< whose kernels and transfers to measure; may be empty
  std::string device = "cpu";    ///< or cuda
};

/// Rank 0 writes the Profile.
void calibrate_rank(const CalibrateRunOptions& options);

/// Processes that calibrate without being told how many: the plan's ranks, or this host's cores or
/// CUDA devices.
int default_processes(const CalibrateRunOptions& options);

}  // namespace foresail::cli
