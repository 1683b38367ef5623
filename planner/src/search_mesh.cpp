#include "search_mesh.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "recompute_order.h"

namespace foresail::planner {
namespace {

using program::Axis;
using program::AxisSet;
using program::RankGrid;

// Flows above this size share links in the simulator; smaller ones each see an idle network.
constexpr std::int64_t kSharedBytes = 65536;
constexpr std::int64_t kLeastFlows = 16;  // that a collective may be cut into, on small nodes
constexpr Bytes kScalarBytes(8);

bool is_split(const Layout& layout) {
  return layout.pp > 1 && layout.has_split_backward();
}

RankId first_of(const RankGrid& grid, int stage) {
  program::Coordinates at{};
  at[static_cast<std::size_t>(Axis::Pp)] = stage;
  return grid.rank(at);
}

std::vector<DeviceId> devices_of(const Plan& plan, const std::vector<RankId>& ranks) {
  std::vector<DeviceId> devices;
  devices.reserve(ranks.size());
  for (const RankId rank : ranks) devices.push_back(plan.placement.device_of[rank]);
  return devices;
}

// The groups of all stages that may differ in price. Where nothing is wired by hand, groups within
// a node cost the same on the same places of their nodes.
std::vector<std::vector<DeviceId>> distinct_groups(const Plan& plan, const RankGrid& grid,
                                                   AxisSet axes) {
  std::vector<std::vector<DeviceId>> groups;
  std::set<std::vector<std::uint32_t>> seen;
  const auto per_node = static_cast<std::uint32_t>(plan.cluster.node.devices);
  const bool is_regular = plan.cluster.wiring == topologies::Wiring{};
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    const auto devices = devices_of(plan, grid.group(first_of(grid, stage), axes));
    if (devices.size() < 2) return {};
    const std::uint32_t node = devices.front().value / per_node;
    const bool is_inside = std::ranges::all_of(
        devices, [&](DeviceId device) { return device.value / per_node == node; });
    std::vector<std::uint32_t> places;
    for (const DeviceId device : devices) {
      places.push_back(is_regular && is_inside ? device.value % per_node : device.value);
    }
    if (seen.insert(std::move(places)).second) groups.push_back(devices);
  }
  return groups;
}

}  // namespace

MeshCost::MeshCost(const Plan& plan, const program::CostModel& cost)
    : cost_(cost),
      placement_(plan.placement),
      shared_below_(4 * kSharedBytes *
                    std::max<std::int64_t>(kLeastFlows, plan.cluster.node.devices) *
                    plan.network.qps_per_connection) {
  const RankGrid grid = plan.layout.grid();
  tp_ = distinct_groups(plan, grid, {Axis::Tp});
  groups_["tp"] = tp_;
  groups_["cp"] = distinct_groups(plan, grid, {Axis::Cp});
  const int stages = plan.layout.pp;
  if (plan.model.experts.count > 0) {
    const RankGrid experts = plan.layout.expert_grid();
    groups_["etp"] = distinct_groups(plan, experts, {Axis::Tp});
    groups_["ep"] = distinct_groups(plan, experts, {Axis::Ep});
    groups_["etp_ep"] = distinct_groups(plan, experts, {Axis::Tp, Axis::Ep});
    for (int stage = 0; stage < stages; ++stage) {
      edp_.of_stage.push_back(experts.group(first_of(experts, stage), {Axis::Dp}));
    }
  }
  const auto device = [&](int stage) { return plan.placement.device_of[first_of(grid, stage)]; };
  for (int stage = 0; stage < stages; ++stage) {
    dp_.of_stage.push_back(grid.group(first_of(grid, stage), {Axis::Dp, Axis::Cp}));
    const DeviceId next = device((stage + 1) % stages);
    if (stages > 1) neighbours_.emplace_back(device(stage), next);
    if (stages > 1) neighbours_.emplace_back(next, device(stage));
  }
  embedding_ = {device(0), device(stages - 1)};
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    world_.push_back(plan.placement.device_of[RankId{static_cast<std::uint32_t>(rank)}]);
  }
  nodes_ = job_nodes(plan);
}

