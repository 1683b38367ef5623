#include "foresail/scenarios/predict.h"

#include <fmt/format.h>

#include <algorithm>

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
  const program::Program program = planner::lower(plan);
  const topologies::Cluster cluster(plan.cluster);
  const sim::Simulator simulator(cluster, simulator_options(plan, {}));
  const RankId first{0};
  for (const program::Op& op : program.stages.front().ops) {
    if (op.kind != program::OpKind::Send) continue;
    double forward = 0;
    for (const Kernel& kernel : program.kernel_lists.front().kernels) {
      if (kernel.kind == KernelKind::Collective) continue;
      forward += to_seconds(simulator.kernel(kernel, plan.placement.device_of[first]));
    }
    const DeviceId to = plan.placement.device_of[program.peer(first, op.peer_stage)];
    const double message =
        to_seconds(simulator.message(op.bytes, plan.placement.device_of[first], to));
    const double cost = std::max(planner::kMessageCostMin, message / forward);
    plan.message_cost = std::stod(fmt::format("{:.3g}", cost));
    return;
  }
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
