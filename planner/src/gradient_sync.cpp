#include "gradient_sync.h"

#include <algorithm>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::planner {

using program::Op;
using program::OpId;
using program::OpKind;
using program::Pass;
using program::Payload;

namespace {

constexpr int kPerStep = -1;  // microbatch of what happens once per step

Op collective_op(Collective kind, Lane lane, program::CommunicatorId communicator) {
  Op op;
  op.kind = OpKind::Collective;
  op.lane = lane;
  op.collective = kind;
  op.communicator = communicator;
  return op;
}

bool completes_gradients(const SchedulePass& pass) {
  return pass.pass == Pass::Backward || pass.pass == Pass::BackwardWeight;
}

std::int64_t padded(std::int64_t parameters, std::int64_t ranks) {
  return (parameters + ranks - 1) / ranks * ranks;
}

}  // namespace

GradientSync::GradientSync(const StageInput& input, IdVector<OpId, Op>& ops)
    : in_(input),
      ops_(ops),
      order_(input.schedule.order[static_cast<std::size_t>(input.stage)]),
      dp_{input.communicators.find("dp"), input.plan.layout.shard_ranks()},
      experts_{input.communicators.find("edp"), expert_shard_ranks(input.plan)},
      replica_{input.communicators.find("replica"), dp_.ranks},
      expert_replica_{input.communicators.find("expert_replica"), experts_.ranks} {
  if (!dp_.communicator) dp_.communicator = input.communicators.find("shard");
  if (!experts_.communicator) experts_.communicator = input.communicators.find("expert_shard");
  const Layout& layout = in_.plan.layout;
  if (dp_.communicator || experts_.communicator) zero_ = layout.zero_stage;
  if (zero_ == 3 || (zero_ == 2 && layout.pp == 1)) rhythm_ = Rhythm::PerMicrobatch;
  last_backward_.resize(in_.work.chunks.size());
  first_gather_.resize(in_.work.chunks.size());
  is_offloaded_.resize(in_.work.chunks.size());
  pass_gather_.resize(order_.size());
  for (std::size_t at = 0; at < order_.size(); ++at) {
    if (completes_gradients(order_[at])) {
      last_backward_[static_cast<std::size_t>(order_[at].chunk)] = at;
    }
  }
  is_reduced_.resize(in_.work.chunks.size());
  gathered_at_.resize(order_.size());
  reduced_behind_.resize(order_.size());
  if (reduces_early() && rhythm_ == Rhythm::PerStep && !is_mirrored(in_.plan)) plan_reductions();
  if (is_resident() && layout.overlap.aligned.parameters) align_gathers();
}

/// Megatron-LM's rule for aligned ones: stage r starts that of a chunk r backward passes behind the
/// chunk's last, when stage 0 has got there; where no such pass is left, behind the last one.
void GradientSync::plan_reductions() {
  std::vector<std::size_t> backward;  // positions
  for (std::size_t at = 0; at < order_.size(); ++at) {
    if (completes_gradients(order_[at])) backward.push_back(at);
  }
  const bool is_aligned = in_.plan.layout.overlap.aligned.gradients;
  const std::size_t later = is_aligned ? static_cast<std::size_t>(in_.stage) : 0;
  for (std::size_t index = 0; index + later < backward.size(); ++index) {
    const int chunk = order_[backward[index]].chunk;
    if (backward[index] == last_backward_[static_cast<std::size_t>(chunk)]) {
      reduced_behind_[backward[index + later]] = chunk;
    }
  }
}

/// Megatron-LM's rule: with the first forward pass of chunk j on stage 0, thus r passes earlier on
/// stage r, all start the gather of chunk j + 1; those of chunks 0 and 1 start with the step.
void GradientSync::align_gathers() {
  std::vector<std::size_t> forward;  // positions
  for (std::size_t at = 0; at < order_.size(); ++at) {
    if (order_[at].pass == Pass::Forward) forward.push_back(at);
  }
  std::vector<bool> is_begun(in_.work.chunks.size());
  for (std::size_t index = 0; index < forward.size(); ++index) {
    const auto chunk = static_cast<std::size_t>(order_[forward[index]].chunk);
    if (is_begun[chunk]) continue;
    is_begun[chunk] = true;
    if (chunk == 0 || chunk + 1 == is_begun.size()) continue;
    const auto earlier = static_cast<std::size_t>(in_.stage);
    FORESAIL_EXPECT(index > earlier);  // a group of at least pp microbatches goes before
    gathered_at_[forward[index - earlier]] = static_cast<int>(chunk) + 1;
  }
}

