// Who shares one copy of the sharded states, and which of them are in host memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "layout_laws.h"

namespace foresail::planner {
namespace {

using program::Axis;

/// The axis that neighbours of a gradient group differ in.
Axis inner_axis(const Layout& layout) {
  const auto dp = std::ranges::find(layout.rank_order, Axis::Dp);
  return dp < std::ranges::find(layout.rank_order, Axis::Cp) ? Axis::Dp : Axis::Cp;
}

/// Experts are sharded in as many groups as all else (Megatron-Core: the partial groups of both
/// kinds of data parallelism are cut by the number of distributed-optimizer instances).
void check_expert_groups(const Layout& layout, std::vector<BrokenLaw>& broken) {
  const std::int64_t ranks = std::int64_t{layout.tp} * layout.cp * layout.dp;
  const std::int64_t split = std::int64_t{layout.expert_tp()} * layout.ep;
  if (ranks % split != 0) return;  // law expert_ranks
  const std::int64_t copies = ranks / split;
  const std::int64_t groups = std::int64_t{layout.dp} * layout.cp / layout.shard_ranks();
  if (copies % groups == 0) return;
  broken.push_back(
      {"expert_copies_by_groups",
       fmt::format("(tp {} * cp {} * dp {} / (etp {} * ep {})) {} copies of each expert % (dp {} * "
                   "cp {} / shard_size {}) {} groups = {}, must be 0",
                   layout.tp, layout.cp, layout.dp, layout.expert_tp(), layout.ep, copies,
                   layout.dp, layout.cp, layout.shard_size, groups, copies % groups)});
}

}  // namespace

std::vector<BrokenLaw> check_sharding(const models::Model& model, const Layout& layout) {
  std::vector<BrokenLaw> broken;
  const std::int64_t size = layout.shard_size;
  if (size == 0) return broken;
  if (layout.zero_stage == 0) {
    broken.push_back(
        {"shard_size_needs_zero",
         fmt::format("shard_size {} needs zero_stage > 0, but zero_stage is 0", size)});
  }
  if (size == 1) {
    broken.push_back({"shard_size_min",
                      "shard_size 1, must be at least 2: one rank shares nothing (zero_stage 0)"});
    return broken;
  }
  const std::int64_t ranks = std::int64_t{layout.dp} * layout.cp;
  if (ranks % size != 0) {
    broken.push_back(
        {"ranks_by_shard_size", fmt::format("(dp {} * cp {}) {} % shard_size {} = {}, must be 0",
                                            layout.dp, layout.cp, ranks, size, ranks % size)});
    return broken;
  }
  const Axis inner = inner_axis(layout);
  const std::int64_t width = inner == Axis::Dp ? layout.dp : layout.cp;
  if (size % width != 0 && width % size != 0) {
    broken.push_back(
        {"shard_size_by_inner_axis",
         fmt::format("shard_size {} is neither a multiple nor a divisor of {} {}, the inner axis "
                     "of rank_order {}",
                     size, to_string(inner), width, program::to_text(layout.rank_order))});
  }
  if (model.experts.count > 0) check_expert_groups(layout, broken);
  return broken;
}

std::vector<BrokenLaw> check_host(const Layout& layout, const program::Training& training,
                                  const topologies::Cluster::Options& cluster) {
  std::vector<BrokenLaw> broken;
  const double share = layout.optimizer_offload;
  if (share == 0) return broken;
  if (!(share > 0 && share <= 1)) {
    broken.push_back(
        {"optimizer_offload_share", fmt::format("optimizer_offload {}, must be 0 to 1", share)});
  }
  if (cluster.node.host.empty()) {
    broken.push_back(
        {"optimizer_offload_needs_host",
         fmt::format("optimizer_offload {} needs node.host (memory, bandwidth, link), which "
                     "cluster {} does not state",
                     share, cluster.name)});
  }
  if (training.optimizer != program::Optimizer::Adam) {
    broken.push_back({"optimizer_offload_needs_adam",
                      fmt::format("optimizer_offload {} needs optimizer adam, not {}", share,
                                  to_string(training.optimizer))});
  }
  return broken;
}

}  // namespace foresail::planner
