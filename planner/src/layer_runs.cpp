#include "layer_runs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "recompute_order.h"

namespace foresail::planner {
namespace {

using models::SavedTensor;

void add(std::vector<SavedTensor>& list, const std::vector<SavedTensor>& more, int times) {
  for (const SavedTensor& tensor : more) list.push_back({tensor.name, times * tensor.bytes});
}

/// At the last layer that ran again, and on the way back at every layer, all before it are there.
models::Work checkpoint_group(const std::vector<int>& kinds, const ModelParts& parts) {
  const auto at = [](const std::vector<models::Work>& works, int kind) -> const models::Work& {
    return works[static_cast<std::size_t>(kind)];
  };
  models::Work group;
  group.saved = at(parts.layers, kinds.front()).saved;
  group.forward_peak = at(parts.layers, kinds.front()).forward_peak;
  std::map<int, int> before;  // layers of each kind
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const models::Work& layer = at(parts.layers, kinds[i]);
    const models::Work& kept = at(parts.kept, kinds[i]);
    std::vector<SavedTensor> forward = layer.forward_peak;
    if (i > 0) add(forward, layer.saved, 1);  // the group's input beside this layer's
    if (models::sum(forward) > models::sum(group.forward_peak)) group.forward_peak = forward;
    std::vector<SavedTensor> backward;
    for (const auto& [kind, count] : before) add(backward, at(parts.kept, kind).saved, count);
    const bool is_forward = models::sum(kept.forward_peak) > models::sum(kept.backward_peak);
    add(backward, is_forward ? kept.forward_peak : kept.backward_peak, 1);
    if (models::sum(backward) > models::sum(group.backward_peak)) group.backward_peak = backward;
    ++before[kinds[i]];
  }
  for (const auto& [kind, count] : before) {
    add(group.retained, at(parts.layers, kind).retained, count);
  }
  return group;
}

/// Layers first to end, of which `works` are those of their kinds, as runs of equal ones.
void add_equal(int first, int end, const std::vector<models::Work>& works, const ModelParts& parts,
               std::vector<LayerRun>& runs) {
  for (int at = first; at < end; ++at) {
    const models::Work& work = works[parts.kind_of(at)];
    if (runs.empty() || runs.back().work != &work) runs.push_back({at, 0, 1, &work});
    ++runs.back().count;
  }
}

}  // namespace

void add_checkpoint_groups(const Recomputation& recompute, ModelParts& parts) {
  if (recompute.method != CheckpointMethod::Uniform) return;
  const int layers = static_cast<int>(parts.kind.size());
  for (int size = 2; size <= std::min(recompute.layers, layers); ++size) {
    for (int first = 0; first + size <= layers; ++first) {
      const auto begin = parts.kind.begin() + first;
      std::vector<int> kinds(begin, begin + size);
      if (parts.groups.contains(kinds)) continue;
      models::Work group = checkpoint_group(kinds, parts);
      parts.groups.emplace(std::move(kinds), std::move(group));
    }
  }
}

std::vector<LayerRun> layer_runs(const Plan& plan, const StagePart& part, const ModelParts& parts) {
  const Recomputation& recompute = plan.layout.recompute;
  std::vector<LayerRun> runs;
  if (!has_pieces(recompute)) {
    add_equal(part.first_layer, part.end_layer, parts.layers, parts, runs);
    return runs;
  }
  const int end = part.first_layer + recomputed_layers(plan.layout, part);
  const bool is_uniform = recompute.method == CheckpointMethod::Uniform;
  const int group = is_uniform ? recompute.layers : 1;
  for (int first = part.first_layer; first < end; first += group) {
    const int size = std::min(group, end - first);
    if (size == 1) {
      add_equal(first, first + 1, parts.layers, parts, runs);
      continue;
    }
    const auto begin = parts.kind.begin() + first;
    const models::Work& work = parts.groups.at(std::vector<int>(begin, begin + size));
    if (runs.empty() || runs.back().work != &work) runs.push_back({first, 0, size, &work});
    ++runs.back().count;
  }
  add_equal(end, part.end_layer, parts.kept, parts, runs);
  return runs;
}

}  // namespace foresail::planner
