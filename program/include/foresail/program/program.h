/// \file
/// The contract between planner, simulator and runtime: what each rank does in one step.
///
/// A Program is stored once per *stage class* (all ranks with the same pipeline coordinate run the
/// same ops) and instantiated per rank by substitution: a Send to `peer_stage` goes to the rank
/// with that pp coordinate and otherwise equal coordinates; a Collective runs on the sender's own
/// group of the named communicator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/kernel.h"
#include "foresail/program/axes.h"
#include "foresail/program/stage_map.h"

namespace foresail::program {

using OpId = Id<struct OpTag>;                      ///< index of an op within its stage
using CommunicatorId = Id<struct CommunicatorTag>;  ///< index into Program::communicators
using KernelListId = Id<struct KernelListTag>;      ///< index into Program::kernel_lists

enum class OpKind { Compute, Send, Recv, Collective, Host };

/// What a Compute op runs. Backward is BackwardInput and BackwardWeight in one.
enum class Pass { Forward, Backward, BackwardInput, BackwardWeight, Optimizer };

/// What a message or an end-of-step collective carries.
enum class Payload {
  None,
  Activation,          ///< Send, Recv: output of a forward pass
  Gradient,            ///< Send, Recv: gradient of a stage's input
  ChunkGradients,      ///< dp: gradients of one chunk (or bucket)
  ChunkParameters,     ///< dp: parameters of one chunk
  EmbeddingGradients,  ///< tied embeddings: first and last stage (pp), then dp as a bucket of its
                       ///< own
  EmbeddingParameters,
  ReplicatedGradients,  ///< tp: gradients of norms and biases that saw only a sequence shard
  StepScalars,          ///< two fp32 sums over all ranks: squared gradient norm, loss
  MirrorGradients,      ///< pp: gradients of one chunk and of its copy on the mirrored stage
  ExpertGradients,      ///< edp: gradients of the experts of one chunk
  ExpertParameters,     ///< edp: parameters of the experts of one chunk
  /// dp: a shard of the gradients of one chunk (of the tied matrix: chunk -1), or of its experts (a
  /// communicator of theirs), over the groups that each shard the states
  ShardGradients,
  UpdateNorms  ///< two fp32 sums for each matrix of the stage: squared norms of it and its update
};

enum class HostWork { None, LoadBatch };

/// Which axes a group varies over: those of Program::grid, or of Program::expert_grid.
enum class GridKind { Dense, Expert };

/// Groups cut into blocks of `size` consecutive members: a part is a block (Within), or the members
/// at one place of every block (Across). `size` divides the number of members.
struct Cut {
  enum class Kind { None, Within, Across };
  Kind kind = Kind::None;
  int size = 0;
  friend bool operator==(const Cut&, const Cut&) = default;
};
/// The part that `rank` belongs to; `members` in increasing rank, `rank` among them.
std::vector<RankId> part_of(const Cut& cut, std::vector<RankId> members, RankId rank);

/// A communicator is declared once; ranks create their groups in the order of declaration.
struct Communicator {
  /// "tp", "dp" ("shard" and "replica"), "pp", "embedding", "norms", "world"; "ep", "etp",
  /// "etp_ep", "edp" ("expert_shard" and "expert_replica"), "expert_norms"
  std::string name;
  AxisSet axes;  ///< members differ in these coordinates only
  /// Restricts the pp coordinate of the members (the embedding group: first and last). Empty: all.
  std::vector<int> stages;
  GridKind grid = GridKind::Dense;
  Cut cut{};  ///< not of groups over pp
  friend bool operator==(const Communicator&, const Communicator&) = default;
};

/// Name of the communicator of a Collective kernel: its lane ("tp", "cp"); on the ep lane, where
/// several take turns, what stands before the first point of the kernel's name ("ep.dispatch",
/// "etp.gather_experts").
std::string_view communicator_of(const Kernel& kernel);

/// The kernels of one pass over one chunk, in issue order; see `communicator_of`.
struct KernelList {
  std::string name;  ///< "stage3.chunk1.forward"
  std::vector<Kernel> kernels;
  friend bool operator==(const KernelList&, const KernelList&) = default;
};

struct Op {
  OpKind kind = OpKind::Compute;
  Lane lane = Lane::Compute;
  Pass pass = Pass::Forward;  ///< Compute
  int chunk = -1;          ///< local chunk (its global stage: Program::stage_map); -1: whole rank
  int microbatch = -1;     ///< -1: once per step
  KernelListId kernels{};  ///< Compute
  Payload payload = Payload::None;
  int peer_stage = -1;  ///< Send, Recv
  Collective collective = Collective::AllReduce;
  CommunicatorId communicator{};  ///< Collective, Send, Recv
  Bytes bytes;                    ///< Collective (nccl-tests' convention), Send, Recv
  DType dtype = DType::Fp32;
  HostWork host = HostWork::None;
  /// Ops of the same stage that must have finished, beyond the order of the own lane.
  std::vector<OpId> after;
  friend bool operator==(const Op&, const Op&) = default;
};

/// What all ranks of one pipeline coordinate do. Each lane runs its ops in the order in which they
/// stand here; ops of different lanes are ordered by `after` alone.
struct StageProgram {
  IdVector<OpId, Op> ops;
};

/// Bytes a rank of this stage needs, by category; `peak` is what the verifier compares.
struct MemoryNeed {
  Bytes parameters, gradients, optimizer, activations, buffers;
  Bytes peak() const { return parameters + gradients + optimizer + activations + buffers; }
  friend bool operator==(const MemoryNeed&, const MemoryNeed&) = default;
};

struct Program {
  RankGrid grid;
  /// The same ranks as seen by experts (facts: Megatron-Core's second generator): tp is the
  /// experts' tensor parallelism, cp 1, dp their data parallelism. The groups over pp are those of
  /// `grid`. Absent in dense models.
  std::optional<RankGrid> expert_grid;
  int chunks = 1;  ///< local chunks per stage (v; with pp = 1 the buckets, see planner/lower.h)
  StageMap stage_map = StageMap::Ring;      ///< which part of the model a chunk is
  int microbatches = 1;                     ///< per data-parallel replica
  std::vector<Communicator> communicators;  ///< indexed by CommunicatorId, in creation order
  std::vector<KernelList> kernel_lists;     ///< indexed by KernelListId
  std::vector<StageProgram> stages;         ///< indexed by pp coordinate
  std::vector<MemoryNeed> memory;           ///< indexed by pp coordinate
  Bytes memory_limit;                       ///< of one device

