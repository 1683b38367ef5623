// The rule that gradients are synchronised once, after the pass that completes them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "stage_order.h"
#include "verify_rules.h"

namespace foresail::program {
namespace {

/// What a chunk's gradients are synchronised over, and which ops do it.
struct Rule {
  Payload payload;
  std::string_view communicator;
  std::string_view what;
};
constexpr Rule kDense{Payload::ChunkGradients, "dp", "gradients"};
constexpr Rule kExperts{Payload::ExpertGradients, "edp", "gradients of experts"};

struct ChunkSyncs {
  std::vector<std::size_t> ops;            // indices of its synchronisations
  std::vector<std::size_t> experts;        // of those of its experts
  bool has_experts = false;                // some pass runs a weight gradient of experts
  std::vector<std::size_t> mirrors;        // of those with the mirrored copy
  std::vector<std::size_t> shards;         // of sums of a shard over the groups that shard
  std::vector<std::size_t> expert_shards;  // of those of its experts
  std::size_t last_backward = 0;           // position behind it
  std::map<int, std::size_t> backward;     // the same by microbatch
};

/// Who else has gradients of the same parameters.
struct Replicas {
  bool is_reduced = false;
  bool is_cut = false;           ///< into groups that shard, with sums over them
  bool of_experts = false;       ///< of experts
  bool experts_are_cut = false;  ///< the same as is_cut
};

class GradientCheck {
 public:
  GradientCheck(const Program& program, std::size_t stage)
      : program_(program),
        stage_(stage),
        chunks_(static_cast<std::size_t>(program.chunks)),
        order_(program.stages[stage]) {}

  void run(Complaints& complaints, Replicas replicas) {
    collect();
    for (std::size_t number = 0; number < chunks_.size(); ++number) {
      const ChunkSyncs& chunk = chunks_[number];
      if (program_.stage_map == StageMap::Mirrored) check_mirror(number, complaints);
      if (replicas.is_reduced) check(number, chunk.ops, kDense, complaints);
      if (replicas.is_cut) check_shards(number, {chunk.ops, chunk.shards, "shards of"}, complaints);
      if (replicas.experts_are_cut && chunk.has_experts) {
        check_shards(number, {chunk.experts, chunk.expert_shards, "shards of experts'"},
                     complaints);
      }
      if (replicas.of_experts && chunk.has_experts) {
        check(number, chunk.experts, kExperts, complaints);
      }
    }
  }

 private:
  /// The sums of shards over the groups that shard, and the reductions in front of them.
  struct ShardSums {
    const std::vector<std::size_t>& reductions;
    const std::vector<std::size_t>& ops;
    std::string_view what;
  };

  const Op& op(std::size_t index) const {
    return program_.stages[stage_].ops[OpId{static_cast<std::uint32_t>(index)}];
  }

  void collect() {
    for (std::size_t i = 0; i < program_.stages[stage_].ops.size(); ++i) {
      const Op& each = op(i);
      if (each.chunk < 0 || each.chunk >= program_.chunks) continue;
      ChunkSyncs& chunk = chunks_[static_cast<std::size_t>(each.chunk)];
      if (is_reduction(each, kDense)) chunk.ops.push_back(i);
      if (is_reduction(each, kExperts)) chunk.experts.push_back(i);
      if (each.kind == OpKind::Collective && each.payload == Payload::ShardGradients &&
          each.collective == Collective::AllReduce) {
        const GridKind grid = program_.communicators[each.communicator.value].grid;
        (grid == GridKind::Expert ? chunk.expert_shards : chunk.shards).push_back(i);
      }
      if (each.kind == OpKind::Collective && each.payload == Payload::MirrorGradients &&
          each.collective == Collective::AllReduce) {
        chunk.mirrors.push_back(i);
      }
      if (each.kind == OpKind::Compute &&
          (each.pass == Pass::Backward || each.pass == Pass::BackwardWeight)) {
        chunk.last_backward = i + 1;
        chunk.backward[each.microbatch] = i + 1;
        chunk.has_experts = chunk.has_experts || trains_experts(each.kernels);
      }
    }
  }

  static bool is_reduction(const Op& op, const Rule& rule) {
    const bool reduces =
        op.collective == Collective::AllReduce || op.collective == Collective::ReduceScatter;
    return op.kind == OpKind::Collective && op.payload == rule.payload && reduces;
  }

  /// Weight gradients of routed experts are named "experts. ... .wgrad".
  bool trains_experts(KernelListId list) {
    const auto [known, is_new] = trains_experts_.try_emplace(list.value, false);
    if (is_new && list.value < program_.kernel_lists.size()) {
      known->second =
          std::ranges::any_of(program_.kernel_lists[list.value].kernels, [](const Kernel& kernel) {
            return kernel.name.starts_with("experts.") && kernel.name.ends_with(".wgrad");
          });
    }
    return known->second;
  }

