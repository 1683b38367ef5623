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
#include "foresail/base/output_files.h"
#include "foresail/program/profile.h"
#include "foresail/program/program.h"
#include "foresail/program/trace.h"
#include "foresail/scenarios/scenario.h"
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

/// Options that commands share.
struct Common {
  std::string fidelity = "flow";
  std::string fold = "auto";
  std::optional<std::uint64_t> seed;
  bool is_json = false;
  std::string trace_file, report_file, trace_ranks = "class";
  int threads = 1;
  bool is_quiet = false;

  /// Those that every command heeds: --json, --report, --quiet.
  void add_outputs_to(CLI::App& command);
  /// The former, --fidelity and --seed: for what is simulated without a Program.
  void add_network_to(CLI::App& command);
  /// The former and --fold: for a step whose trace is not asked for.
  void add_step_to(CLI::App& command);
  /// --trace and --trace-ranks, beside one of the former.
  void add_trace_to(CLI::App& command);
  sim::Fidelity fidelity_choice() const;
  sim::Fold fold_choice() const;
};

/// The simulation that the options ask for, with what the scenario meets. `profile` may be null;
/// both must outlive the result.
scenarios::SimulateOptions simulate_options(const Common& common,
                                            const scenarios::Scenario& scenario,
                                            const program::Profile* profile);
/// The profile in a file; nothing if the name is empty.
std::optional<program::Profile> optional_profile(const std::string& path);

/// The trace in the format that the name of its file asks for: docs/reference/trace.md's, or
/// Chrome's.
std::string trace_text(const std::string& path, const program::Program& program,
                       const program::Trace& trace);

/// "class", "all" or "0,3,8-11" within a world of `ranks`.
sim::TraceRanks parse_trace_ranks(const std::string& text, int ranks);

/// Refuses outputs that are the input itself, or each other. Empty names are no outputs.
void keep_input(const std::string& input, const std::vector<std::string>& outputs);

/// Prints the document (--json) or the text to standard output, and writes --report.
void answer(const Common& common, const Document& document, const std::string& text,
            OutputFiles files = OutputFiles());

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
Command add_import(CLI::App& root);
Command add_doctor(CLI::App& root);

/// Starts foresail-worker (beside this executable, or in PATH) and waits. Throws
/// Error{NotFound} if there is none.
int run_worker(const std::vector<std::string>& arguments);
/// Its path; empty if there is none.
std::string worker_path();

}  // namespace foresail::cli