  const StageProgram& of(RankId rank) const;
  /// The members of `communicator` that `rank` shares it with, in increasing rank; empty if `rank`
  /// is not a member.
  std::vector<RankId> members(CommunicatorId communicator, RankId rank) const;
  /// The rank at `peer_stage` with otherwise equal coordinates.
  RankId peer(RankId rank, int peer_stage) const;
  /// The grid that a communicator's axes refer to.
  const RankGrid& grid_of(const Communicator& communicator) const;
  GlobalStages global_stages() const;
};

/// The text form: one line per declaration, kernel and op, stable, meant for reading and diffing.
/// `parse_program(to_text(p))` equals `p`. parse throws Error{InvalidInput} with `name`, line and
/// reason.
std::string to_text(const Program& program);
Program parse_program(std::string_view text, const std::string& name);

/// The head of an op's line in the text form, as it is shown in messages and timelines:
/// "compute forward chunk 1 microbatch 3", "send activation chunk 0 microbatch 2 to stage 1".
std::string describe(const Op& op);

/// SHA-256 over the ops that `rank` runs, in program order with peers and members substituted.
/// The executor feeds the same lines for what it executed, and must get the same digest.
class ProgramDigest {
 public:
  void add(const Program& program, RankId rank, OpId op);
  std::string hex() const;

 private:
  std::string lines_;
};

/// The digest of a whole Program: that of to_text(program).
std::string program_digest(const Program& program);

bool operator==(const StageProgram& a, const StageProgram& b);
bool operator==(const Program& a, const Program& b);

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::OpKind> =
    std::to_array<Named<program::OpKind>>({{program::OpKind::Compute, "compute"},
                                           {program::OpKind::Send, "send"},
                                           {program::OpKind::Recv, "recv"},
                                           {program::OpKind::Collective, "collective"},
                                           {program::OpKind::Host, "host"}});
template <>
inline constexpr auto kNames<program::Pass> =
    std::to_array<Named<program::Pass>>({{program::Pass::Forward, "forward"},
                                         {program::Pass::Backward, "backward"},
                                         {program::Pass::BackwardInput, "backward_input"},
                                         {program::Pass::BackwardWeight, "backward_weight"},
                                         {program::Pass::Optimizer, "optimizer"}});
template <>
inline constexpr auto kNames<program::Payload> = std::to_array<Named<program::Payload>>(
    {{program::Payload::None, "none"},
     {program::Payload::Activation, "activation"},
     {program::Payload::Gradient, "gradient"},
     {program::Payload::ChunkGradients, "chunk_gradients"},
     {program::Payload::ChunkParameters, "chunk_parameters"},
     {program::Payload::EmbeddingGradients, "embedding_gradients"},
     {program::Payload::EmbeddingParameters, "embedding_parameters"},
     {program::Payload::ReplicatedGradients, "replicated_gradients"},
     {program::Payload::StepScalars, "step_scalars"},
     {program::Payload::MirrorGradients, "mirror_gradients"},
     {program::Payload::ExpertGradients, "expert_gradients"},
     {program::Payload::ExpertParameters, "expert_parameters"},
     {program::Payload::ShardGradients, "shard_gradients"},
     {program::Payload::UpdateNorms, "update_norms"}});
template <>
inline constexpr auto kNames<program::GridKind> = std::to_array<Named<program::GridKind>>(
    {{program::GridKind::Dense, "dense"}, {program::GridKind::Expert, "expert"}});
template <>
inline constexpr auto kNames<program::Cut::Kind> =
    std::to_array<Named<program::Cut::Kind>>({{program::Cut::Kind::None, "none"},
                                              {program::Cut::Kind::Within, "within"},
                                              {program::Cut::Kind::Across, "across"}});
template <>
inline constexpr auto kNames<program::HostWork> = std::to_array<Named<program::HostWork>>(
    {{program::HostWork::None, "none"}, {program::HostWork::LoadBatch, "load_batch"}});
}  // namespace foresail