double MeshCost::kernel(const Kernel& kernel) const {
  if (kernel.kind != KernelKind::Collective) {
    return to_seconds(cost_.kernel(kernel, nodes_));
  }
  return least(program::communicator_of(kernel), kernel.collective, kernel.bytes);
}

double MeshCost::least(std::string_view communicator, Collective kind, Bytes bytes) const {
  const auto [known, is_new] =
      least_known_.try_emplace({std::string(communicator), kind, bytes.count()}, 0.0);
  if (!is_new) return known->second;
  const std::vector<Devices>& groups = groups_.find(communicator)->second;
  double best = groups.empty() ? 0 : std::numeric_limits<double>::infinity();
  for (const Devices& devices : groups) {
    best = std::min(best, to_seconds(cost_.collective(kind, bytes, devices)));
  }
  known->second = best;
  return best;
}

double MeshCost::message(Bytes bytes) {
  if (neighbours_.empty()) return 0;
  const auto [known, is_new] = messages_.try_emplace(bytes.count(), 0.0);
  if (is_new) {
    known->second = std::numeric_limits<double>::infinity();
    for (const auto& [from, to] : neighbours_) {
      known->second = std::min(known->second, to_seconds(cost_.message(bytes, from, to)));
    }
  }
  return known->second;
}

// A collective is cut into flows; those below 64 KiB do not share links in the simulator, so the
// price of all of them on shared links would not be a bound. Then only the latency counts.
double MeshCost::free_of_sharing(Collective kind, Bytes bytes, const Devices& devices) const {
  if (devices.size() < 2 || bytes.count() == 0) return 0;
  const bool is_small = bytes.count() > kSharedBytes && bytes.count() < shared_below_;
  return to_seconds(cost_.collective(kind, is_small ? kScalarBytes : bytes, devices));
}

double MeshCost::in_part(Groups& groups, int stage, const program::Cut& cut, Collective kind,
                         Bytes bytes) {
  const auto [known, is_new] =
      groups.known.try_emplace({stage, cut.kind, cut.size, kind, bytes.count()}, 0.0);
  if (!is_new) return known->second;
  const auto [part, is_new_part] = groups.parts.try_emplace({stage, cut.kind, cut.size});
  if (is_new_part) {
    const std::vector<RankId>& members = groups.of_stage[static_cast<std::size_t>(stage)];
    for (const RankId rank : program::part_of(cut, members, members.front())) {
      part->second.push_back(placement_.device_of[rank]);
    }
  }
  known->second = free_of_sharing(kind, bytes, part->second);
  return known->second;
}

double MeshCost::dp(int stage, const program::Cut& cut, Collective kind, Bytes bytes) {
  return in_part(dp_, stage, cut, kind, bytes);
}

double MeshCost::edp(int stage, const program::Cut& cut, Collective kind, Bytes bytes) {
  return in_part(edp_, stage, cut, kind, bytes);
}

double MeshCost::embedding(Bytes bytes) {
  if (neighbours_.empty()) return 0;
  const auto [known, is_new] = embedding_known_.try_emplace(bytes.count(), 0.0);
  if (is_new) known->second = free_of_sharing(Collective::AllReduce, bytes, embedding_);
  return known->second;
}

double MeshCost::mirror(int stage, Bytes bytes) {
  const auto at = static_cast<std::size_t>(stage);
  const auto device = [&](std::size_t of) {
    return placement_.device_of[dp_.of_stage[of].front()];
  };
  return free_of_sharing(Collective::AllReduce, bytes,
                         {device(at), device(dp_.of_stage.size() - 1 - at)});
}

double MeshCost::tp(Bytes bytes) {
  const auto [known, is_new] = tp_known_.try_emplace(bytes.count(), 0.0);
  if (!is_new) return known->second;
  double best = tp_.empty() ? 0 : std::numeric_limits<double>::infinity();
  for (const Devices& devices : tp_) {
    best = std::min(best, free_of_sharing(Collective::AllReduce, bytes, devices));
  }
  known->second = best;
  return best;
}

