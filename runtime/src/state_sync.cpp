#include "state_sync.h"

#include <algorithm>

#include "host_copy.h"
#include "storage.h"

namespace foresail::runtime {

using program::Op;
using program::OpKind;
using program::Payload;

namespace {

void expect_bytes(const Op& op, const at::Tensor& tensor) {
  FORESAIL_EXPECT(op.bytes.count() == static_cast<std::int64_t>(tensor.nbytes()));
}

/// The values of 0-dim tensors, in one wait for the device.
std::vector<double> doubles_of(const std::vector<at::Tensor>& scalars) {
  if (scalars.empty()) return {};
  const at::Tensor values = to_host(at::stack(scalars));
  const auto* first = values.data_ptr<double>();
  return {first, first + values.numel()};
}

/// Whether a pass reads parameters.
bool reads_parameters(program::Pass pass) {
  using program::Pass;
  return pass == Pass::Forward || pass == Pass::Backward || pass == Pass::BackwardInput;
}

}  // namespace

StateSync::StateSync(const Job& job, Stage& stage, const MeshPlace& place, Device& device)
    : job_(job), stage_(stage), place_(place), device_(device) {
  const Traffic common = traffic_of(Payload::ChunkGradients, Payload::ChunkParameters);
  const Traffic experts = traffic_of(Payload::ExpertGradients, Payload::ExpertParameters);
  is_sharded_ = common.is_sharded;
  for (Bucket* bucket : stage.all_buckets()) {
    const bool is_chunk = bucket != stage.embedding_bucket();
    const Traffic once{.is_sharded = common.is_sharded};
    owned_.push_back(own(*bucket, is_chunk ? common : once, place.shard));
  }
  for (std::size_t chunk = 0; chunk < stage.chunk_count(); ++chunk) {
    Bucket* bucket = stage.expert_bucket(static_cast<int>(chunk));
    if (bucket == nullptr) {
      experts_.emplace_back();
      continue;
    }
    experts_.push_back(own(*bucket, experts, place.experts.shard));
    experts_.back().is_sharded = experts.is_sharded;
  }
}

/// How the stage's ops move the state of one kind of bucket.
StateSync::Traffic StateSync::traffic_of(Payload gradients, Payload parameters) const {
  Traffic traffic;
  for (const Op& op : job_.program.stages.at(static_cast<std::size_t>(place_.pp)).ops) {
    if (op.kind != OpKind::Collective) continue;
    if (op.payload == parameters) traffic.gathers = traffic.gathers || op.microbatch >= 0;
    if (op.payload != gradients) continue;
    traffic.is_sharded = traffic.is_sharded || op.collective == Collective::ReduceScatter;
    traffic.leaves = traffic.leaves || op.microbatch >= 0;
  }
  return traffic;
}

StateSync::Owned StateSync::own(Bucket& bucket, const Traffic& traffic, int shard) const {
  Owned owned;
  owned.bucket = &bucket;
  owned.shard_place = shard;
  at::Tensor values = bucket.values();
  owned.grads = bucket.grads();
  if (traffic.is_sharded) {
    values = bucket.shard_of(values, shard);
    // What is reduced once a step lands in the bucket; a sum over microbatches has its own place.
    owned.is_sum = traffic.leaves;
    owned.grads = bucket.shard_of(bucket.grads(), shard);
    if (owned.is_sum) owned.grads = at::zeros_like(owned.grads);
    owned.first = shard * values.numel();
  }
  owned.master = values;
  if (bucket.values().scalar_type() != at::kFloat) {
    bucket.values().copy_(bucket.masters());
    at::Tensor masters = bucket.masters();
    owned.master = traffic.is_sharded ? bucket.shard_of(masters, shard).clone() : masters;
    bucket.drop_masters();
  }
  if (traffic.gathers) {
    const bool is_master = owned.master.is_same(values);
    values = values.clone();
    if (is_master) owned.master = values;
    take_storage(bucket.values());
    owned.shard = values;
  }
  owned.values = values;
  if (owned.is_sum) take_storage(bucket.grads());
  make_optimizer(owned);
  return owned;
}

void StateSync::make_optimizer(Owned& owned) const {
  owned.norms = UpdateNorms(*owned.bucket, owned.extent());
  const program::Training& training = job_.training;
  owned.optimizer = std::make_unique<Optimizer>(
      OptimizerOptions{.kind = training.optimizer, .weight_decay = training.weight_decay},
      owned.master, owned.norms.parts());
}

bool StateSync::is_of_experts(const Op& op) const {
  const program::Communicator& group = job_.program.communicators.at(op.communicator.value);
  return group.grid == program::GridKind::Expert;
}

std::vector<StateSync::Owned*> StateSync::all_owned() {
  std::vector<Owned*> all;
  for (std::vector<Owned>* some : {&owned_, &experts_}) {
    for (Owned& owned : *some) {
      if (owned.bucket != nullptr) all.push_back(&owned);
    }
  }
  return all;
}

StateSync::Owned& StateSync::owned_of(const Op& op) {
  const auto chunk = static_cast<std::size_t>(op.chunk);
  if (is_of_experts(op)) {
    FORESAIL_EXPECT(experts_.at(chunk).bucket != nullptr);
    return experts_[chunk];
  }
  // Shards of the embedding belong to no chunk.
  const bool is_embedding = op.payload == Payload::EmbeddingGradients ||
                            op.payload == Payload::EmbeddingParameters || op.chunk < 0;
  FORESAIL_EXPECT(!is_embedding || stage_.embedding_bucket() != nullptr);
  return is_embedding ? owned_.back() : owned_.at(chunk);
}

std::vector<StateSync::Owned*> StateSync::owned_of_chunk(int chunk) {
  const auto at = static_cast<std::size_t>(chunk);
  std::vector<Owned*> all{&owned_.at(at)};
  if (experts_.at(at).bucket != nullptr) all.push_back(&experts_.at(at));
  return all;
}

void StateSync::before_pass(const Op& op) {
  if (op.pass == program::Pass::Optimizer) return;
  for (Owned* owned : owned_of_chunk(op.chunk)) {
    Bucket& bucket = *owned->bucket;
    if (owned->shard.defined() && reads_parameters(op.pass)) {
      const std::scoped_lock lock(mutex_);
      FORESAIL_EXPECT(!owned->arrived.empty());
      device_.keep(owned->arrived.front());
      give_storage(bucket.values(), std::move(owned->arrived.front()));
      owned->arrived.pop_front();
    }
    const bool adds_gradients = op.pass != program::Pass::Forward;
    if (owned->is_sum && adds_gradients && !has_storage(bucket.grads())) {
      give_storage(bucket.grads(), at::zeros({bucket.padded()}, bucket.grads().options()));
    }
  }
}

void StateSync::after_pass(const Op& op) {
  if (op.pass == program::Pass::Optimizer) return;
  for (Owned* owned : owned_of_chunk(op.chunk)) {
    Bucket& bucket = *owned->bucket;
    if (owned->shard.defined() && reads_parameters(op.pass)) take_storage(bucket.values());
    const bool is_complete =
        op.pass == program::Pass::Backward || op.pass == program::Pass::BackwardWeight;
    if (!owned->is_sum || !is_complete) continue;
    const std::scoped_lock lock(mutex_);
    owned->leaving.push_back(take_storage(bucket.grads()));
  }
}

void StateSync::run(const Op& op, Communicator& communicator) {
  switch (op.payload) {
    case Payload::ChunkGradients:
    case Payload::EmbeddingGradients:
    case Payload::ExpertGradients:
      return reduce_gradients(op, communicator);
    case Payload::ChunkParameters:
    case Payload::EmbeddingParameters:
    case Payload::ExpertParameters:
      return gather_parameters(op, communicator);
    case Payload::ReplicatedGradients:
      return reduce_replicated(op, communicator);
    case Payload::MirrorGradients:
      return sum_mirrors(op, communicator);
    case Payload::ShardGradients:
      return sum_replicas(op, communicator);
    case Payload::UpdateNorms:
      return sum_update_norms(op, communicator);
    default:
      contract_failed("a payload of the state", __FILE__, __LINE__);
  }
}

void StateSync::reduce_gradients(const Op& op, Communicator& communicator) {
  Owned& owned = owned_of(op);
  Bucket& bucket = *owned.bucket;
  if (op.collective == Collective::AllReduce) {
    at::Tensor grads = bucket.grads().narrow(0, 0, bucket.elements());
    expect_bytes(op, grads);
    communicator.all_reduce(grads, Reduction::Sum);
    return;
  }
  FORESAIL_EXPECT(op.collective == Collective::ReduceScatter);
  at::Tensor whole = owned.is_sum ? take_first(owned.leaving) : bucket.grads();
  expect_bytes(op, whole);
  if (owned.is_sum) {
    at::Tensor shard = bucket.shard_of(whole, owned.shard_place);
    communicator.reduce_scatter(whole, shard);
    owned.grads.add_(shard);
    return;
  }
  communicator.reduce_scatter(whole, owned.grads);
  whole.narrow(0, 0, owned.first).zero_();
  const std::int64_t end = owned.first + owned.grads.numel();
  whole.narrow(0, end, whole.numel() - end).zero_();
}

at::Tensor StateSync::take_first(std::deque<at::Tensor>& queue) {
  const std::scoped_lock lock(mutex_);
  FORESAIL_EXPECT(!queue.empty());
  at::Tensor first = std::move(queue.front());
  queue.pop_front();
  return first;
}

/// The other copy saw the other half of the microbatches. Experts travel in the same message.
void StateSync::sum_mirrors(const Op& op, Communicator& communicator) {
  std::vector<at::Tensor> parts;
  for (const Owned* owned : owned_of_chunk(op.chunk)) {
    parts.push_back(owned->bucket->grads().narrow(0, 0, owned->bucket->elements()));
  }
  at::Tensor message = parts.size() == 1 ? parts.front() : at::cat(parts);
  expect_bytes(op, message);
  communicator.all_reduce(message, Reduction::Sum);
  if (parts.size() == 1) return;
  std::int64_t first = 0;
  for (at::Tensor& part : parts) {
    part.copy_(message.narrow(0, first, part.numel()));
    first += part.numel();
  }
}

/// Groups that shard the states each hold a copy of this shard, or of experts that no two of the
/// group share.
void StateSync::sum_replicas(const Op& op, Communicator& communicator) {
  Owned& owned = owned_of(op);
  expect_bytes(op, owned.grads);
  communicator.all_reduce(owned.grads, Reduction::Sum);
}

void StateSync::gather_parameters(const Op& op, Communicator& communicator) {
  Owned& owned = owned_of(op);
  at::Tensor values = owned.bucket->values();
  if (owned.shard.defined()) {
    at::Tensor whole = at::empty({owned.bucket->padded()}, owned.shard.options());
    expect_bytes(op, whole);
    communicator.all_gather(owned.shard, whole);
    const std::scoped_lock lock(mutex_);
    owned.arrived.push_back(std::move(whole));
    return;
  }
  expect_bytes(op, values);
  const at::Tensor shard = owned.bucket->shard_of(values, owned.shard_place).clone();
  communicator.all_gather(shard, values);
}

/// Norms, biases and positions saw a shard of the sequence. All of them go in one message, and of
/// a parameter that this rank owns in part, that part.
void StateSync::reduce_replicated(const Op& op, Communicator& tp) {
  at::Tensor message = at::zeros({op.bytes.count() / size_of(DType::Fp32)}, float_options());
  std::vector<std::pair<at::Tensor, at::Tensor>> parts;  // of gradients and of the message
  std::int64_t place = 0;
  for (const Owned& owned : owned_) {
    for (const auto& parameter : owned.bucket->parameters()) {
      if (parameter->spread != Spread::Replicated) continue;
      const Extent own = overlap(parameter->extent(), owned.extent());
      if (own.count > 0) {
        parts.emplace_back(owned.grads.narrow(0, own.first - owned.first, own.count),
                           message.narrow(0, place + own.first - parameter->offset, own.count));
      }
      place += parameter->value.numel();
    }
  }
  FORESAIL_EXPECT(place == message.numel());
  for (const auto& [grads, part] : parts) part.copy_(grads);
  tp.all_reduce(message, Reduction::Sum);
  for (const auto& [grads, part] : parts) grads.copy_(part);
}

/// Replicas hold the same gradients, as do the tensor-parallel ranks of a replicated parameter and
/// the stages that share a tied matrix or hold a mirrored copy: one of them counts.
bool StateSync::counts(const Parameter& parameter, const Owned& owned) const {
  if (!is_sharded_ && place_.copy != 0) return false;
  if (place_.replica != 0) return false;
  if (parameter.spread == Spread::Replicated && place_.tp != 0) return false;
  const bool is_tied_copy = owned.bucket == stage_.embedding_bucket() && place_.pp != 0;
  return !is_tied_copy && !is_mirror(owned);
}

/// The same of routed experts, on their own mesh.
bool StateSync::counts_expert(const Parameter& parameter, const Owned& owned) const {
  if (!owned.is_sharded && place_.experts.copy != 0) return false;
  if (place_.experts.replica != 0) return false;
  if (parameter.spread == Spread::Replicated && place_.experts.etp != 0) return false;
  return !is_mirror(owned);
}

/// The second copy of a chunk whose first one stands on another stage.
bool StateSync::is_mirror(const Owned& owned) const {
  return job_.program.stage_map == program::StageMap::Mirrored && job_.program.chunks > 1 &&
         (owned.bucket == &stage_.bucket(1) || owned.bucket == stage_.expert_bucket(1));
}

at::TensorOptions StateSync::float_options() const {
  return at::device(stage_.scope().device).dtype(at::kFloat);
}

StepScalars StateSync::local_scalars(double loss) const {
  std::vector<at::Tensor> norms;
  const auto add = [&](const Parameter& parameter, const Owned& owned) {
    const Extent own = overlap(parameter.extent(), owned.extent());
    if (own.count == 0) return;
    norms.push_back(squared_norm(owned.grads.narrow(0, own.first - owned.first, own.count)));
  };
  for (const Owned& owned : owned_) {
    for (const auto& parameter : owned.bucket->parameters()) {
      if (counts(*parameter, owned)) add(*parameter, owned);
    }
  }
  for (const Owned& owned : experts_) {
    if (owned.bucket == nullptr) continue;
    for (const auto& parameter : owned.bucket->parameters()) {
      if (counts_expert(*parameter, owned)) add(*parameter, owned);
    }
  }
  StepScalars scalars;
  for (const double norm : doubles_of(norms)) scalars.squared_norm += norm;
  if (place_.tp == 0) scalars.loss = loss / place_.copies();  // 0 on ranks without a head
  return scalars;
}

StepScalars StateSync::reduce(const StepScalars& local, Communicator& world) const {
  at::Tensor sums =
      at::tensor({local.squared_norm, local.loss}, at::kDouble).to(at::kFloat).to(float_options());
  world.all_reduce(sums, Reduction::Sum);
  const at::Tensor values = to_host(sums);
  return {values[0].item<float>(), values[1].item<float>()};
}

void StateSync::for_each_counted(
    const std::function<void(const Parameter&, std::int64_t, const at::Tensor&)>& visit) const {
  for (const Owned& owned : owned_) {
    for (const auto& parameter : owned.bucket->parameters()) {
      if (!counts(*parameter, owned)) continue;
      const Extent own = overlap(parameter->extent(), owned.extent());
      if (own.count == 0) continue;
      visit(*parameter, own.first - parameter->offset,
            owned.master.narrow(0, own.first - owned.first, own.count));
    }
  }
}

void StateSync::fill(const std::function<void()>& write) {
  const std::vector<Owned*> all = all_owned();
  for (const Owned* owned : all) {
    at::Tensor& values = owned->bucket->values();
    if (owned->shard.defined()) give_storage(values, at::zeros_like(values));
    if (values.scalar_type() != at::kFloat) owned->bucket->make_masters();
  }
  write();
  for (Owned* owned : all) {
    Bucket& bucket = *owned->bucket;
    const at::Tensor own = bucket.masters().narrow(0, owned->first, owned->master.numel());
    if (!owned->master.is_alias_of(own)) owned->master.copy_(own);
    if (!owned->shard.defined()) bucket.values().copy_(bucket.masters());
    if (owned->shard.defined()) {
      owned->shard.copy_(own);
      take_storage(bucket.values());
    }
    bucket.drop_masters();
  }
}

void StateSync::optimize(std::string_view kernel, const OptimizerStep& step) {
  const bool is_lamb = job_.training.optimizer == program::Optimizer::Lamb;
  if (kernel == "optimizer.apply") return apply_updates(step.learning_rate);
  FORESAIL_EXPECT(kernel == "optimizer");
  const double scale = clip_scale(job_.training.clip, step.gradient_norm);
  for (Owned* owned : all_owned()) {
    if (is_lamb) {
      owned->optimizer->make_updates(owned->grads, scale);
    } else {
      owned->optimizer->step(owned->grads, scale, step.learning_rate);
      finish_step(*owned);
    }
  }
  if (is_lamb) measure_updates();
}

/// Rounds what has been updated, and clears the gradients.
void StateSync::finish_step(Owned& owned) const {
  if (!owned.master.is_same(owned.values)) owned.values.copy_(owned.master);
  owned.grads.zero_();
}

/// This rank's part of the norms.
void StateSync::measure_updates() {
  std::vector<at::Tensor> squares;  // of a value and of its update, part by part
  for (const Owned* owned : all_owned()) {
    for (std::size_t part = 0; part < owned->norms.parts().size(); ++part) {
      for (at::Tensor& square : owned->optimizer->squared_norms(part, owned->grads)) {
        squares.push_back(std::move(square));
      }
    }
  }
  const std::vector<double> values = doubles_of(squares);
  const double* next = values.data();
  for (Owned* owned : all_owned()) next = owned->norms.measure(next);
  FORESAIL_EXPECT(next == values.data() + values.size());
}

/// A replicated matrix counts on the first of tp, shards of which the group spans copies on the
/// first group that shards. Experts have groups of their own.
void StateSync::sum_update_norms(const Op& op, Communicator& communicator) {
  const bool of_experts = is_of_experts(op);
  const ExpertPlace& experts = place_.experts;
  const int parts = of_experts ? experts.etp_size * experts.shards : place_.tp_size * place_.shards;
  const bool is_copy =
      communicator.size() > parts && (of_experts ? experts.replica : place_.replica) != 0;
  const bool is_first = (of_experts ? experts.etp : place_.tp) == 0;
  std::vector<UpdateNorms*> buckets;
  for (Owned& owned : of_experts ? experts_ : owned_) buckets.push_back(&owned.norms);
  sum_norms(op, buckets, {.sharded = !is_copy, .replicated = !is_copy && is_first}, communicator,
            float_options());
}

void StateSync::apply_updates(double learning_rate) {
  for (Owned* owned : all_owned()) {
    owned->optimizer->apply(owned->grads, owned->norms.of_parts(), learning_rate);
    finish_step(*owned);
  }
}

}  // namespace foresail::runtime
