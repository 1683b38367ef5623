/// \file
/// What one rank does in `foresail-worker run`.
#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "foresail/planner/plan.h"
#include "foresail/runtime/job.h"
#include "foresail/runtime/store.h"
#include "worker_environment.h"

namespace foresail::cli {

struct RunOptions {
  std::filesystem::path plan;
  std::filesystem::path output;  ///< folder
  std::string data;              ///< instead of training.data; both empty: the licence texts
  std::string weights;           ///< safetensors to start from; empty: random weights by seed
  std::string save_weights;      ///< folder for the weights after the last step; empty: not kept
  std::optional<int> steps;      ///< absent: training.steps
  std::string trace_ranks = "class";
  bool is_quiet = false;         ///< without a line per step
  std::string device = "cpu";    ///< or cuda
  std::string metrics;           ///< file that gets a line of JSON per step; empty: none
  std::string store;             ///< as parse_store reads it
  std::string timeout = "20 s";  ///< after which a silent rank is looked for
  std::string step_timeout;      ///< how long a step may stand still; empty: StepLimit's default
};

/// `options.timeout` as a time. Throws Error{InvalidInput}.
std::chrono::milliseconds wait_limit(const RunOptions& options);

/// `options.step_timeout` as a time. Throws Error{InvalidInput}.
std::optional<std::chrono::milliseconds> step_limit(const RunOptions& options);

/// Prints what went wrong to standard error, with the rank under a launcher. Returns the exit
/// status: 2 bad input, 1 failed run.
int report_failure(const std::exception_ptr& failure);

/// Trains, and on rank 0 prints a line per step and writes trace.json, metrics.jsonl and run.json.
void run_rank(const RunOptions& options);

struct ExecutablePlan {
  planner::Plan plan;
  runtime::Job job;
};
/// A Plan that can be executed by `processes` ranks. Throws Error that names the file if it was
/// edited, breaks a law, does not fit, has another number of ranks, or asks for what the runtime
/// does not do.
ExecutablePlan load_executable_plan(const std::filesystem::path& path, int processes);

/// Before the first op: every rank shows its digests, and all of them throw alike if one differs
/// from rank 0's (Error{InvalidInput} with the rank and both digests).
void agree_on_digests(const RankEnvironment& environment, const runtime::Job& job,
                      runtime::Store& store);

}  // namespace foresail::cli
