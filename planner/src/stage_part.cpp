#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/models/operators.h"
#include "foresail/planner/plan.h"
#include "layout_laws.h"
#include "stage_work.h"

namespace foresail::planner {
namespace {

/// Smallest bucket of gradients in parameters: max(40 M, 1 M per rank) (Megatron-LM's default).
std::int64_t bucket_size_min(const Layout& layout) {
  return std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * layout.dp * layout.cp);
}

/// First layers of the buckets, in order. Gradients come last layer first, so buckets close from
/// the end, and what is left over in front is the first bucket.
std::vector<int> bucket_starts(const Plan& plan) {
  const Layout& layout = plan.layout;
  const int layers = plan.model.layers;
  std::vector<int> starts;
  const bool has_sync = std::int64_t{layout.dp} * layout.cp > 1 || expert_gradient_ranks(plan) > 1;
  if (has_sync && layout.zero_stage == 3) {
    for (int layer = 0; layer < layers; ++layer) starts.push_back(layer);
    return starts;
  }
  if (!has_sync || !layout.overlap.dp.any()) return {0};
  std::int64_t size = models::head_parameters(plan.model, layout.tp, false).total();
  for (int layer = layers - 1; layer > 0; --layer) {
    const models::RankParameters held = layer_parameters(plan, layer);
    size += held.total() + held.experts;
    if (size < bucket_size_min(layout)) continue;
    starts.push_back(layer);
    size = 0;
  }
  starts.push_back(0);
  std::ranges::reverse(starts);
  return starts;
}

}  // namespace

int chunk_count(const Plan& plan) {
  if (plan.layout.pp > 1) return plan.layout.v;
  return static_cast<int>(bucket_starts(plan).size());
}

StagePart stage_part(const Plan& plan, int stage, int chunk) {
  const int stages = plan.layout.pp;
  FORESAIL_EXPECT(stage >= 0 && stage < stages);
  FORESAIL_EXPECT(chunk >= 0);
  StagePart part;
  int parts = 0;
  int index = chunk;
  if (stages > 1) {
    const program::GlobalStages global = plan.layout.global_stages();
    FORESAIL_EXPECT(chunk < plan.layout.v);
    parts = global.count();
    index = global.of({stage, chunk});
    if (plan.layout.stages.is_even()) part.first_layer = index * (plan.model.layers / parts);
    for (int before = 0; !plan.layout.stages.is_even() && before < index; ++before) {
      part.first_layer += layers_of(plan.model, plan.layout, before);
    }
    part.end_layer = part.first_layer + layers_of(plan.model, plan.layout, index);
  } else {
    const std::vector<int> starts = bucket_starts(plan);
    parts = static_cast<int>(starts.size());
    FORESAIL_EXPECT(index < parts);
    const auto at = static_cast<std::size_t>(index);
    part.first_layer = starts[at];
    part.end_layer = at + 1 < starts.size() ? starts[at + 1] : plan.model.layers;
  }
  part.has_embedding = index == 0;
  part.has_head = index == parts - 1;
  return part;
}

}  // namespace foresail::planner
