/// \file
/// Gradients, parameters and the end of the step: what the dp, tp and pp lanes move, the global
/// norm, and the optimizer. With ZeRO each data-parallel rank reduces and updates one shard. The
/// optimizer updates fp32 masters, of which the parameters are the rounded copies.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "optimizer.h"
#include "passes.h"
#include "stage.h"
#include "update_norms.h"

namespace foresail::runtime {

/// Sums over all ranks that end a step.
struct StepScalars {
  double squared_norm = 0;
  double loss = 0;
};

class StateSync {
 public:
  /// All must outlive it.
  StateSync(const Job& job, Stage& stage, const MeshPlace& place, Device& device);

  /// Called by the compute lane around every pass. Where parameters are gathered for each pass
  /// (ZeRO-3) they are there in between alone; where gradients leave once per microbatch (ZeRO-3,
  /// ZeRO-2 without a pipeline) they are there until their reduction has ended.
  void before_pass(const program::Op& op);
  void after_pass(const program::Op& op);

  /// One op of payload ChunkGradients, EmbeddingGradients, ChunkParameters, EmbeddingParameters,
  /// ExpertGradients, ExpertParameters, ReplicatedGradients, MirrorGradients, ShardGradients or
  /// UpdateNorms.
  void run(const program::Op& op, Communicator& communicator);

  /// This rank's part of the sums; every parameter counts once over all ranks. The host waits for
  /// the device, here and in reduce.
  StepScalars local_scalars(double loss) const;
  StepScalars reduce(const StepScalars& local, Communicator& world) const;

  /// Every parameter, or part of one, once over all ranks: `first` counts in the parameter's
  /// elements, `values` [n] are the fp32 masters that this rank's optimizer updates.
  void for_each_counted(const std::function<void(const Parameter&, std::int64_t first,
                                                 const at::Tensor& values)>& visit) const;

  /// Runs `write`, which sets the masters of all parameters; those that this rank updates are kept,
  /// and the parameters are their rounded copies. Before the first step.
  void fill(const std::function<void()>& write);

  /// The kernels of the optimizer passes, by their names in the Program. "optimizer" clips by the
  /// global norm and updates this rank's parameters, or of LAMB makes the updates that
  /// "optimizer.apply" takes in; then the gradients are cleared.
  struct OptimizerStep {
    double gradient_norm = 0;
    double learning_rate = 0;
  };
  void optimize(std::string_view kernel, const OptimizerStep& step);

 private:
  /// A bucket with what this rank updates of it.
  struct Owned {
    Bucket* bucket = nullptr;
    at::Tensor shard;        ///< of parameters that are gathered for each pass
    at::Tensor grads;        ///< all of the bucket's, or the shard that reduce-scatters fill
    std::int64_t first = 0;  ///< offset of `grads` in the bucket
    bool is_sum = false;     ///< `grads` lie outside the bucket and sum what leaves it
    bool is_sharded = false;
    int shard_place = 0;             ///< of this rank among those that share the bucket
    std::deque<at::Tensor> arrived;  ///< whole parameters, in the order of passes
    std::deque<at::Tensor> leaving;  ///< whole gradients that a microbatch has left behind
    at::Tensor values;               ///< parameters that this rank updates ...
    at::Tensor master;               ///< ... and the same in fp32: themselves, if they are
    UpdateNorms norms;               ///< LAMB
    std::unique_ptr<Optimizer> optimizer;

    /// What this rank updates of the bucket.
    Extent extent() const { return {first, master.numel()}; }
  };
  struct Traffic {
    bool is_sharded = false;
    bool leaves = false;   ///< gradients once per microbatch
    bool gathers = false;  ///< parameters for each pass
  };

  Traffic traffic_of(program::Payload gradients, program::Payload parameters) const;
  Owned own(Bucket& bucket, const Traffic& traffic, int shard) const;
  /// Whether the op is one of the experts' own groups.
  bool is_of_experts(const program::Op& op) const;
  std::vector<Owned*> all_owned();
  std::vector<Owned*> owned_of_chunk(int chunk);
  at::Tensor take_first(std::deque<at::Tensor>& queue);
  at::TensorOptions float_options() const;
  void make_optimizer(Owned& owned) const;
  void sum_update_norms(const program::Op& op, Communicator& communicator);
  void measure_updates();
  void apply_updates(double learning_rate);
  void finish_step(Owned& owned) const;

  Owned& owned_of(const program::Op& op);
  void reduce_gradients(const program::Op& op, Communicator& communicator);
  void sum_mirrors(const program::Op& op, Communicator& communicator);
  void sum_replicas(const program::Op& op, Communicator& communicator);
  void gather_parameters(const program::Op& op, Communicator& communicator);
  void reduce_replicated(const program::Op& op, Communicator& tp);
  bool is_mirror(const Owned& owned) const;
  bool counts(const Parameter& parameter, const Owned& owned) const;
  bool counts_expert(const Parameter& parameter, const Owned& owned) const;

  const Job& job_;
  Stage& stage_;
  MeshPlace place_;
  Device& device_;
  bool is_sharded_ = false;
  std::vector<Owned> owned_;    // by chunk, then the embedding bucket
  std::vector<Owned> experts_;  // by chunk; without a bucket where it has none
  std::mutex mutex_;            // of the queues, which two lanes use
};

}  // namespace foresail::runtime
