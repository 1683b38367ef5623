/// \file
/// `simulate`: the whole answer to one scenario.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "foresail/planner/plan.h"
#include "foresail/program/profile.h"
#include "foresail/program/program.h"
#include "foresail/program/trace.h"
#include "foresail/report/result.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {

struct SimulateOptions {
  sim::Fidelity fidelity = sim::Fidelity::Flow;
  sim::Fold fold = sim::Fold::Auto;
  std::optional<std::uint64_t> seed;          ///< of hashing; the plan's own unless given
  const program::Profile* profile = nullptr;  ///< not owned
  sim::TraceRanks trace_ranks;
  bool keeps_all_links = false;            ///< Answer::links
  const Conditions* conditions = nullptr;  ///< not owned; null: an idle, healthy cluster

  /// What they share with a prediction.
  PredictOptions prediction() const {
    return {.fidelity = fidelity, .fold = fold, .profile = profile, .conditions = conditions};
  }
};

struct Answer {
  planner::Feasibility feasibility;
  /// Nothing if laws are broken. A plan that does not fit its memory is simulated all the same, and
  /// `feasibility` says that it cannot run.
  /// Nothing either if the job fails on a fault.
  std::optional<report::StepResult> result;
  std::string failure;               ///< why the job fails, and when; empty if it does not
  std::vector<sim::LinkLoad> links;  ///< of all links that carried anything, if asked for
  program::Program program;
  program::Trace trace;  ///< predicted, with digests
};

Answer simulate(const planner::Plan& plan, const SimulateOptions& options);

/// Fills in tokens/s, MFU and their kin from `result.iteration_time`.
void set_rates(const planner::Plan& plan, const program::Program& program,
               report::StepResult& result);

/// Result of a measured Trace of the same Plan: what `run` reports.
report::StepResult measured_result(const planner::Plan& plan, const program::Program& program,
                                   const program::Trace& trace);

/// Why a plan cannot run, one reason a line; empty if it can.
std::string reasons(const planner::Feasibility& feasibility);

/// The version of Foresail ("0.1.0").
std::string version();

}  // namespace foresail::scenarios
