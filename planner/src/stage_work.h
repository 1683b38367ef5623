/// \file
/// What every chunk of a Plan runs, keeps and owns: the part of lowering that knows the model.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/base/units.h"
#include "foresail/models/operators.h"
#include "foresail/planner/plan.h"
#include "foresail/planner/schedule.h"

namespace foresail::planner {

/// One chunk of one stage, for one microbatch.
struct ChunkWork {
  std::vector<Kernel> forward;
  std::vector<Kernel> backward;
  /// The halves of `backward`; empty if the schedule has whole backward passes only.
  std::vector<Kernel> backward_input, backward_weight;
  Bytes saved;                  ///< lives from the forward pass to the backward pass
  Bytes retained;               ///< lives from the input half to the weight half instead
  Bytes forward_peak;           ///< most that is there in a forward pass, `saved` included
  Bytes backward_peak;          ///< the same for a whole backward pass
  Bytes input_peak;             ///< for its input half, `retained` included
  std::int64_t parameters = 0;  ///< on one rank, in this chunk's own gradient bucket
  std::int64_t replicated = 0;  ///< of these, equal on all tp ranks
  std::int64_t experts = 0;     ///< parameters of routed experts, in a bucket of their own
};

/// One stage class.
struct StageWork {
  std::vector<ChunkWork> chunks;
  /// The tied word matrix on one rank if it is a bucket of its own on this stage, else 0.
  std::int64_t tied_parameters = 0;

  std::int64_t parameters() const;  ///< but the routed experts
  std::int64_t replicated() const;
  std::int64_t experts() const;
};

StageWork stage_work(const Plan& plan, int stage);

/// The parts that every chunk is made of, each once.
struct ModelParts {
  std::vector<models::Work> layers;  ///< by kind
  std::vector<int> kind;             ///< by layer of the model
  models::Work embedding, head;
  /// A layer that keeps all, and what runs to have it again, where full recomputation needs that;
  /// by kind.
  std::vector<models::Work> kept;
  std::vector<std::vector<Kernel>> again, again_last;
  /// Layers that are made again together, by their kinds (layer_runs.h).
  std::map<std::vector<int>, models::Work> groups;
  std::size_t kind_of(int layer) const {
    return static_cast<std::size_t>(kind[static_cast<std::size_t>(layer)]);
  }
  const models::Work& layer(int at) const { return layers[kind_of(at)]; }
};
/// Kinds of layers: with an MLP, or with experts under one row of training.expert_load. Two layers
/// of one kind are equal.
std::vector<int> layer_kinds(const Plan& plan);
models::RankParameters layer_parameters(const Plan& plan, int layer);
ModelParts model_parts(const Plan& plan);

/// Whether a chunk's kernels are listed, or only its sizes are counted (many times faster).
enum class KernelLists { Written, LeftOut };
/// The same from parts that are known; they must be those of `plan`.
StageWork stage_work(const Plan& plan, int stage, const ModelParts& parts, KernelLists lists);

/// What the gather in front of a sharded message's pass runs (has_input_gather).
Kernel input_gather(const Plan& plan);

/// Update of the parameters that this rank steps: read parameter, gradient and two moments, write
/// all but the gradient: 28 bytes per parameter in fp32. `m` counts the parameters; without those
/// whose states are in host memory. LAMB writes the update in place of the gradient.
Kernel optimizer_kernel(const Plan& plan, const StageWork& work);
/// LAMB's second half: read parameter and update, write the parameter.
Kernel apply_kernel(const Plan& plan, const StageWork& work);

/// Matrices of a stage, whose updates LAMB scales by the ratio of two norms: but those of routed
/// experts, and those.
std::int64_t matrix_count(const Plan& plan, int stage);
std::int64_t expert_matrix_count(const Plan& plan, int stage);
/// The communicator over which the norms of matrices and updates are summed, because one rank
/// holds a part of them; empty if it holds all, or the optimizer is not LAMB.
std::string norms_communicator(const Plan& plan);
std::string expert_norms_communicator(const Plan& plan);

/// Tied matrices are a bucket of their own when two stages hold a copy, or when the first and the
/// last bucket of a single stage use it.
bool has_embedding_bucket(const Plan& plan);

/// Number format of activations and parameters: the training's precision, but 16 bits for fp8,
/// which only GEMM inputs use.
DType storage_dtype(const program::Training& training);

/// Microbatches per data-parallel replica and step.
int microbatch_count(const Plan& plan);
/// The order in which every stage runs its passes.
Schedule make_schedule(const Plan& plan);
/// Ranks that reduce gradients together: dp * cp; those of experts: edp, or 1 if there are none.
int gradient_ranks(const Layout& layout);
int expert_gradient_ranks(const Plan& plan);
/// Of these, the ranks that share one copy of the experts' sharded states: all of them, or, where
/// groups shard (law expert_copies_by_groups), one of as many parts as there are groups.
int expert_shard_ranks(const Plan& plan);

/// Activations T * h * e of one microbatch on a whole tp group, T = sequence * microbatch / cp.
Bytes activation_bytes(const Plan& plan);
/// One message between stages: 1/tp of the activations if each tp rank sends its shard.
Bytes message_bytes(const Plan& plan, program::Payload payload);
/// Messages are shards that the receiver gathers over tp (SC'21 section 4.1).
bool has_input_gather(const Plan& plan, program::Payload payload);

}  // namespace foresail::planner
