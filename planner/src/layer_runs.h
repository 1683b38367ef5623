/// \file
/// The layers of a chunk as runs of equal parts: what they keep and hold, not what they run.
#pragma once

#include <map>
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

/// For every size up to that of `recompute`: what so many layers hold if they keep the input of the
/// first alone and are made again together (CheckpointMethod::Uniform). `layer`: one that does so
/// alone; `kept`: one that keeps all. Kernels are left out.
std::map<int, models::Work> checkpoint_groups(const Recomputation& recompute,
                                              const models::Work& layer, const models::Work& kept);

}  // namespace foresail::planner
