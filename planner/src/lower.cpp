#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device_memory.h"
#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "message_order.h"
#include "optimizer_offload.h"
#include "stage_lowering.h"
#include "stage_work.h"

namespace foresail::planner {
namespace {

using program::KernelListId;
using program::Pass;
using program::Program;

/// Costs are whole ticks, so that ties are exact. Costs of passes are whole twentieths of the
/// median chunk's forward: a smaller difference between stages must not decide in which order
/// messages go.
constexpr double kTicksPerStep = 50;
constexpr double kStepsPerForward = 20;
constexpr double kTicksPerForward = kTicksPerStep * kStepsPerForward;

double total_flops(const std::vector<Kernel>& kernels) {
  double flops = 0;
  for (const Kernel& kernel : kernels) flops += kernel.flops.count();
  return flops;
}

/// Passes cost what their FLOPs are worth, relative to the forward pass of the median chunk.
PassCosts pass_costs(const Plan& plan, const std::vector<StageWork>& stages) {
  std::vector<double> forwards;
  for (const StageWork& stage : stages) {
    for (const ChunkWork& chunk : stage.chunks) forwards.push_back(total_flops(chunk.forward));
  }
  const auto middle = forwards.begin() + static_cast<std::ptrdiff_t>(forwards.size() / 2);
  std::ranges::nth_element(forwards, middle);
  const double unit = *middle;
  const auto ticks = [&](const std::vector<Kernel>& kernels) {
    return std::max(1.0, std::round(total_flops(kernels) / unit * kStepsPerForward)) *
           kTicksPerStep;
  };
  PassCosts costs;
  costs.message = std::max(kTicksPerStep, std::round(plan.message_cost * kTicksPerForward));
  costs.blocking = !plan.layout.overlap.pp;
  for (const StageWork& stage : stages) {
    std::vector<double>& forward = costs.forward_of.emplace_back();
    std::vector<double>& backward = costs.backward_of.emplace_back();
    std::vector<double>& input = costs.backward_input_of.emplace_back();
    std::vector<double>& weight = costs.backward_weight_of.emplace_back();
    for (const ChunkWork& chunk : stage.chunks) {
      forward.push_back(ticks(chunk.forward));
      backward.push_back(ticks(chunk.backward));
      input.push_back(ticks(chunk.backward_input));
      weight.push_back(ticks(chunk.backward_weight));
    }
  }
  return costs;
}

/// Whether `order` runs that pass through that chunk.
bool has_pass(const PassOrder& order, Pass pass, std::size_t chunk) {
  return std::ranges::any_of(order, [&](const SchedulePass& at) {
    return at.pass == pass && static_cast<std::size_t>(at.chunk) == chunk;
  });
}

/// `add(name, kernels)` makes a list. Pieces of equal size share theirs.
template <class Add>
void add_offload_lists(const Plan& plan, const StageWork& work, const Add& add,
                       StageKernels& lists) {
  const OffloadKernels kernels = offload_kernels(plan, work);
  const auto add_if_any = [&](const Kernel& kernel,
                              const std::string& bucket) -> std::optional<KernelListId> {
    if (kernel.bytes == Bytes{}) return std::nullopt;
    return add(bucket + ".offload_gradients", {kernel});
  };
  for (std::size_t chunk = 0; chunk < kernels.gradients.size(); ++chunk) {
    lists.offload_gradients.push_back(
        add_if_any(kernels.gradients[chunk], fmt::format("stage{}.chunk{}", lists.stage, chunk)));
  }
  lists.offload_tied = add_if_any(kernels.tied_gradients, fmt::format("stage{}.tied", lists.stage));
  for (std::size_t piece = 0; piece < kernels.update.size(); ++piece) {
    const bool is_known = piece > 0 && kernels.update[piece] == kernels.update[piece - 1];
    lists.offload_update.push_back(
        is_known
            ? lists.offload_update.back()
            : add(fmt::format("stage{}.offload_update", lists.stage), {kernels.update[piece]}));
    lists.offload_parameters.push_back(
        is_known ? lists.offload_parameters.back()
                 : add(fmt::format("stage{}.offload_parameters", lists.stage),
                       {kernels.parameters[piece]}));
  }
}

/// The lists of the passes that `order` has.
StageKernels add_kernel_lists(const Plan& plan, const PassOrder& order, const StageWork& work,
                              Program& program) {
  const std::size_t stage = program.stages.size();
  const auto add = [&](std::string name, std::vector<Kernel> kernels) {
    program.kernel_lists.push_back({std::move(name), std::move(kernels)});
    return KernelListId{static_cast<std::uint32_t>(program.kernel_lists.size() - 1)};
  };
  StageKernels lists;
  lists.stage = stage;
  for (std::size_t chunk = 0; chunk < work.chunks.size(); ++chunk) {
    const std::string name = fmt::format("stage{}.chunk{}", stage, chunk);
    lists.forward.push_back(add(name + ".forward", work.chunks[chunk].forward));
    const auto add_if_run = [&](Pass pass, std::string_view what,
                                const std::vector<Kernel>& kernels) {
      if (!has_pass(order, pass, chunk)) return KernelListId{};
      return add(fmt::format("{}.{}", name, what), kernels);
    };
    const ChunkWork& of = work.chunks[chunk];
    lists.backward.push_back(add_if_run(Pass::Backward, "backward", of.backward));
    lists.backward_input.push_back(
        add_if_run(Pass::BackwardInput, "backward_input", of.backward_input));
    lists.backward_weight.push_back(
        add_if_run(Pass::BackwardWeight, "backward_weight", of.backward_weight));
  }
  std::vector<Kernel> update{optimizer_kernel(plan, work)};
  if (!norms_communicator(plan).empty() || !expert_norms_communicator(plan).empty()) {
    lists.apply = add(fmt::format("stage{}.apply", stage), {apply_kernel(plan, work)});
  } else if (plan.training.optimizer == program::Optimizer::Lamb) {
    update.push_back(apply_kernel(plan, work));
  }
  lists.optimizer = add(fmt::format("stage{}.optimizer", stage), std::move(update));
  if (plan.layout.optimizer_offload > 0) add_offload_lists(plan, work, add, lists);
  return lists;
}

}  // namespace

program::Program lower(const Plan& plan) {
  const int ranks = job_devices(plan);
  FORESAIL_EXPECT(check_laws(plan.model, plan.layout, plan.training, ranks).empty());
  const Schedule schedule = make_schedule(plan);
  const Communicators communicators(plan);
  Program program;
  program.grid = plan.layout.grid();
  if (plan.model.experts.count > 0) program.expert_grid = plan.layout.expert_grid();
  program.chunks = schedule.chunks;
  program.stage_map = schedule.stage_map;
  program.microbatches = schedule.microbatches;
  program.communicators = communicators.list();
  program.memory_limit = device_memory(plan.cluster);
  std::vector<StageWork> works;
  works.reserve(schedule.order.size());
  for (int stage = 0; stage < schedule.stages; ++stage) works.push_back(stage_work(plan, stage));
  std::vector<Message> messages;
  if (schedule.stages > 1) {
    messages = message_order(schedule, pass_costs(plan, works));
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const StageWork& work = works[static_cast<std::size_t>(stage)];
    const PassOrder& order = schedule.order[static_cast<std::size_t>(stage)];
    const StageKernels kernels = add_kernel_lists(plan, order, work, program);
    program.stages.push_back(
        lower_stage({plan, stage, work, kernels, communicators, schedule, messages}));
    program.memory.push_back(memory_need(plan, stage));
  }
  return program;
}

}  // namespace foresail::planner