void GradientSync::begin() {
  if (is_resident() && has_prefetch()) {
    if (in_.plan.layout.overlap.aligned.parameters) {
      gather_bucket(0, {});
      gather_bucket(1, {});
    } else {
      gather_all({});
    }
  }
  if (zero_ != 3) return;
  // The tied matrix stays gathered through the step: two chunks use it in every microbatch.
  if (in_.work.tied_parameters > 0 && dp_.communicator) {
    tied_gather_ = gather(dp_, Payload::EmbeddingParameters, in_.work.tied_parameters, {});
  }
  if (!has_prefetch()) return;
  gather_for_pass(0, {});
  gather_for_pass(1, {});
}

GradientSync::Ops GradientSync::before(std::size_t position, const Ops& passes, const Ops& inputs) {
  const SchedulePass& pass = order_[position];
  if (zero_ == 3 && !has_prefetch()) {
    gather_for_pass(position, position > 0 ? Ops{passes[position - 1]} : Ops{});
  }
  if (const auto chunk = gathered_at_[position]) {
    Ops begins = inputs;  // of the pass
    if (position > 0) begins.push_back(passes[position - 1]);
    gather_bucket(*chunk, begins);
  }
  Ops waits;
  const auto wait_once = [&](std::optional<OpId>& id) {
    if (id) waits.push_back(*std::exchange(id, std::nullopt));
  };
  wait_once(first_gather_[static_cast<std::size_t>(pass.chunk)]);
  if (holds_tied(pass.chunk)) wait_once(tied_gather_);
  wait_once(pass_gather_[position]);
  wait_once(unfinished_);
  return waits;
}

void GradientSync::after(std::size_t position, const Ops& passes) {
  const SchedulePass& pass = order_[position];
  if (zero_ == 3 && has_prefetch()) gather_for_pass(position + 2, {passes[position]});
  if (is_mirrored(in_.plan) || !completes_gradients(pass)) return;
  std::optional<int> complete = reduced_behind_[position];
  std::optional<OpId> reduced;
  if (rhythm_ == Rhythm::PerMicrobatch) {
    const ChunkReduction own = reduce_chunk(pass.chunk, pass.microbatch, passes[position]);
    reduced = own.last();
    if (position == last_backward_[static_cast<std::size_t>(pass.chunk)]) {
      complete = pass.chunk;
      if (const auto sum = sum_chunk_shards(pass.chunk, own, passes[position])) reduced = sum;
    }
    if (!reduces_early()) unfinished_ = reduced;
  } else if (complete) {
    reduced = synchronise_chunk(*complete, passes[position]);
  }
  // Sums over tp come last, and change what norms and biases have in every bucket.
  const bool is_whole = !in_.plan.layout.sequence_parallel || in_.work.replicated() == 0;
  if (reduces_early() && complete && is_whole) {
    offload_gradients(*complete, {reduced.value_or(passes[position])});
  }
}

void GradientSync::finish(const Ops& passes) {
  if (is_mirrored(in_.plan)) {
    reduce_mirrored(passes);
  } else if (rhythm_ == Rhythm::PerStep) {
    for (std::size_t position = 0; position < order_.size(); ++position) {
      const auto chunk = static_cast<std::size_t>(order_[position].chunk);
      if (position == last_backward_[chunk] && !is_reduced_[chunk]) {
        synchronise_chunk(order_[position].chunk, passes.back());
      }
    }
  }
  reduce_embedding(passes);
  reduce_replicated(passes);
  offload_rest(passes);
  reduce_scalars(passes);
  const Ops optimized = optimize();
  if (is_resident() && !has_prefetch()) gather_all(optimized);
}

bool GradientSync::holds_tied(int chunk) const {
  if (in_.work.tied_parameters == 0) return false;
  const StagePart part = stage_part(in_.plan, in_.stage, chunk);
  return part.has_embedding || part.has_head;
}

OpId GradientSync::gather(const Copies& copies, Payload payload, std::int64_t parameters,
                          Ops after) {
  Op op = collective_op(Collective::AllGather, Lane::Dp, *copies.communicator);
  op.payload = payload;
  op.dtype = storage_dtype(in_.plan.training);
  op.bytes = padded(parameters, copies.ranks) * Bytes(size_of(op.dtype));
  op.after = std::move(after);
  return ops_.push_back(std::move(op));
}

