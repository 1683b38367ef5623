// Who talks to whom: the communicators of a layout.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stage_lowering.h"

namespace foresail::planner {
namespace {

/// Stages that hold the word matrix: with the embedding, the head or both.
std::vector<int> embedding_stages(const Plan& plan) {
  std::vector<int> stages;
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    bool is_holder = false;
    for (int chunk = 0; chunk < chunk_count(plan); ++chunk) {
      const StagePart part = stage_part(plan, stage, chunk);
      is_holder = is_holder || part.has_embedding || part.has_head;
    }
    if (is_holder) stages.push_back(stage);
  }
  return stages;
}

}  // namespace

bool is_mirrored(const Plan& plan) {
  return plan.layout.stage_map() == program::StageMap::Mirrored;
}

std::string mirror_name(const Plan& plan, int stage) {
  return "mirror" + std::to_string(std::min(stage, plan.layout.pp - 1 - stage));
}

Communicators::Communicators(const Plan& plan) {
  using program::Axis;
  const int stages = plan.layout.pp;
  const auto members_of = [](const program::RankGrid& grid, program::AxisSet axes) {
    std::int64_t members = 1;
    for (int axis = 0; axis < program::kAxisCount; ++axis) {
      const auto at = static_cast<Axis>(axis);
      if (axes.has(at)) members *= grid.size(at);
    }
    return members;
  };
  const auto add = [&](std::string name, program::AxisSet axes, std::vector<int> only) {
    if (members_of(plan.layout.grid(), axes) == 1) return;
    list_.push_back({std::move(name), axes, std::move(only)});
  };
  const auto add_of_experts = [&](std::string name, program::AxisSet axes) {
    if (members_of(plan.layout.expert_grid(), axes) == 1) return;
    list_.push_back({std::move(name), axes, {}, program::GridKind::Expert});
  };
  add("tp", {Axis::Tp}, {});
  add("cp", {Axis::Cp}, {});
  if (plan.layout.has_copies_of_shards()) {
    const int size = plan.layout.shard_ranks();
    const program::AxisSet axes{Axis::Dp, Axis::Cp};
    list_.push_back(
        {.name = "shard", .axes = axes, .stages = {}, .cut = {program::Cut::Kind::Within, size}});
    list_.push_back(
        {.name = "replica", .axes = axes, .stages = {}, .cut = {program::Cut::Kind::Across, size}});
  } else {
    add("dp", {Axis::Dp, Axis::Cp}, {});
  }
  if (plan.model.experts.count > 0) {
    add_of_experts("etp", {Axis::Tp});
    add_of_experts("ep", {Axis::Ep});
    const bool has_both = plan.layout.ep > 1 && plan.layout.expert_tp() > 1;
    if (has_both) add_of_experts("etp_ep", {Axis::Tp, Axis::Ep});
    add_copies_of_experts(plan);
  }
  add("pp", {Axis::Pp}, {});
  if (stages > 1 && has_embedding_bucket(plan)) {
    const std::vector<int> holders = embedding_stages(plan);
    if (holders.size() > 1) add("embedding", {Axis::Pp}, holders);
  }
  for (int stage = 0; is_mirrored(plan) && stage < stages / 2; ++stage) {
    add(mirror_name(plan, stage), {Axis::Pp}, {stage, stages - 1 - stage});
  }
  if (norms_communicator(plan) == "norms") add("norms", {Axis::Tp, Axis::Cp, Axis::Dp}, {});
  if (expert_norms_communicator(plan) == "expert_norms") {
    add_of_experts("expert_norms", {Axis::Tp, Axis::Dp});
  }
  add("world", {Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp, Axis::Pp}, {});
}

/// Who reduces gradients of experts; in groups, who shards them and who holds the same shard.
void Communicators::add_copies_of_experts(const Plan& plan) {
  using program::Axis;
  const int copies = expert_gradient_ranks(plan);
  const int shared = expert_shard_ranks(plan);
  if (copies == 1) return;
  const auto add = [&](const char* name, program::Cut cut) {
    list_.push_back({.name = name,
                     .axes = {Axis::Dp},
                     .stages = {},
                     .grid = program::GridKind::Expert,
                     .cut = cut});
  };
  if (shared == copies) return add("edp", {});
  if (shared > 1) add("expert_shard", {program::Cut::Kind::Within, shared});
  add("expert_replica", {program::Cut::Kind::Across, shared});
}

std::optional<program::CommunicatorId> Communicators::find(std::string_view name) const {
  for (std::size_t at = 0; at < list_.size(); ++at) {
    if (list_[at].name == name) return program::CommunicatorId{static_cast<std::uint32_t>(at)};
  }
  return std::nullopt;
}

}  // namespace foresail::planner
