/// \file
/// Optimizer states that stay in host memory: how much, and the ops that step them there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foresail/planner/plan.h"
#include "foresail/program/program.h"
#include "stage_work.h"

namespace foresail::planner {

/// Parameters of the buckets of one stage whose states this rank steps (its shards).
struct SteppedParameters {
  std::vector<std::int64_t> chunks;  ///< with the chunk's experts
  std::int64_t tied = 0;
  std::int64_t sum() const;
};
SteppedParameters stepped_parameters(const Plan& plan, const StageWork& work);

/// Those of them whose states are in host memory: layout.optimizer_offload of every bucket, rounded
/// down.
SteppedParameters offloaded_parameters(const Plan& plan, const StageWork& work);

/// Bytes of host memory that one rank of the stage needs: fp32 parameters and two moments, the
/// gradients that have come, and the parameters that go back.
Bytes host_need(const Plan& plan, const StageWork& work);

/// Feasibility::out_of_memory for host memory: the devices of a node, all with the fullest stage's
/// states. Empty if it fits, or nothing is offloaded.
std::string describe_host_excess(const Plan& plan, Bytes fullest);

/// The host's kernels of one stage. Gradients cross by bucket; the update and the parameters' way
/// back go piece by piece, so that a piece crosses while the next is updated (DeepSpeed's CPU Adam:
/// tiles of 128 Mi parameters).
struct OffloadKernels {
  std::vector<Kernel> gradients;  ///< by chunk; nothing crosses where bytes are 0
  Kernel tied_gradients;
  std::vector<Kernel> update, parameters;  ///< by piece
};
OffloadKernels offload_kernels(const Plan& plan, const StageWork& work);

}  // namespace foresail::planner