OpId GradientSync::reduce(const Copies& copies, Payload payload, std::int64_t parameters,
                          Ops after) {
  const bool is_shared = zero_ >= 1;
  const Collective kind = is_shared ? Collective::ReduceScatter : Collective::AllReduce;
  Op op = collective_op(kind, Lane::Dp, *copies.communicator);
  op.payload = payload;
  op.dtype = in_.plan.training.gradient_dtype;
  const std::int64_t size = is_shared ? padded(parameters, copies.ranks) : parameters;
  op.bytes = size * Bytes(size_of(op.dtype));
  op.after = std::move(after);
  last_reduction_ = ops_.push_back(std::move(op));
  return *last_reduction_;
}

/// What all share, then the experts. The last of both ends last, since the lane is in order.
std::optional<OpId> GradientSync::gather_chunk(int chunk, int microbatch, const Ops& after) {
  const ChunkWork& work = in_.work.chunks[static_cast<std::size_t>(chunk)];
  std::optional<OpId> last;
  const auto add = [&](const Copies& copies, Payload payload, std::int64_t parameters) {
    last = gather(copies, payload, parameters, after);
    ops_[*last].chunk = chunk;
    ops_[*last].microbatch = microbatch;
  };
  if (dp_.communicator) add(dp_, Payload::ChunkParameters, work.parameters);
  if (experts_.communicator && work.experts > 0) {
    add(experts_, Payload::ExpertParameters, work.experts);
  }
  return last;
}

void GradientSync::gather_bucket(int chunk, const Ops& after) {
  if (dp_.communicator && holds_tied(chunk) && !std::exchange(is_tied_gathered_, true)) {
    const OpId id = gather(dp_, Payload::EmbeddingParameters, in_.work.tied_parameters, after);
    if (has_prefetch()) tied_gather_ = id;
  }
  const auto id = gather_chunk(chunk, kPerStep, after);
  if (has_prefetch()) first_gather_[static_cast<std::size_t>(chunk)] = id;
}

/// In the order in which the forward passes need them.
void GradientSync::gather_all(const Ops& after) {
  for (std::size_t chunk = 0; chunk < in_.work.chunks.size(); ++chunk) {
    gather_bucket(static_cast<int>(chunk), after);
  }
}

void GradientSync::gather_for_pass(std::size_t position, const Ops& after) {
  if (position >= order_.size()) return;
  const SchedulePass& pass = order_[position];
  if (pass.pass == Pass::BackwardWeight) return;  // reads no parameters
  pass_gather_[position] = gather_chunk(pass.chunk, pass.microbatch, after);
}

GradientSync::ChunkReduction GradientSync::reduce_chunk(int chunk, int microbatch, OpId after) {
  const ChunkWork& work = in_.work.chunks[static_cast<std::size_t>(chunk)];
  ChunkReduction reduced;
  const auto add = [&](const Copies& copies, Payload payload, std::int64_t parameters) {
    const OpId id = reduce(copies, payload, parameters, {after});
    ops_[id].chunk = chunk;
    ops_[id].microbatch = microbatch;
    return id;
  };
  if (dp_.communicator) reduced.common = add(dp_, Payload::ChunkGradients, work.parameters);
  if (experts_.communicator && work.experts > 0) {
    reduced.experts = add(experts_, Payload::ExpertGradients, work.experts);
  }
  return reduced;
}

/// The shard of each group that shards is summed with its copies. Once per step, when it has the
/// gradients of all microbatches.
OpId GradientSync::sum_shard(const Copies& copies, std::int64_t parameters, OpId shard) {
  Op op = collective_op(Collective::AllReduce, Lane::Replica, *copies.communicator);
  op.payload = Payload::ShardGradients;
  op.dtype = in_.plan.training.gradient_dtype;
  op.bytes = padded(parameters, copies.ranks) / copies.ranks * Bytes(size_of(op.dtype));
  op.after = {shard};
  last_reduction_ = ops_.push_back(std::move(op));
  return *last_reduction_;
}

/// Experts that a rank shares with nobody of its group are summed whole, behind the pass alone.
std::optional<OpId> GradientSync::sum_chunk_shards(int chunk, const ChunkReduction& reduced,
                                                   OpId pass) {
  const ChunkWork& work = in_.work.chunks[static_cast<std::size_t>(chunk)];
  std::optional<OpId> last;
  const auto add = [&](const Copies& copies, std::int64_t parameters, OpId shard) {
    last = sum_shard(copies, parameters, shard);
    ops_[*last].chunk = chunk;
  };
  if (replica_.communicator && reduced.common) add(replica_, work.parameters, *reduced.common);
  if (expert_replica_.communicator && work.experts > 0) {
    add(expert_replica_, work.experts, reduced.experts.value_or(pass));
  }
  return last;
}

