#include "foresail/scenarios/predict.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/planner/search.h"
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
  if (options.conditions != nullptr) {
    made.jitter = options.conditions->jitter;
    made.faults = options.conditions->faults;
    made.traffic = options.conditions->traffic;
  }
  return made;
}

void set_message_cost(planner::Plan& plan) {
  const int ranks = planner::job_devices(plan);
  if (!planner::check_laws(plan.model, plan.layout, plan.training, ranks).empty()) return;
  if (plan.layout.pp == 1) return;
  const topologies::Cluster cluster(plan.cluster);
  const sim::Simulator simulator(cluster, simulator_options(plan, {}));
  plan.message_cost = planner::message_cost(plan, simulator);
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
  prediction.outcome = simulate_jobs(plan, prediction.program, cluster,
                                     simulator_options(plan, options), options.conditions);
  return prediction;
}

sim::StepOutcome simulate_jobs(const planner::Plan& plan, const program::Program& program,
                               const topologies::Cluster& cluster,
                               const sim::SimulatorOptions& options, const Conditions* conditions) {
  std::vector<sim::Job> jobs = {{&program, &plan.placement}};
  std::vector<program::Program> others;
  if (conditions != nullptr) {
    others.reserve(conditions->jobs.size());
    for (const OtherJob& other : conditions->jobs) {
      others.push_back(lower_verified(other.plan));
      jobs.push_back({&others.back(), &other.plan.placement, other.at, other.repeats});
    }
  }
  return sim::Simulator(cluster, options).run(jobs);
}

}  // namespace foresail::scenarios