  void check(std::size_t number, const std::vector<std::size_t>& syncs, const Rule& rule,
             Complaints& complaints) const {
    const ChunkSyncs& chunk = chunks_[number];
    std::vector<int> microbatches;
    microbatches.reserve(syncs.size());
    for (const std::size_t index : syncs) microbatches.push_back(op(index).microbatch);
    std::ranges::sort(microbatches);
    std::vector<int> all;
    const GlobalStages global = program_.global_stages();
    for (int each = 0; each < program_.microbatches; ++each) {
      if (global.is_visited(static_cast<int>(number), each, program_.microbatches)) {
        all.push_back(each);
      }
    }
    if (syncs.size() != 1 && microbatches != all) {
      complaints.add(
          fmt::format("stage {} chunk {}: {} are synchronised {} times, must be once (or "
                      "once for each of {} microbatches)",
                      stage_, number, rule.what, syncs.size(), program_.microbatches));
      return;
    }
    for (const std::size_t index : syncs) {
      std::size_t due = chunk.last_backward;
      if (syncs.size() > 1) {
        const auto found = chunk.backward.find(op(index).microbatch);
        due = found == chunk.backward.end() ? 0 : found->second;
      }
      if (due != 0) wait_for(due - 1, index, complaints);
    }
  }

  /// Both copies of a chunk are summed once, before the sum leaves for the replicas.
  void check_mirror(std::size_t number, Complaints& complaints) const {
    const ChunkSyncs& chunk = chunks_[number];
    if (chunk.mirrors.size() != 1) {
      complaints.add(
          fmt::format("stage {} chunk {}: gradients are summed with the mirrored copy {} times, "
                      "must be once",
                      stage_, number, chunk.mirrors.size()));
      return;
    }
    const std::size_t mirror = chunk.mirrors.front();
    if (chunk.last_backward != 0) wait_for(chunk.last_backward - 1, mirror, complaints);
    for (const std::size_t index : chunk.ops) wait_for(mirror, index, complaints);
    for (const std::size_t index : chunk.experts) wait_for(mirror, index, complaints);
    for (const std::size_t index : chunk.expert_shards) wait_for(mirror, index, complaints);
  }

  /// The groups that shard sum their shards once, behind all reductions of the chunk.
  void check_shards(std::size_t number, const ShardSums& sums, Complaints& complaints) const {
    if (sums.ops.size() != 1) {
      complaints.add(
          fmt::format("stage {} chunk {}: {} gradients are summed over their replicas {} times, "
                      "must be once",
                      stage_, number, sums.what, sums.ops.size()));
      return;
    }
    const std::size_t sum = sums.ops.front();
    for (const std::size_t index : sums.reductions) wait_for(index, sum, complaints);
    // Without a group to share them with they come from the passes themselves.
    const std::size_t due = chunks_[number].last_backward;
    if (sums.reductions.empty() && due != 0) wait_for(due - 1, sum, complaints);
  }

  void wait_for(std::size_t before, std::size_t index, Complaints& complaints) const {
    if (order_.is_finished(before, index)) return;
    complaints.add(fmt::format("stage {} op {} {}: does not wait for op {} {}", stage_, index,
                               describe(op(index)), before, describe(op(before))));
  }

  const Program& program_;
  std::size_t stage_;
  std::vector<ChunkSyncs> chunks_;
  StageOrder order_;
  std::map<std::uint32_t, bool> trains_experts_;  // by kernel list
};

Replicas replicas_of(const Program& program) {
  Replicas replicas;
  for (const Communicator& communicator : program.communicators) {
    const bool reduces = communicator.name == kDense.communicator || communicator.name == "shard";
    if (communicator.name == "replica") replicas.is_cut = true;
    if (axes_size(program, communicator) == 1) continue;
    if (reduces) replicas.is_reduced = true;
    const bool is_of_experts =
        communicator.name == kExperts.communicator || communicator.name == "expert_shard";
    if (is_of_experts) replicas.of_experts = true;
    if (communicator.name == "expert_replica") replicas.experts_are_cut = true;
  }
  return replicas;
}

}  // namespace

std::vector<std::string> check_gradients(const Program& program) {
  const Replicas replicas = replicas_of(program);
  const bool is_mirrored = program.stage_map == StageMap::Mirrored;
  const bool has_experts = replicas.of_experts || replicas.experts_are_cut;
  if (!replicas.is_reduced && !has_experts && !is_mirrored) return {};
  Complaints complaints;
  for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
    GradientCheck(program, stage).run(complaints, replicas);
  }
  return complaints.take();
}

}  // namespace foresail::program
