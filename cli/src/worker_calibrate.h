/// \file
/// What one process does in `foresail-worker calibrate`.
#pragma once

#include <filesystem>
#include <string>

namespace foresail::cli {

struct CalibrateRunOptions {
  std::filesystem::path output;  ///< the Profile
  std::filesystem::path plan;    ///< whose kernels and transfers to measure; may be empty
};

/// Rank 0 writes the Profile.
void calibrate_rank(const CalibrateRunOptions& options);

/// Processes that calibrate without being told how many: the plan's ranks, or this host's cores.
int default_processes(const std::filesystem::path& plan);

}  // namespace foresail::cli
