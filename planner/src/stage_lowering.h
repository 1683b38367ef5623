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
  std::vector<program::Communicator> list_;
};

/// Kernel lists of one stage, by chunk.
struct StageKernels {
  std::vector<program::KernelListId> forward, backward;
  program::KernelListId optimizer{};
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
