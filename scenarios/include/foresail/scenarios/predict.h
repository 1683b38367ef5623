/// \file
/// Plan -> Program -> simulated step: the one path that simulate, validate and the fitter share.
#pragma once

#include "foresail/planner/plan.h"
#include "foresail/program/profile.h"
#include "foresail/program/program.h"
#include "foresail/scenarios/conditions.h"
#include "foresail/sim/simulator.h"
#include "foresail/topologies/cluster.h"

namespace foresail::scenarios {

struct PredictOptions {
  sim::Fidelity fidelity = sim::Fidelity::Flow;
  sim::Fold fold = sim::Fold::Auto;
  const program::Profile* profile = nullptr;  ///< not owned
  const Conditions* conditions = nullptr;     ///< not owned; null: an idle, healthy cluster
};

/// The simulator's options that a Plan determines, joined with those of the caller.
sim::SimulatorOptions simulator_options(const planner::Plan& plan, const PredictOptions& options);

struct Prediction {
  program::Program program;
  sim::StepOutcome outcome;
};

/// Lowers, verifies and simulates one step. Requires a plan without broken laws. Throws
/// ContractViolation if the verifier refuses the Program (memory aside).
Prediction predict(const planner::Plan& plan, const PredictOptions& options);

/// One step of an already lowered plan, with the other jobs of `conditions` (may be null).
sim::StepOutcome simulate_jobs(const planner::Plan& plan, const program::Program& program,
                               const topologies::Cluster& cluster,
                               const sim::SimulatorOptions& options, const Conditions* conditions);

/// Sets plan.message_cost to the predicted time of a stage's message over that of a chunk's
/// forward, both on an idle cluster, to three digits; plans that break laws or have one stage keep
/// theirs.
void set_message_cost(planner::Plan& plan);

/// Lowers and verifies; throws as predict does.
program::Program lower_verified(const planner::Plan& plan);

}  // namespace foresail::scenarios
