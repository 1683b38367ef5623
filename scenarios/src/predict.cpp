#include "foresail/scenarios/predict.h"

#include "foresail/base/error.h"
#include "foresail/program/verifier.h"

namespace foresail::scenarios {

sim::SimulatorOptions simulator_options(const planner::Plan& plan, const PredictOptions& options) {
  sim::SimulatorOptions made;
  made.fidelity = options.fidelity;
  made.fold = options.fold;
  made.network = plan.network;
  made.seed = plan.seed;
  made.host_per_kernel = plan.stack.host_per_kernel;
  made.profile = options.profile;
  return made;
}

program::Program lower_verified(const planner::Plan& plan) {
  program::Program program = planner::lower(plan);
  for (const program::Violation& violation : program::verify(program)) {
    if (violation.rule == program::Violation::Rule::Memory) continue;  // an answer, not a bug
    throw ContractViolation("the lowered program breaks a rule: " + violation.message);
  }
  return program;
}

Prediction predict(const planner::Plan& plan, const PredictOptions& options) {
  Prediction prediction;
  prediction.program = lower_verified(plan);
  const topologies::Cluster cluster(plan.cluster);
  const sim::Simulator simulator(cluster, simulator_options(plan, options));
  prediction.outcome = simulator.run(prediction.program, plan.placement);
  return prediction;
}

}  // namespace foresail::scenarios
