/// \file
/// What all commands of `foresail` share: common options, loading, output and exit statuses.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/program/profile.h"
#include "foresail/scenarios/simulate.h"
#include "foresail/sim/simulator.h"

namespace foresail::cli {

/// Exit statuses of the contract.
inline constexpr int kOk = 0;
inline constexpr int kFailedRun = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kInfeasible = 3;

/// Largest size of a cluster that --gpus takes.
inline constexpr int kGpusMax = 1 << 22;

/// Options that the commands share.
struct Common {
  std::string fidelity = "flow";
  std::string fold = "auto";
  std::optional<std::uint64_t> seed;
  bool is_json = false;
  std::string trace_file, report_file, trace_ranks = "class";
  int threads = 1;
  bool is_quiet = false;

  void add_to(CLI::App& command);
  /// Those of commands that simulate no training step: neither folding, traces nor threads.
  void add_basics_to(CLI::App& command);
  sim::Fidelity fidelity_choice() const;
  sim::Fold fold_choice() const;
};

/// "class", "all" or "0,3,8-11" within a world of `ranks`.
sim::TraceRanks parse_trace_ranks(const std::string& text, int ranks);

/// Prints the document (--json) or the text to standard output, and writes --report.
void answer(const Common& common, const Document& document, const std::string& text);

/// Progress and remarks for people, on standard error; silent under --quiet.
void remark(const Common& common, const std::string& text);

/// One command: its options live as long as the returned runner.
using Runner = std::function<int()>;
struct Command {
  CLI::App* app;
  Runner run;
};
Command add_plan(CLI::App& root);
Command add_simulate(CLI::App& root);
Command add_run(CLI::App& root);
Command add_calibrate(CLI::App& root);
Command add_compare(CLI::App& root);
Command add_validate(CLI::App& root);
Command add_collective(CLI::App& root);
Command add_topology(CLI::App& root);
Command add_explain(CLI::App& root);
Command add_doctor(CLI::App& root);

/// Starts foresail-worker (beside this executable, or in PATH) and waits. Throws
/// Error{NotFound} if there is none.
int run_worker(const std::vector<std::string>& arguments);
/// Its path; empty if there is none.
std::string worker_path();

}  // namespace foresail::cli
