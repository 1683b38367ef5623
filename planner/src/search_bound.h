/// \file
/// An admissible lower bound of a plan's simulated step.
///
/// Claim: no step is faster than the bound, for any schedule, network and contention. Every term is
/// a time that the simulated step must spend, one after the other, on some chain of ops:
///
/// 1. A pass takes at least PassClock's time (search_pass_time.h); what runs beside it only slows
///    it down. A transfer takes at least its time alone (MeshCost), all links at full rate.
/// 2. A stage runs its m microbatches through its chunks one after the other: m * sum(F + B).
///    Its first pass is a forward, whose microbatch has been through chunk 0 of all stages before
///    it; after its last pass, a backward, the same microbatch goes back through chunk 0 of all of
///    them. So with message time c
///        end of stage 0 >= max over s of  sum_{r<s}(F_r + c) + W_s + sum_{r<s}(B_r + c),
///        end of stage s >= sum_{r<s}(F_r + c) + W_s,
///    which is the bubble (p-1)(F+B) of 1F1B and (p-1)(F+B)/v of interleaving. Where backward
///    passes come in halves I and W, the last pass may be a W, which nobody waits for: the last
///    term is left out, and a backward pass counts min(B, I + W). In a mirrored schedule both ends
///    start at once and each chunk has half of the microbatches: W_s alone counts.
/// 3. Without overlap.pp a stage waits for each of its sends but the last: W_s grows by c each.
///    Where gradients leave or parameters come per pass (ZeRO-3; ZeRO-2 with one stage) and
///    overlap.dp does not have them, each pass waits for those collectives. Both waits may
///    coincide, so W_s grows by the larger sum.
/// 4. With overlap.dp of parameters and resident ZeRO, stage 0's first pass waits for the first
/// gather, and
///    everything waits for that pass. The dp lane is in order, so its collectives are also a chain.
/// 5. Behind a stage's last pass come the reduction of at least its chunk (of the last pass,
/// unknown
///    beyond stage 0 or in halves: the least over chunks; without overlap.dp of gradients, all), in
///    a mirrored schedule behind that of the two copies, then the tied matrix, then the replicated
///    gradients over tp. The scalars' all-reduce waits for all stages; the optimizer for it;
///    without overlap.dp of parameters the gathers for the optimizer.
///
/// 6. Where groups that shard hold copies, the sum of a chunk's shard stands on a lane of its own
/// behind the reduction: per step the last such sum ends no earlier than both lanes run in order.
/// Of a chunk with experts, reduced in d and e and summed in x and y, that of what all share may
/// start behind d: both lanes are done max(d + x + y, d + e + y) behind the chunk, so that its sums
/// count max(0, x - e) + y behind d + e.
///
/// `Fine` replaces 2 by the start and end times of the schedule itself, run with the times of 1 and
/// messages that contend for nothing; and with overlap.dp of gradients, 5 by the dp lane: after the
/// gathers of the step, each chunk's reduction starts behind its last backward pass and behind the
/// one before it. Again maxima and sums of terms that are too small. Aligned launches only come
/// later than that, and later than a gather at the start: none of these bounds knows them.
///
/// Times are rounded to picoseconds by the simulator and summed as doubles here; the bound is taken
/// 1e-9 of itself and 1 ns lower, which is more than both can differ by.
#pragma once

#include <algorithm>
#include <vector>

#include "foresail/planner/schedule.h"
#include "foresail/planner/search.h"
#include "search_mesh.h"

namespace foresail::planner {

class PlanBound {
 public:
  /// `plan` belongs to the mesh and has this shape; all must outlive the bound. A Coarse one leaves
  /// out what the last stage exchanges with its replicas, whose price takes most of the time.
  PlanBound(const Plan& plan, const PlanShape& shape, MeshCost& mesh, BoundKind kind);

  double coarse() const;
  /// Requires a Fine bound and the plan's own schedule.
  double fine(const Schedule& schedule) const;

 private:
  /// Two lanes, each in order: among those that shard, and behind that between their groups.
  struct Reduction {
    double once = 0;    ///< on the dp lane
    double copies = 0;  ///< on the replica lane; 0 if there is one group
  };
  /// The ends of both lanes.
  struct Lanes {
    double dp = 0, replica = 0;
    void append(const Reduction& more, double ready = 0) {
      dp = std::max(dp, ready) + more.once;
      replica = std::max(replica, dp) + more.copies;
    }
  };
  struct Exchange {
    double gather_first = 0;  ///< before the first pass (resident ZeRO with overlap)
    double per_pass = 0;      ///< waits between passes, in all
    double lane = 0;          ///< of the dp lane from its start, in all; 0: not a chain from 0
    double behind = 0;        ///< from the last pass to the scalars
    double gathers = 0;       ///< on the dp lane before any reduction
    Reduction tied{};         ///< of the tied matrix, behind the chunks' reductions
    double replicated = 0;    ///< behind that, if anybody reduces
    double finish = 0;        ///< optimizer and what follows it
  };
  Exchange exchange(int stage) const;
  void add_per_pass(int stage, const StageShape& shape, Exchange& made) const;
  double behind(int stage, const StageShape& shape) const;
  Lanes chunks_behind(int stage, const StageShape& shape) const;
  Lanes mirrored_behind(int stage, const StageShape& shape) const;
  double replicated_sum(const StageShape& shape) const;
  double work(int stage) const;
  double passes(const StageShape& shape) const;
  double sends(int stage, const StageShape& shape) const;
  std::vector<double> ends() const;
  Lanes lane_end(int stage, const PassOrder& order, const std::vector<double>& end) const;
  double finish(const std::vector<double>& ends, const std::vector<Lanes>& lane_ends) const;
  double gather(int stage, std::int64_t parameters) const;
  Reduction reduce(int stage, std::int64_t parameters) const;
  double gather_chunk(int stage, const ChunkWork& chunk) const;
  Reduction reduce_chunk(int stage, const ChunkWork& chunk) const;
  Reduction reduce_experts(int stage, std::int64_t parameters) const;
  /// Whether any gradient of the stage is reduced over replicas.
  bool has_reductions(const StageShape& shape) const {
    const bool has_copies = expert_ranks_ > 1 || expert_copies_.kind != program::Cut::Kind::None;
    return ranks_ > 1 || (has_copies && shape.work.experts() > 0);
  }
  bool is_first_or_last(int stage) const { return stage == 0 || stage == stages_ - 1; }

  const Plan& plan_;
  const PlanShape& shape_;
  MeshCost& mesh_;
  int stages_;
  program::StageMap map_;
  bool is_split_;  // some backward passes may come in halves
  double microbatches_;
  std::int64_t ranks_;           // that shard together, or else reduce together
  std::int64_t expert_ranks_;    // the same of experts
  program::Cut shard_, copies_;  // of those that reduce together; copies: of one shard
  program::Cut expert_shard_, expert_copies_;
  int zero_;                        // 0 if there is nobody to share with
  double message_;                  ///< of an activation: gradients may be larger, never smaller
  std::vector<Exchange> exchange_;  // of the first and the last stage
};

}  // namespace foresail::planner
