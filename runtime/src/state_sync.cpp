#include "state_sync.h"

#include <algorithm>

namespace foresail::runtime {

using program::Op;
using program::OpKind;
using program::Payload;

namespace {

void expect_bytes(const Op& op, const at::Tensor& tensor) {
  FORESAIL_EXPECT(op.bytes.count() == static_cast<std::int64_t>(tensor.nbytes()));
}

/// The intersection of a parameter with the owned range, as an offset and a length in the bucket.
struct Overlap {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
Overlap overlap(const Parameter& parameter, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = std::max(parameter.offset, first);
  const std::int64_t end = std::min(parameter.offset + parameter.value.numel(), first + count);
  return {begin, std::max<std::int64_t>(0, end - begin)};
}

/// Whether a pass may start before the gradients of the one before it have left.
bool outruns_reduction(const program::Program& program, int stage) {
  const auto& ops = program.stages.at(static_cast<std::size_t>(stage)).ops;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    const program::OpId reduction{i};
    if (ops[reduction].payload != Payload::ChunkGradients || ops[reduction].microbatch < 0)
      continue;
    for (std::uint32_t next = i + 1; next < ops.size(); ++next) {
      const Op& op = ops[program::OpId{next}];
      if (op.kind != OpKind::Compute) continue;
      const bool waits = op.pass == program::Pass::Optimizer ||
                         std::ranges::find(op.after, reduction) != op.after.end();
      if (!waits) return true;
      break;
    }
  }
  return false;
}

/// Sums of fp32 products over short blocks, added up in double precision: fast, and good to some
/// 1e-7 whatever the size.
double squared_norm(const at::Tensor& flat) {
  constexpr std::int64_t kBlock = 8192;
  double sum = 0;
  for (std::int64_t first = 0; first < flat.numel(); first += kBlock) {
    const at::Tensor block = flat.narrow(0, first, std::min(kBlock, flat.numel() - first));
    sum += at::dot(block, block).item<float>();
  }
  return sum;
}

}  // namespace

StateSync::StateSync(const Job& job, Stage& stage, const MeshPlace& place)
    : job_(job), stage_(stage), place_(place) {
  for (const Op& op : job.program.stages.at(static_cast<std::size_t>(place.pp)).ops) {
    if (op.kind != OpKind::Collective || op.payload != Payload::ChunkGradients) continue;
    is_sharded_ = is_sharded_ || op.collective == Collective::ReduceScatter;
    leaves_per_microbatch_ = leaves_per_microbatch_ || op.microbatch >= 0;
  }
  sets_aside_ = leaves_per_microbatch_ && outruns_reduction(job.program, place.pp);
  const AdamOptions adam{.learning_rate = job.training.learning_rate};
  for (Bucket* bucket : stage.all_buckets()) {
    Owned owned;
    owned.bucket = bucket;
    at::Tensor values = bucket->values();
    owned.grads = bucket->grads();
    if (is_sharded_) {
      values = bucket->shard_of(values, place.dp);
      // What is reduced once a step lands in the bucket; a sum over microbatches has its own place.
      owned.is_sum = leaves_per_microbatch_ && bucket != stage.embedding_bucket();
      owned.grads =
          owned.is_sum ? at::zeros_like(values) : bucket->shard_of(bucket->grads(), place.dp);
      owned.first = place.dp * values.numel();
    }
    owned.adam = std::make_unique<Adam>(adam, values);
    owned_.push_back(std::move(owned));
  }
}

StateSync::Owned& StateSync::owned_of(const Op& op) {
  const bool is_embedding =
      op.payload == Payload::EmbeddingGradients || op.payload == Payload::EmbeddingParameters;
  FORESAIL_EXPECT(!is_embedding || stage_.embedding_bucket() != nullptr);
  return is_embedding ? owned_.back() : owned_.at(static_cast<std::size_t>(op.chunk));
}

void StateSync::after_backward(PassKey key) {
  if (!sets_aside_) return;
  at::Tensor grads = stage_.bucket(key.chunk).grads();
  set_aside_.put(key, grads.clone());
  grads.zero_();
}

void StateSync::run(const Op& op, Communicator& communicator) {
  switch (op.payload) {
    case Payload::ChunkGradients:
    case Payload::EmbeddingGradients:
      return reduce_gradients(op, communicator);
    case Payload::ChunkParameters:
    case Payload::EmbeddingParameters:
      return gather_parameters(op, communicator);
    case Payload::ReplicatedGradients:
      return reduce_replicated(op, communicator);
    case Payload::MirrorGradients:
      return sum_mirrors(op, communicator);
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
  at::Tensor whole =
      owned.is_sum && sets_aside_ ? set_aside_.take({op.chunk, op.microbatch}) : bucket.grads();
  expect_bytes(op, whole);
  if (owned.is_sum) {
    at::Tensor shard = bucket.shard_of(whole, place_.dp);
    communicator.reduce_scatter(whole, shard);
    owned.grads.add_(shard);
    whole.zero_();
    return;
  }
  communicator.reduce_scatter(whole, owned.grads);
  whole.narrow(0, 0, owned.first).zero_();
  const std::int64_t end = owned.first + owned.grads.numel();
  whole.narrow(0, end, whole.numel() - end).zero_();
}

/// The other copy saw the other half of the microbatches.
void StateSync::sum_mirrors(const Op& op, Communicator& communicator) {
  Bucket& bucket = *owned_of(op).bucket;
  at::Tensor grads = bucket.grads().narrow(0, 0, bucket.elements());
  expect_bytes(op, grads);
  communicator.all_reduce(grads, Reduction::Sum);
}

void StateSync::gather_parameters(const Op& op, Communicator& communicator) {
  Owned& owned = owned_of(op);
  at::Tensor values = owned.bucket->values();
  expect_bytes(op, values);
  const at::Tensor shard = owned.bucket->shard_of(values, place_.dp).clone();
  communicator.all_gather(shard, values);
}

/// Norms, biases and positions saw a shard of the sequence. All of them go in one message, and of
/// a parameter that this rank owns in part, that part.
void StateSync::reduce_replicated(const Op& op, Communicator& tp) {
  at::Tensor message = at::zeros({op.bytes.count() / size_of(DType::Fp32)}, at::kFloat);
  std::vector<std::pair<at::Tensor, at::Tensor>> parts;  // of gradients and of the message
  std::int64_t place = 0;
  for (const Owned& owned : owned_) {
    for (const auto& parameter : owned.bucket->parameters()) {
      if (parameter->spread != Spread::Replicated) continue;
      const Overlap own = overlap(*parameter, owned.first, owned.grads.numel());
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
  if (!is_sharded_ && place_.dp != 0) return false;
  if (parameter.spread == Spread::Replicated && place_.tp != 0) return false;
  const bool is_tied_copy = owned.bucket == stage_.embedding_bucket() && place_.pp != 0;
  return !is_tied_copy && !is_mirror(owned);
}

/// The second copy of a chunk whose first one stands on another stage.
bool StateSync::is_mirror(const Owned& owned) const {
  return job_.program.stage_map == program::StageMap::Mirrored && job_.program.chunks > 1 &&
         owned.bucket == &stage_.bucket(1);
}

StepScalars StateSync::local_scalars(double loss) const {
  StepScalars scalars;
  for (const Owned& owned : owned_) {
    for (const auto& parameter : owned.bucket->parameters()) {
      if (!counts(*parameter, owned)) continue;
      const Overlap own = overlap(*parameter, owned.first, owned.grads.numel());
      if (own.count == 0) continue;
      const at::Tensor grads = owned.grads.narrow(0, own.first - owned.first, own.count);
      scalars.squared_norm += squared_norm(grads);
    }
  }
  if (place_.tp == 0) scalars.loss = loss / place_.dp_size;  // 0 on ranks without a head
  return scalars;
}

StepScalars StateSync::reduce(const StepScalars& local, Communicator& world) {
  at::Tensor sums = at::tensor({local.squared_norm, local.loss}, at::kDouble).to(at::kFloat);
  world.all_reduce(sums, Reduction::Sum);
  return {sums[0].item<float>(), sums[1].item<float>()};
}

void StateSync::for_each_counted(
    const std::function<void(const Parameter&, std::int64_t, const at::Tensor&)>& visit) const {
  for (const Owned& owned : owned_) {
    for (const auto& parameter : owned.bucket->parameters()) {
      if (!counts(*parameter, owned)) continue;
      const Overlap own = overlap(*parameter, owned.first, owned.grads.numel());
      if (own.count == 0) continue;
      visit(*parameter, own.first - parameter->offset,
            owned.bucket->values().narrow(0, own.first, own.count));
    }
  }
}

void StateSync::optimize(double gradient_norm) {
  const double scale = clip_scale(job_.training.clip, gradient_norm);
  for (Owned& owned : owned_) {
    owned.adam->step(owned.grads, scale);
    owned.grads.zero_();
  }
}

}  // namespace foresail::runtime
