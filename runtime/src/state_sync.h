/// \file
/// Gradients, parameters and the end of the step: what the dp, tp and pp lanes move, the global
/// norm, and the optimizer. With ZeRO each data-parallel rank reduces and updates one shard.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "optimizer.h"
#include "passes.h"
#include "stage.h"

namespace foresail::runtime {

/// Sums over all ranks that end a step.
struct StepScalars {
  double squared_norm = 0;
  double loss = 0;
};

class StateSync {
 public:
  StateSync(const Job& job, Stage& stage, const MeshPlace& place);

  /// Where gradients leave once per microbatch (ZeRO-2 without a pipeline) while the next pass runs
  /// (overlap.dp), what a backward pass has added is set aside at once.
  void after_backward(PassKey key);

  /// One op of payload ChunkGradients, EmbeddingGradients, ChunkParameters, EmbeddingParameters,
  /// ReplicatedGradients or MirrorGradients.
  void run(const program::Op& op, Communicator& communicator);

  /// This rank's part of the sums; every parameter counts once over all ranks.
  StepScalars local_scalars(double loss) const;
  static StepScalars reduce(const StepScalars& local, Communicator& world);

  /// Every parameter, or part of one, once over all ranks: `first` counts in the parameter's
  /// elements, `values` [n] are what this rank's optimizer updates.
  void for_each_counted(const std::function<void(const Parameter&, std::int64_t first,
                                                 const at::Tensor& values)>& visit) const;

  /// Clips by the global norm, updates this rank's parameters, and clears the gradients.
  void optimize(double gradient_norm);

 private:
  /// A bucket with what this rank updates of it.
  struct Owned {
    Bucket* bucket = nullptr;
    at::Tensor grads;        ///< all of the bucket's, or the shard that reduce-scatters fill
    std::int64_t first = 0;  ///< offset of `grads` in the bucket
    bool is_sum = false;     ///< `grads` lie outside the bucket and sum what leaves it
    std::unique_ptr<Adam> adam;
  };

  Owned& owned_of(const program::Op& op);
  void reduce_gradients(const program::Op& op, Communicator& communicator);
  void sum_mirrors(const program::Op& op, Communicator& communicator);
  void gather_parameters(const program::Op& op, Communicator& communicator);
  void reduce_replicated(const program::Op& op, Communicator& tp);
  bool is_mirror(const Owned& owned) const;
  bool counts(const Parameter& parameter, const Owned& owned) const;

  const Job& job_;
  Stage& stage_;
  MeshPlace place_;
  bool is_sharded_ = false;
  bool leaves_per_microbatch_ = false, sets_aside_ = false;
  std::vector<Owned> owned_;  // by chunk, then the embedding bucket
  Shelf set_aside_;
};

}  // namespace foresail::runtime
