/// \file
/// Starts the ranks of a job on this host and answers for all of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace foresail::cli {

struct LaunchOptions {
  int ranks = 1;
  /// What every rank runs: this executable with these arguments, and torchrun's variables.
  std::vector<std::string> arguments;
  /// Removed if the job fails.
  std::vector<std::filesystem::path> half_written{};
  std::string job{};  ///< keeps its keys apart in a store of many jobs; empty: a new one
};

/// Waits for all ranks. When one fails the others are ended, and the message of the one that failed
/// first of itself (not because a peer went away) goes to standard error. SIGINT and SIGTERM are
/// handed on. No process is left behind, also if this one is killed.
/// Returns 0, or the exit status of that rank (1 if a signal ended it), or 128 + a signal that
/// ended the launch.
int launch(LaunchOptions options);

}  // namespace foresail::cli