double MeshCost::scalars() {
  if (scalars_ < 0) scalars_ = free_of_sharing(Collective::AllReduce, kScalarBytes, world_);
  return scalars_;
}

ShapeCache::Key ShapeCache::key_of(const Plan& plan) {
  const Layout& layout = plan.layout;
  const bool has_buckets = layout.pp == 1 && layout.overlap.dp.any();
  const bool has_layers = layout.pp == 1 && layout.zero_stage == 3;
  return {{layout.microbatch_size, layout.sequence_parallel, layout.recompute, layout.overlap.tp},
          {layout.v, layout.stages, has_buckets, has_layers, layout.stage_map(), is_split(layout)}};
}

ShapeCache::SplitParts& ShapeCache::parts(const Plan& plan) {
  const auto [split, is_new] = splits_.try_emplace(key_of(plan).first);
  if (!is_new) return split->second;
  ModelParts& sizes = split->second.sizes;
  sizes = model_parts(plan);
  const auto forget_kernels = [](models::Work& work) {
    work.forward = {};
    work.backward = {};
  };
  for (models::Work& layer : sizes.layers) forget_kernels(layer);
  forget_kernels(sizes.embedding);
  forget_kernels(sizes.head);
  for (models::Work& layer : sizes.kept) forget_kernels(layer);
  sizes.again.clear();
  sizes.again_last.clear();
  return split->second;
}

const PlanShape& ShapeCache::sizes(const Plan& plan) {
  const auto [entry, is_new] = shapes_.try_emplace(key_of(plan));
  PlanShape& made = entry->second;
  if (!is_new) return made;
  const ModelParts& sizes = parts(plan).sizes;
  using ChunkKind = std::tuple<std::vector<int>, int, bool, bool>;
  std::map<std::vector<ChunkKind>, std::size_t> known;
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    std::vector<ChunkKind> parts_of_stage;
    for (int chunk = 0; chunk < chunk_count(plan); ++chunk) {
      const StagePart part = stage_part(plan, stage, chunk);
      parts_of_stage.emplace_back(std::vector<int>(sizes.kind.begin() + part.first_layer,
                                                   sizes.kind.begin() + part.end_layer),
                                  recomputed_layers(plan.layout, part), part.has_embedding,
                                  part.has_head);
    }
    const auto [kind, is_first] = known.emplace(std::move(parts_of_stage), made.kinds.size());
    made.kind_of.push_back(kind->second);
    if (!is_first) continue;
    made.kinds.emplace_back().work = stage_work(plan, stage, sizes, KernelLists::LeftOut);
  }
  return made;
}

const PlanShape& ShapeCache::shape(const Plan& plan) {
  sizes(plan);
  PlanShape& made = shapes_.at(key_of(plan));
  if (made.is_timed) return made;
  SplitParts& split = parts(plan);
  price(plan, is_split(plan.layout) ? Backward::Split : Backward::Whole, split);
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    StageShape& kind = made.kinds[made.kind_of[static_cast<std::size_t>(stage)]];
    if (kind.forward.empty()) add_times(plan, stage, split, kind);
  }
  made.is_timed = true;
  return made;
}

void ShapeCache::price(const Plan& plan, Backward kind, SplitParts& parts) const {
  const bool needs_halves = kind == Backward::Split && !parts.has_halves;
  if (parts.is_priced && !needs_halves) return;
  const auto of_kernel = [&](const Kernel& kernel) { return mesh_.kernel(kernel); };
  const auto add = [&](const models::Work& work, Passes& passes) {
    if (!parts.is_priced) {
      passes.forward = price_part(work.forward, of_kernel);
      passes.backward = price_part(work.backward, of_kernel);
    }
    if (!needs_halves) return;
    const models::SplitBackward halves = models::split_backward(work.backward);
    passes.backward_input = price_part(halves.input, of_kernel);
    passes.backward_weight = price_part(halves.weight, of_kernel);
  };
  const ModelParts model = model_parts(plan);
  parts.layers.resize(model.layers.size());
  for (std::size_t at = 0; at < model.layers.size(); ++at) {
    add(model.layers[at], parts.layers[at]);
  }
  parts.kept.resize(model.kept.size());
  for (std::size_t at = 0; at < model.kept.size(); ++at) {
    add(model.kept[at], parts.kept[at]);
    if (parts.is_priced) continue;
    parts.again.push_back(price_part(model.again[at], of_kernel));
    parts.again_last.push_back(price_part(model.again_last[at], of_kernel));
  }
  add(model.embedding, parts.embedding);
  add(model.head, parts.head);
  if (has_input_gather(plan, program::Payload::Activation)) {
    parts.gather = price_part({input_gather(plan)}, of_kernel);
  }
  if (has_input_gather(plan, program::Payload::Gradient)) parts.gradient_gather = parts.gather;
  parts.is_priced = true;
  parts.has_halves = parts.has_halves || needs_halves;
}

