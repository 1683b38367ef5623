/// \file
/// Writes the ops of one stage class.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foresail/planner/plan.h"
#include "foresail/program/program.h"
#include "message_order.h"
#include "stage_work.h"

namespace foresail::planner {

/// The communicators of a layout that have more than one member.
class Communicators {
 public:
  explicit Communicators(const Plan& plan);
  std::optional<program::CommunicatorId> find(std::string_view name) const;
  const std::vector<program::Communicator>& list() const { return list_; }

 private:
  void add_copies_of_experts(const Plan& plan);

  std::vector<program::Communicator> list_;
};

/// Whether every chunk has a copy on the stage pp - 1 - stage, so that gradients of both are
/// summed.
bool is_mirrored(const Plan& plan);
/// Of a stage and its mirror image: "mirror0" of the first and the last.
std::string mirror_name(const Plan& plan, int stage);

/// Kernel lists of one stage, by chunk; those of passes that it does not run stay unset.
struct StageKernels {
  std::size_t stage = 0;
  std::vector<program::KernelListId> forward, backward, backward_input, backward_weight;
  program::KernelListId optimizer{};
  std::optional<program::KernelListId> apply;  ///< where norms are summed in front of it
  /// Of optimizer states in host memory (OffloadKernels); unset where nothing crosses.
  std::vector<std::optional<program::KernelListId>> offload_gradients;  ///< by chunk
  std::optional<program::KernelListId> offload_tied;
  std::vector<program::KernelListId> offload_update, offload_parameters;  ///< by piece
};

/// All that one stage's lowering reads.
struct StageInput {
  const Plan& plan;
  int stage;
  const StageWork& work;
  const StageKernels& kernels;
  const Communicators& communicators;
  const Schedule& schedule;
  const std::vector<Message>& messages;  ///< of all stages, in their global order
};

program::StageProgram lower_stage(const StageInput& input);

}  // namespace foresail::planner
