/// \file
/// The dp lane and the end of the step: parameter gathers, gradient reductions, optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "foresail/program/program.h"
#include "stage_lowering.h"

namespace foresail::planner {

/// Adds its ops to those of one stage while the passes are being written.
///
/// Positions are those of the stage's order, `passes` the ops of the passes written so far.
class GradientSync {
 public:
  using OpId = program::OpId;
  using Ops = std::vector<OpId>;

  GradientSync(const StageInput& input, IdVector<program::OpId, program::Op>& ops);

  /// Before any pass: prefetched parameters.
  void begin();
  /// What the pass at `position` must wait for beside `inputs`; writes a gather that is due now.
  Ops before(std::size_t position, const Ops& passes, const Ops& inputs);
  /// After the pass at `position`: gradients that are complete, the next prefetch.
  void after(std::size_t position, const Ops& passes);
  /// After all passes: what is left, then the end of the step.
  void finish(const Ops& passes);

 private:
  /// How often the gradients of a chunk leave.
  enum class Rhythm { PerStep, PerMicrobatch };

  bool has_prefetch() const { return in_.plan.layout.overlap.dp.parameters; }
  bool reduces_early() const { return in_.plan.layout.overlap.dp.gradients; }
  bool is_resident() const { return zero_ == 1 || zero_ == 2; }
  bool holds_tied(int chunk) const;

  /// Positions at which chunks' reductions start, those of early ones.
  void plan_reductions();
  /// Positions at which the gathers of chunks beyond the first two start.
  void align_gathers();

  /// Ranks that hold copies of the same parameters, and their communicator; none without copies.
  struct Copies {
    std::optional<program::CommunicatorId> communicator;
    std::int64_t ranks = 1;
  };

  program::OpId gather(const Copies& copies, program::Payload payload, std::int64_t parameters,
                       Ops after);
  program::OpId reduce(const Copies& copies, program::Payload payload, std::int64_t parameters,
                       Ops after);
  /// Reductions of one chunk's gradients on the dp lane.
  struct ChunkReduction {
    std::optional<program::OpId> common, experts;
    std::optional<program::OpId> last() const { return experts ? experts : common; }
  };

  /// `copies`: who hold the same shard; `shard`: what stands in front.
  program::OpId sum_shard(const Copies& copies, std::int64_t parameters, program::OpId shard);
  std::optional<program::OpId> gather_chunk(int chunk, int microbatch, const Ops& after);
  /// The bucket of a chunk, that of the tied matrix in front if it is the first to use it.
  void gather_bucket(int chunk, const Ops& after);
  void gather_all(const Ops& after);
  void gather_for_pass(std::size_t position, const Ops& after);
  ChunkReduction reduce_chunk(int chunk, int microbatch, program::OpId after);
  /// Once per step, behind `pass`. Nothing if nobody holds the same shards.
  std::optional<program::OpId> sum_chunk_shards(int chunk, const ChunkReduction& reduced,
                                                program::OpId pass);
  /// Nothing if there is nobody to reduce with.
  std::optional<program::OpId> synchronise_chunk(int chunk, program::OpId after);
  void reduce_mirrored(const Ops& passes);
  void reduce_embedding(const Ops& passes);
  void reduce_replicated(const Ops& passes);
  void reduce_scalars(const Ops& passes);
  /// Gradients of a chunk's bucket whose states are in host memory cross when they are whole.
  void offload_gradients(int chunk, const Ops& after);
  /// What is left of them, behind all reductions.
  void offload_rest(const Ops& passes);
  /// The ops that the new parameters are there after.
  Ops optimize();
  Ops optimize_on_host();
  OpId copy_op(program::KernelListId kernels, Lane lane, Ops after);
  OpId sum_norms(program::CommunicatorId communicator, std::int64_t matrices, OpId after);

  const StageInput& in_;
  IdVector<program::OpId, program::Op>& ops_;
  const std::vector<SchedulePass>& order_;
  /// Of all but experts: who shard the states together, or else who reduce together.
  Copies dp_;
  Copies experts_;  // of experts
  // Who hold the same shard; `ranks` are those that share it.
  Copies replica_, expert_replica_;
  int zero_ = 0;  // 0 if there is nobody to share with
  Rhythm rhythm_ = Rhythm::PerStep;
  std::vector<std::size_t> last_backward_;                  // by chunk: position, W if in halves
  std::vector<std::optional<program::OpId>> first_gather_;  // by chunk
  std::optional<program::OpId> tied_gather_;
  bool is_tied_gathered_ = false;
  std::vector<std::optional<int>> gathered_at_;            // by position: chunk; aligned ones
  std::vector<std::optional<int>> reduced_behind_;         // by position: chunk
  std::vector<bool> is_reduced_;                           // by chunk
  std::vector<std::optional<program::OpId>> pass_gather_;  // ZeRO-3: by position
  std::optional<program::OpId> unfinished_;      // without overlap: the next pass waits for it
  std::optional<program::OpId> last_reduction_;  // on the dp lane
  Ops synchronised_;                             // on other lanes
  std::vector<bool> is_offloaded_;               // by chunk: its gradients have crossed
  std::optional<program::OpId> last_copy_;       // of gradients to host memory
};

}  // namespace foresail::planner
