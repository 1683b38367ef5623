/// \file
/// The layers of a chunk as runs of equal parts: what they keep and hold, not what they run.
#pragma once

#include <vector>

#include "foresail/planner/plan.h"
#include "stage_work.h"

namespace foresail::planner {

/// `count` equal parts, each of `layers` layers that keep and hold tensors together.
struct LayerRun {
  int first_layer = 0;
  int count = 1;
  int layers = 1;
  const models::Work* work = nullptr;
};

/// In the order of the forward pass; the Work lies in `parts`.
std::vector<LayerRun> layer_runs(const Plan& plan, const StagePart& part, const ModelParts& parts);

/// Fills ModelParts::groups with all runs of up to `recompute`'s layers, wherever a chunk may
/// begin: what they hold if they keep the input of the first alone and are made again together
/// (CheckpointMethod::Uniform). Requires kinds, layers and kept; kernels are left out.
void add_checkpoint_groups(const Recomputation& recompute, ModelParts& parts);

}  // namespace foresail::planner