std::optional<OpId> GradientSync::synchronise_chunk(int chunk, OpId after) {
  is_reduced_[static_cast<std::size_t>(chunk)] = true;
  const ChunkReduction reduced = reduce_chunk(chunk, kPerStep, after);
  const auto sum = sum_chunk_shards(chunk, reduced, after);
  return sum ? sum : reduced.last();
}

/// First the two copies of every chunk, in the order of their global stages, which is the same on
/// both sides; then the replicas. On the pp lane behind all messages, for the reason below.
void GradientSync::reduce_mirrored(const Ops& passes) {
  const int stages = in_.plan.layout.pp;
  const auto mirror = in_.communicators.find(mirror_name(in_.plan, in_.stage));
  FORESAIL_EXPECT(mirror.has_value());
  const int low = in_.stage < stages / 2 ? 0 : 1;  // the chunk with the smaller global stage
  for (const int chunk : {low, 1 - low}) {
    const auto at = static_cast<std::size_t>(chunk);
    Op op = collective_op(Collective::AllReduce, Lane::Pp, *mirror);
    op.payload = Payload::MirrorGradients;
    op.chunk = chunk;
    op.dtype = in_.plan.training.gradient_dtype;
    const ChunkWork& work = in_.work.chunks[at];
    op.bytes = (work.parameters + work.experts) * Bytes(size_of(op.dtype));
    op.after = {reduces_early() ? passes[last_backward_[at]] : passes.back()};
    const OpId id = ops_.push_back(std::move(op));
    if (!synchronise_chunk(chunk, id)) synchronised_.push_back(id);
  }
}

/// First the two copies of the tied matrix (fp32 gradients: 4 V/t h bytes), then the replicas. The
/// first stands on the pp lane behind all messages: were it earlier, it would hold up messages that
/// the other stage needs to get there.
void GradientSync::reduce_embedding(const Ops& passes) {
  if (in_.work.tied_parameters == 0) return;
  OpId ready = passes.back();
  if (reduces_early()) {
    std::size_t last = 0;
    for (std::size_t chunk = 0; chunk < last_backward_.size(); ++chunk) {
      if (holds_tied(static_cast<int>(chunk))) last = std::max(last, last_backward_[chunk]);
    }
    ready = passes[last];
  }
  if (const auto embedding = in_.communicators.find("embedding")) {
    Op op = collective_op(Collective::AllReduce, Lane::Pp, *embedding);
    op.payload = Payload::EmbeddingGradients;
    op.dtype = in_.plan.training.gradient_dtype;
    op.bytes = in_.work.tied_parameters * Bytes(size_of(op.dtype));
    op.after = {ready};
    ready = ops_.push_back(std::move(op));
    if (!dp_.communicator) synchronised_.push_back(ready);
  }
  if (dp_.communicator) {
    const OpId reduced =
        reduce(dp_, Payload::EmbeddingGradients, in_.work.tied_parameters, {ready});
    if (replica_.communicator) sum_shard(replica_, in_.work.tied_parameters, reduced);
  }
}

/// Norms and biases saw only a shard of the sequence: their gradients are summed over tp.
void GradientSync::reduce_replicated(const Ops& passes) {
  const auto tp = in_.communicators.find("tp");
  const std::int64_t parameters = in_.work.replicated();
  if (!tp || !in_.plan.layout.sequence_parallel || parameters == 0) return;
  Op op = collective_op(Collective::AllReduce, Lane::Tp, *tp);
  op.payload = Payload::ReplicatedGradients;
  op.dtype = in_.plan.training.gradient_dtype;
  op.bytes = parameters * Bytes(size_of(op.dtype));
  op.after = {last_reduction_.value_or(passes.back())};
  if (!last_reduction_ && is_mirrored(in_.plan)) op.after = synchronised_;
  if (last_reduction_ && !dp_.communicator) {
    // Some chunks may have no experts, and so no reduction behind their last pass.
    op.after.push_back(passes.back());
    op.after.insert(op.after.end(), synchronised_.begin(), synchronised_.end());
  }
  synchronised_.push_back(ops_.push_back(std::move(op)));
}