void ShapeCache::add_times(const Plan& plan, int stage, SplitParts& parts,
                           StageShape& shape) const {
  const Backward kind = is_split(plan.layout) ? Backward::Split : Backward::Whole;
  for (int chunk = 0; chunk < static_cast<int>(shape.work.chunks.size()); ++chunk) {
    const ChunkSeconds times = chunk_seconds(plan.layout, stage_part(plan, stage, chunk), parts);
    shape.forward.push_back(times.forward);
    shape.backward.push_back(times.backward);
    if (kind == Backward::Whole) continue;
    shape.backward_input.push_back(times.backward_input);
    shape.backward_weight.push_back(times.backward_weight);
  }
}

double ShapeCache::backward_seconds(const Layout& layout, const StagePart& part,
                                    const SplitParts& parts, PricedPart Passes::*half) const {
  const bool is_whole = half == &Passes::backward;
  PassClock clock(constants_);
  const auto append = [&](const PricedPart& more) {
    clock.append(more);
    if (!is_whole) clock.forget_unawaited();
  };
  if (!part.has_head && half != &Passes::backward_weight) append(parts.gradient_gather);
  if (part.has_head) append(parts.head.*half);
  const bool reruns = half != &Passes::backward_weight;
  using Kind = BackwardPiece::Kind;
  for (const BackwardPiece piece : backward_order(layout, part)) {
    const auto kind = static_cast<std::size_t>(parts.kind(piece.layer));
    if (piece.kind == Kind::Layer) append(parts.layers[kind].*half);
    if (piece.kind == Kind::Kept) append(parts.kept[kind].*half);
    if (piece.kind == Kind::Again && reruns) append(parts.again[kind]);
    if (piece.kind == Kind::AgainLast && reruns) append(parts.again_last[kind]);
  }
  if (part.has_embedding) append(parts.embedding.*half);
  return clock.seconds(host_per_kernel_s_);
}

ShapeCache::ChunkSeconds ShapeCache::chunk_seconds(const Layout& layout, const StagePart& part,
                                                   SplitParts& parts) const {
  const std::vector<int> kinds(parts.sizes.kind.begin() + part.first_layer,
                               parts.sizes.kind.begin() + part.end_layer);
  const Backward backward = is_split(layout) ? Backward::Split : Backward::Whole;
  const std::tuple key{kinds, recomputed_layers(layout, part), part.has_embedding, part.has_head,
                       backward};
  const auto known = parts.known.find(key);
  if (known != parts.known.end()) return known->second;
  PassClock forward(constants_);
  if (!part.has_embedding) forward.append(parts.gather);
  if (part.has_embedding) forward.append(parts.embedding.forward);
  for (const int kind : kinds) {
    forward.append(parts.layers[static_cast<std::size_t>(kind)].forward);
  }
  if (part.has_head) forward.append(parts.head.forward);
  ChunkSeconds made;
  made.forward = forward.seconds(host_per_kernel_s_);
  made.backward = backward_seconds(layout, part, parts, &Passes::backward);
  if (backward == Backward::Split) {
    made.backward_input = backward_seconds(layout, part, parts, &Passes::backward_input);
    made.backward_weight = backward_seconds(layout, part, parts, &Passes::backward_weight);
  }
  parts.known.emplace(key, made);
  return made;
}

}  // namespace foresail::planner
