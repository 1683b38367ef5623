#include "search_mesh.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace foresail::planner {
namespace {

using program::Axis;
using program::AxisSet;
using program::RankGrid;

// Flows above this size share links in the simulator; smaller ones each see an idle network.
constexpr std::int64_t kSharedBytes = 65536;
constexpr std::int64_t kLeastFlows = 16;  // that a collective may be cut into, on small nodes
constexpr Bytes kScalarBytes(8);

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
      shared_below_(4 * kSharedBytes *
                    std::max<std::int64_t>(kLeastFlows, plan.cluster.node.devices) *
                    plan.network.qps_per_connection) {
  const RankGrid grid = plan.layout.grid();
  tp_ = distinct_groups(plan, grid, {Axis::Tp});
  cp_ = distinct_groups(plan, grid, {Axis::Cp});
  const int stages = plan.layout.pp;
  const auto device = [&](int stage) { return plan.placement.device_of[first_of(grid, stage)]; };
  for (int stage = 0; stage < stages; ++stage) {
    dp_.push_back(devices_of(plan, grid.group(first_of(grid, stage), {Axis::Dp, Axis::Cp})));
    const DeviceId next = device((stage + 1) % stages);
    if (stages > 1) neighbours_.emplace_back(device(stage), next);
    if (stages > 1) neighbours_.emplace_back(next, device(stage));
  }
  embedding_ = {device(0), device(stages - 1)};
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    world_.push_back(plan.placement.device_of[RankId{static_cast<std::uint32_t>(rank)}]);
  }
}

double MeshCost::kernel(const Kernel& kernel) const {
  if (kernel.kind != KernelKind::Collective) {
    return to_seconds(cost_.kernel(kernel, world_.front()));
  }
  return least(kernel.lane == Lane::Cp ? cp_ : tp_, kernel.collective, kernel.bytes);
}