/// Two fp32 sums over all ranks: squared gradient norm and loss.
void GradientSync::reduce_scalars(const Ops& passes) {
  if (last_reduction_) synchronised_.push_back(*last_reduction_);
  const auto world = in_.communicators.find("world");
  if (!world) return;
  Op op = collective_op(Collective::AllReduce, Lane::Dp, *world);
  op.payload = Payload::StepScalars;
  op.dtype = DType::Fp32;
  op.bytes = 2 * Bytes(size_of(DType::Fp32));
  op.after = std::exchange(synchronised_, {});
  op.after.push_back(passes.back());
  synchronised_.push_back(ops_.push_back(std::move(op)));
}

/// Two fp32 sums for each matrix. Groups over tp, and over that of experts, have lanes of their
/// own.
OpId GradientSync::sum_norms(program::CommunicatorId communicator, std::int64_t matrices,
                             OpId after) {
  Lane lane = Lane::Dp;
  if (in_.communicators.find("tp") == communicator) lane = Lane::Tp;
  if (in_.communicators.find("etp") == communicator) lane = Lane::Ep;
  Op op = collective_op(Collective::AllReduce, lane, communicator);
  op.payload = Payload::UpdateNorms;
  op.dtype = DType::Fp32;
  op.bytes = 2 * matrices * Bytes(size_of(DType::Fp32));
  op.after = {after};
  return ops_.push_back(std::move(op));
}

OpId GradientSync::copy_op(program::KernelListId kernels, Lane lane, Ops after) {
  Op op;
  op.lane = lane;
  op.pass = Pass::Optimizer;
  op.kernels = kernels;
  op.after = std::move(after);
  return ops_.push_back(std::move(op));
}

void GradientSync::offload_gradients(int chunk, const Ops& after) {
  const auto at = static_cast<std::size_t>(chunk);
  if (in_.kernels.offload_gradients.empty() || is_offloaded_[at]) return;
  is_offloaded_[at] = true;
  const auto kernels = in_.kernels.offload_gradients[at];
  if (!kernels) return;
  last_copy_ = copy_op(*kernels, Lane::Copy, after);
  ops_[*last_copy_].chunk = chunk;
}

void GradientSync::offload_rest(const Ops& passes) {
  Ops whole = synchronised_;
  if (last_reduction_) whole.push_back(*last_reduction_);
  whole.push_back(passes.back());
  for (std::size_t chunk = 0; chunk < in_.work.chunks.size(); ++chunk) {
    offload_gradients(static_cast<int>(chunk), whole);
  }
  if (const auto tied = in_.kernels.offload_tied) {
    last_copy_ = copy_op(*tied, Lane::Copy, whole);
  }
}

GradientSync::Ops GradientSync::optimize() {
  Ops done = optimize_on_host();
  const bool is_all_on_host = in_.plan.layout.optimizer_offload == 1;
  if (!is_all_on_host) {
    Op op;
    op.pass = Pass::Optimizer;
    op.kernels = in_.kernels.optimizer;
    op.after = synchronised_;
    done.push_back(ops_.push_back(std::move(op)));
  }
  // LAMB with parts of matrices on several ranks; law optimizer_offload_needs_adam.
  Ops summed;
  const auto sum = [&](const std::string& group, std::int64_t matrices) {
    const auto norms = in_.communicators.find(group);
    if (norms && matrices > 0) summed.push_back(sum_norms(*norms, matrices, done.back()));
  };
  sum(norms_communicator(in_.plan), matrix_count(in_.plan, in_.stage));
  sum(expert_norms_communicator(in_.plan), expert_matrix_count(in_.plan, in_.stage));
  if (in_.kernels.apply) done = {copy_op(*in_.kernels.apply, Lane::Compute, std::move(summed))};
  return done;
}

GradientSync::Ops GradientSync::optimize_on_host() {
  Ops before = synchronised_;
  if (last_copy_) before.push_back(*last_copy_);
  std::optional<OpId> last;
  for (std::size_t piece = 0; piece < in_.kernels.offload_update.size(); ++piece) {
    const OpId updated = copy_op(in_.kernels.offload_update[piece], Lane::Host, before);
    before.clear();
    last = copy_op(in_.kernels.offload_parameters[piece], Lane::Copy, {updated});
  }
  return last ? Ops{*last} : Ops{};
}

}  // namespace foresail::planner
