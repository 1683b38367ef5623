#include <algorithm>
#include <map>

#include "foresail/base/error.h"
#include "foresail/scenarios/what_if.h"
#include "foresail/sim/compute_cost.h"
#include "foresail/sim/kernel_cost.h"

namespace foresail::scenarios {
namespace {

// A kernel on two roofs joined by a p-norm (p = 4) is bound by memory if that roof is the higher:
// memory > total / 2^(1/4).
constexpr double kHigherRoof = 0.8409;

bool is_bound_by_memory(const Kernel& kernel, const topologies::DeviceSpec& judge) {
  const double memory = sim::memory_seconds(kernel, judge);
  if (kernel.kind == KernelKind::Gemm) {
    return memory > kHigherRoof * sim::gemm_seconds(kernel, judge);
  }
  if (kernel.kind == KernelKind::Attention) {
    return memory > kHigherRoof * sim::attention_seconds(kernel, judge);
  }
  return true;
}

std::string subject_of(const Kernel& kernel) {
  const std::string& name = kernel.name;
  if (name.ends_with(".recompute")) return "recomputation";
  // Unfused attention is GEMMs and pointwise kernels.
  if (name.starts_with("attention") || name.starts_with("softmax")) return "attention";
  if (name == "head" || name.starts_with("head.")) return "output layer";
  switch (kernel.kind) {
    case KernelKind::Gemm:
      return "gemm";
    case KernelKind::Attention:
      return "attention";
    case KernelKind::Norm:
      return "norm";
    case KernelKind::Embedding:
      return "embedding";
    case KernelKind::CrossEntropy:
      return "loss";
    case KernelKind::Elementwise:
    case KernelKind::Optimizer:
    case KernelKind::Collective:
    case KernelKind::HostCopy:
    case KernelKind::HostOptimizer:
      break;
  }
  return "elementwise";
}

/// Whether a pass runs such kernels on its device.
bool is_of_pass(KernelKind kind) {
  return kind != KernelKind::Collective && kind != KernelKind::HostCopy &&
         kind != KernelKind::HostOptimizer;
}

using Seconds = std::map<std::string, double>;

Seconds list_seconds(const std::vector<Kernel>& kernels, const sim::ComputeCost& cost,
                     const topologies::DeviceSpec& judge) {
  Seconds seconds;
  for (const Kernel& kernel : kernels) {
    if (!is_of_pass(kernel.kind)) continue;
    const std::string_view roof = is_bound_by_memory(kernel, judge) ? " (memory)" : " (FLOPs)";
    seconds[subject_of(kernel) + std::string(roof)] += to_seconds(cost.kernel(kernel));
  }
  return seconds;
}

// Mean over the stages, which have equally many ranks each.
Seconds kernel_seconds(const program::Program& program, const sim::ComputeCost& cost,
                       const topologies::DeviceSpec& judge) {
  std::vector<Seconds> lists;
  for (const program::KernelList& list : program.kernel_lists) {
    lists.push_back(list_seconds(list.kernels, cost, judge));
  }
  Seconds sum;
  for (const program::StageProgram& stage : program.stages) {
    for (const program::Op& op : stage.ops) {
      if (op.kind != program::OpKind::Compute || op.pass == program::Pass::Optimizer) continue;
      for (const auto& [cause, seconds] : lists[op.kernels.value]) {
        sum[cause] += seconds / static_cast<double>(program.stages.size());
      }
    }
  }
  return sum;
}

}  // namespace

std::vector<StepPart> step_parts(const planner::Plan& plan, const program::Program& program,
                                 const report::StepResult& result,
                                 const topologies::DeviceSpec& judge,
                                 const program::Profile* profile) {
  const sim::ComputeCost cost(plan.cluster.device, profile, sim::host_share(plan.cluster.node));
  const double pace =
      topologies::slowest_pace(plan.cluster.device.constants, planner::job_nodes(plan));
  std::vector<StepPart> parts;
  double beyond = to_seconds(result.breakdown.compute);
  double slowest = 0;
  for (const auto& [cause, seconds] : kernel_seconds(program, cost, judge)) {
    parts.push_back({cause, seconds});
    slowest += seconds * (pace - 1);
    beyond -= seconds * pace;
  }
  if (slowest > 0) parts.push_back({"pace of the slowest node", slowest});
  const report::Breakdown& rest = result.breakdown;
  parts.push_back({"beside communication and host", beyond});
  for (const auto& [cause, time] :
       {std::pair{"tp exposed", rest.tp_exposed}, std::pair{"cp exposed", rest.cp_exposed},
        std::pair{"ep exposed", rest.ep_exposed}, std::pair{"pp exposed", rest.pp_exposed},
        std::pair{"dp exposed", rest.dp_exposed}, std::pair{"bubble", rest.bubble},
        std::pair{"optimizer", rest.optimizer}, std::pair{"data", rest.data},
        std::pair{"other", rest.other}}) {
    parts.push_back({cause, to_seconds(time)});
  }
  return parts;
}

}  // namespace foresail::scenarios
