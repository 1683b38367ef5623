#include "search_floor.h"

#include <algorithm>

#include "stage_work.h"

namespace foresail::planner {
namespace {

double gemm_flops(const std::vector<Kernel>& kernels) {
  double flops = 0;
  for (const Kernel& kernel : kernels) {
    const bool is_counted = kernel.kind == KernelKind::Gemm &&
                            !kernel.name.starts_with("attention.") &&
                            !kernel.name.starts_with("experts.");
    if (is_counted) flops += kernel.flops.count();
  }
  return flops;
}

double gemm_flops(const models::Work& work) {
  return gemm_flops(work.forward) + gemm_flops(work.backward);
}

}  // namespace

double step_floor(const SearchProblem& problem, int gpus) {
  Plan plan = problem.base;
  plan.layout = {};
  const topologies::DeviceSpec& device = plan.cluster.device;
  const topologies::CostConstants& constants = device.constants;
  const double share =
      std::max({1.0, constants.gemm_16, constants.gemm_8, constants.gemm_32});  // if fitted above 1
  const double peak = share * std::max({device.peak_16.per_second(), device.peak_8.per_second(),
                                        device.peak_32.per_second()});
  if (peak <= 0) return 0;
  const ModelParts parts = model_parts(plan);
  double flops = gemm_flops(parts.embedding) + gemm_flops(parts.head);
  for (int layer = 0; layer < plan.model.layers; ++layer) flops += gemm_flops(parts.layer(layer));
  constexpr double kSlack = 1 - 1e-6;  // roundings to picoseconds
  return kSlack * flops * static_cast<double>(plan.training.global_batch_size) / (gpus * peak);
}

}  // namespace foresail::planner