double MeshCost::least(const std::vector<Devices>& groups, Collective kind, Bytes bytes) const {
  double best = groups.empty() ? 0 : std::numeric_limits<double>::infinity();
  for (const Devices& devices : groups) {
    best = std::min(best, to_seconds(cost_.collective(kind, bytes, devices)));
  }
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

double MeshCost::dp(int stage, Collective kind, Bytes bytes) {
  const auto [known, is_new] = dp_known_.try_emplace({stage, kind, bytes.count()}, 0.0);
  if (is_new) known->second = free_of_sharing(kind, bytes, dp_[static_cast<std::size_t>(stage)]);
  return known->second;
}

double MeshCost::embedding(Bytes bytes) {
  if (neighbours_.empty()) return 0;
  return free_of_sharing(Collective::AllReduce, bytes, embedding_);
}

double MeshCost::mirror(int stage, Bytes bytes) {
  const auto at = static_cast<std::size_t>(stage);
  return free_of_sharing(Collective::AllReduce, bytes,
                         {dp_[at].front(), dp_[dp_.size() - 1 - at].front()});
}

double MeshCost::tp(Bytes bytes) {
  double best = tp_.empty() ? 0 : std::numeric_limits<double>::infinity();
  for (const Devices& devices : tp_) {
    best = std::min(best, free_of_sharing(Collective::AllReduce, bytes, devices));
  }
  return best;
}

double MeshCost::scalars() {
  if (scalars_ < 0) scalars_ = free_of_sharing(Collective::AllReduce, kScalarBytes, world_);
  return scalars_;
}

const PlanShape& ShapeCache::shape(const Plan& plan) {
  const Layout& layout = plan.layout;
  const SplitKey key{layout.microbatch_size, layout.sequence_parallel, layout.recompute,
                     layout.overlap.tp};
  const bool has_buckets = layout.pp == 1 && layout.overlap.dp;
  const bool has_layers = layout.pp == 1 && layout.zero_stage == 3;
  const bool is_split = layout.pp > 1 && layout.has_split_backward();
  const ChunkKey chunks{layout.v, has_buckets, has_layers, layout.stage_map(), is_split};
  const auto known = shapes_.find({key, chunks});
  if (known != shapes_.end()) return known->second;
  auto split = splits_.find(key);
  if (split == splits_.end()) split = splits_.emplace(key, make_parts(plan)).first;
  PlanShape made;
  made.first = stage_shape(plan, 0, split->second);
  if (layout.pp > 2) made.middle = stage_shape(plan, 1, split->second);
  if (layout.pp > 1) made.last = stage_shape(plan, layout.pp - 1, split->second);
  return shapes_.emplace(std::pair{key, chunks}, std::move(made)).first->second;
}

ShapeCache::SplitParts ShapeCache::make_parts(const Plan& plan) const {
  const auto price = [&](const Kernel& kernel) { return mesh_.kernel(kernel); };
  const auto passes = [&](const models::Work& work) {
    const models::SplitBackward halves = models::split_backward(work.backward);
    return Passes{price_part(work.forward, price), price_part(work.backward, price),
                  price_part(halves.input, price), price_part(halves.weight, price)};
  };
  SplitParts parts;
  parts.sizes = model_parts(plan);
  parts.layer = passes(parts.sizes.layer);
  parts.embedding = passes(parts.sizes.embedding);
  parts.head = passes(parts.sizes.head);
  if (has_input_gather(plan)) parts.gather = price_part({input_gather(plan)}, price);
  for (models::Work* work : {&parts.sizes.layer, &parts.sizes.embedding, &parts.sizes.head}) {
    work->forward = {};
    work->backward = {};
  }
  return parts;
}

StageShape ShapeCache::stage_shape(const Plan& plan, int stage, SplitParts& parts) const {
  StageShape made;
  made.work = stage_work(plan, stage, parts.sizes, KernelLists::LeftOut);
  const bool is_split = plan.layout.pp > 1 && plan.layout.has_split_backward();
  const Backward kind = is_split ? Backward::Split : Backward::Whole;
  for (int chunk = 0; chunk < static_cast<int>(made.work.chunks.size()); ++chunk) {
    const ChunkSeconds times = chunk_seconds(stage_part(plan, stage, chunk), kind, parts);
    made.forward.push_back(times.forward);
    made.backward.push_back(times.backward);
    if (!is_split) continue;
    made.backward_input.push_back(times.backward_input);
    made.backward_weight.push_back(times.backward_weight);
  }
  return made;
}

double ShapeCache::backward_seconds(const StagePart& part, const SplitParts& parts,
                                    PricedPart Passes::*half) const {
  const bool is_whole = half == &Passes::backward;
  PassClock clock(constants_);
  const auto append = [&](const PricedPart& more) {
    clock.append(more);
    if (!is_whole) clock.forget_unawaited();
  };
  if (!part.has_head && half != &Passes::backward_weight) append(parts.gather);
  if (part.has_head) append(parts.head.*half);
  for (int at = part.first_layer; at < part.end_layer; ++at) append(parts.layer.*half);
  if (part.has_embedding) append(parts.embedding.*half);
  return clock.seconds(host_per_kernel_s_);
}

ShapeCache::ChunkSeconds ShapeCache::chunk_seconds(const StagePart& part, Backward backward,
                                                   SplitParts& parts) const {
  const int layers = part.end_layer - part.first_layer;
  const std::tuple key{layers, part.has_embedding, part.has_head, backward};
  const auto known = parts.known.find(key);
  if (known != parts.known.end()) return known->second;
  PassClock forward(constants_);
  if (!part.has_embedding) forward.append(parts.gather);
  if (part.has_embedding) forward.append(parts.embedding.forward);
  for (int layer = 0; layer < layers; ++layer) forward.append(parts.layer.forward);
  if (part.has_head) forward.append(parts.head.forward);
  ChunkSeconds made;
  made.forward = forward.seconds(host_per_kernel_s_);
  made.backward = backward_seconds(part, parts, &Passes::backward);
  if (backward == Backward::Split) {
    made.backward_input = backward_seconds(part, parts, &Passes::backward_input);
    made.backward_weight = backward_seconds(part, parts, &Passes::backward_weight);
  }
  parts.known.emplace(key, made);
  return made;
}

}  // namespace foresail::planner
