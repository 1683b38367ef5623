#include "layer_runs.h"

#include <algorithm>

#include "recompute_order.h"

namespace foresail::planner {
namespace {

using models::SavedTensor;

void add(std::vector<SavedTensor>& list, const std::vector<SavedTensor>& more, int times) {
  for (const SavedTensor& tensor : more) list.push_back({tensor.name, times * tensor.bytes});
}

/// The last layer of the group has all before it there, in its second forward pass and in its
/// backward pass.
models::Work checkpoint_group(int layers, const models::Work& layer, const models::Work& kept) {
  models::Work group;
  group.saved = layer.saved;
  add(group.retained, layer.retained, layers);
  group.forward_peak = layer.forward_peak;
  add(group.forward_peak, layer.saved, 1);  // the group's input beside the last layer's
  add(group.backward_peak, kept.saved, layers - 1);
  const bool is_forward = models::sum(kept.forward_peak) > models::sum(kept.backward_peak);
  add(group.backward_peak, is_forward ? kept.forward_peak : kept.backward_peak, 1);
  return group;
}

std::vector<LayerRun> equal_layers(const StagePart& part, const ModelParts& parts) {
  std::vector<LayerRun> runs;
  for (int at = part.first_layer; at < part.end_layer; ++at) {
    const models::Work& work = parts.layer(at);
    if (runs.empty() || runs.back().work != &work) runs.push_back({at, 0, 1, &work});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace

std::map<int, models::Work> checkpoint_groups(const Recomputation& recompute,
                                              const models::Work& layer, const models::Work& kept) {
  std::map<int, models::Work> groups;
  if (recompute.method != CheckpointMethod::Uniform) return groups;
  for (int layers = 2; layers <= recompute.layers; ++layers) {
    groups.emplace(layers, checkpoint_group(layers, layer, kept));
  }
  return groups;
}

std::vector<LayerRun> layer_runs(const Plan& plan, const StagePart& part, const ModelParts& parts) {
  const Recomputation& recompute = plan.layout.recompute;
  if (!has_pieces(recompute)) return equal_layers(part, parts);
  std::vector<LayerRun> runs;
  int at = part.first_layer;
  const auto add_run = [&](int count, int layers, const models::Work& work) {
    if (count > 0 && layers > 0) runs.push_back({at, count, layers, &work});
    at += count * layers;
  };
  const int again = recomputed_layers(plan.layout, part);
  const bool is_uniform = recompute.method == CheckpointMethod::Uniform;
  const int group = is_uniform ? recompute.layers : 1;
  const auto work_of = [&](int layers) -> const models::Work& {
    return layers < 2 ? parts.layers.front() : parts.groups.at(layers);
  };
  add_run(again / group, group, work_of(group));
  add_run(1, again % group, work_of(again % group));
  add_run(part.end_layer - part.first_layer - again, 1, parts.kept);
  return runs;
}

}  // namespace foresail::planner
