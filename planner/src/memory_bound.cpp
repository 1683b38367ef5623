#include "foresail/planner/memory_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "memory.h"
#include "stage_work.h"

namespace foresail::planner {
namespace {

using program::Op;
using program::OpId;
using program::OpKind;
using program::Pass;
using program::Payload;

constexpr Bytes kCudaContext(600'000'000);
constexpr std::int64_t kNcclChannels = 32;
constexpr Bytes kNcclBuffer(4 << 20);

/// Ops of the pp lane and passes of one stage, each with its place in its lane.
class MessageRun {
 public:
  MessageRun(const Plan& plan, const program::StageProgram& stage) : plan_(plan), ops_(stage.ops) {
    for (std::uint32_t i = 0; i < ops_.size(); ++i) {
      const OpId id{i};
      if (ops_[id].lane == Lane::Pp) messages_.push_back(id);
      if (ops_[id].kind == OpKind::Compute && ops_[id].pass != Pass::Optimizer) {
        place_[id] = passes_.size();
        passes_.push_back(id);
      }
    }
  }

  /// Most bytes of messages that may be there at once. While pass k runs, the pp lane may have come
  /// to the first of its ops that waits for k or a later pass; it has certainly done those that a
  /// pass up to k waited for.
  Bytes most() {
    Bytes largest;
    std::size_t ahead = 0;  // ops of the pp lane that may be done
    for (std::size_t k = 0; k < passes_.size(); ++k) {
      for (; ahead < messages_.size() && !waits_for(messages_[ahead], k); ++ahead) {
        const Op& op = ops_[messages_[ahead]];
        if (op.kind == OpKind::Recv) received_[messages_[ahead]] = op.bytes;
      }
      Bytes held;
      for (const OpId before : ops_[passes_[k]].after) held += consume(before);
      Bytes there = held;
      for (const auto& [id, bytes] : received_) there += bytes;
      for (const OpId id : unsent(k)) there += ops_[id].bytes;
      largest = std::max(largest, there);
    }
    return largest;
  }

 private:
  bool waits_for(OpId message, std::size_t k) const {
    return std::ranges::any_of(ops_[message].after, [&](OpId before) {
      const auto found = place_.find(before);
      return found != place_.end() && found->second >= k;
    });
  }

  /// A pass has taken what it waited for. The gradient that a backward pass starts from stays until
  /// its end, whole; an activation counts as saved.
  Bytes consume(OpId message) {
    if (ops_[message].lane != Lane::Pp) return {};
    certain_ = std::max(certain_, message);
    if (received_.erase(message) == 0 || ops_[message].payload != Payload::Gradient) return {};
    return has_input_gather(plan_, Payload::Gradient) ? activation_bytes(plan_)
                                                      : ops_[message].bytes;
  }

  /// Sends whose pass stands before k and of which nothing says that they are done.
  std::vector<OpId> unsent(std::size_t k) {
    while (done_ < messages_.size() && messages_[done_] <= certain_) ++done_;
    std::vector<OpId> open;
    for (std::size_t at = done_; at < messages_.size(); ++at) {
      const OpId id = messages_[at];
      if (waits_for(id, k)) break;
      if (ops_[id].kind == OpKind::Send) open.push_back(id);
    }
    return open;
  }

  const Plan& plan_;
  const IdVector<OpId, Op>& ops_;
  std::vector<OpId> messages_, passes_;
  std::map<OpId, std::size_t> place_;
  std::map<OpId, Bytes> received_;
  OpId certain_{};        // up to here the pp lane has come for certain
  std::size_t done_ = 0;  // ops of the pp lane up to certain_
};

Bytes largest_of(const std::vector<models::SavedTensor>& tensors) {
  Bytes largest;
  for (const models::SavedTensor& tensor : tensors) largest = std::max(largest, tensor.bytes);
  return largest;
}

class Margins {
 public:
  Margins(const Plan& plan, const program::Program& program, int stage)
      : plan_(plan), program_(program), stage_(stage), work_(stage_work(plan, stage)) {}

  std::vector<MemoryMargin> all(const program::MemoryNeed& point) {
    add_messages();
    add_statistics();
    add_temporaries();
    add_state_copies();
    if (plan_.cluster.device.kind == topologies::DeviceKind::Gpu) {
      add_gpu(point);
    } else {
      add_cpu();
    }
    return std::move(margins_);
  }

 private:
  void add(std::string name, Bytes bytes, std::string why) {
    if (bytes > Bytes{}) margins_.push_back({std::move(name), bytes, std::move(why)});
  }

  std::int64_t tokens() const {
    return plan_.training.sequence_length * plan_.layout.microbatch_size / plan_.layout.cp;
  }

  void add_messages() {
    const auto& stage = program_.stages[static_cast<std::size_t>(stage_)];
    const Bytes most = MessageRun(plan_, stage).most();
    const Bytes counted = message_need(plan_, stage_);
    if (most > counted) {
      add("messages", most - counted,
          "received as early and sent as late as the Program's dependencies allow");
    }
  }

  void add_statistics() {
    std::int64_t layers = 0;
    for (int chunk = 0; chunk < chunk_count(plan_); ++chunk) {
      const StagePart part = stage_part(plan_, stage_, chunk);
      layers = std::max<std::int64_t>(layers, part.end_layer - part.first_layer);
    }
    const std::int64_t in_flight = peak_in_flight(make_schedule(plan_), stage_);
    const std::int64_t heads =
        plan_.stack.flash_attention ? plan_.model.heads / plan_.layout.tp : 0;
    constexpr std::int64_t kPerNorm = 8;  // mean and deviation
    constexpr std::int64_t kPerLoss = 32;
    add("row_statistics",
        Bytes(in_flight * tokens() * (layers * (2 * kPerNorm + 4 * heads) + kPerLoss)),
        "means and deviations of norms, log-sum-exp of flash attention, sums of the cross-entropy: "
        "the closed forms (Korthikanti et al. 2022) leave them out");
    constexpr std::int64_t kTokenId = 8;
    add("batch", Bytes(2 * kTokenId * tokens() * microbatch_count(plan_)),
        "token ids and targets of the step's microbatches");
  }

  void add_temporaries() {
    const ModelParts parts = model_parts(plan_);
    Bytes widest;
    for (int chunk = 0; chunk < chunk_count(plan_); ++chunk) {
      const StagePart part = stage_part(plan_, stage_, chunk);
      for (int layer = part.first_layer; layer < part.end_layer; ++layer) {
        widest = std::max(widest, largest_of(parts.layer(layer).backward_peak));
      }
      if (part.has_head) widest = std::max(widest, largest_of(parts.head.backward_peak));
      if (part.has_embedding) widest = std::max(widest, largest_of(parts.embedding.backward_peak));
    }
    widest_ = widest;
    add("kernel_temporaries", 2 * widest,
        "scratch of pointwise kernels that are not fused: twice the widest tensor");
  }

  void add_state_copies() {
    const Layout& layout = plan_.layout;
    const std::int64_t ranks = layout.shard_ranks();
    const std::int64_t copies = expert_shard_ranks(plan_);
    const bool has_copies = gradient_ranks(layout) > 1 || expert_gradient_ranks(plan_) > 1;
    const std::int64_t gradient = size_of(plan_.training.gradient_dtype);
    std::int64_t largest = work_.tied_parameters;
    std::int64_t shard = (work_.tied_parameters + ranks - 1) / ranks;
    for (const ChunkWork& chunk : work_.chunks) {  // experts' buckets go with their chunk's
      largest = std::max(largest, chunk.parameters + chunk.experts);
      shard = std::max(
          shard, (chunk.parameters + ranks - 1) / ranks + (chunk.experts + copies - 1) / copies);
    }
    const bool leaves_early = has_copies && layout.pp == 1 && layout.zero_stage >= 2;
    if (leaves_early && layout.overlap.dp.gradients) {
      add("gradients_on_their_way", Bytes(largest * gradient),
          "a bucket set aside while its reduction runs beside the next pass");
    }
    if (layout.sequence_parallel) {
      add("replicated_gradients", Bytes(work_.replicated() * gradient),
          "gradients of norms and biases, copied into one message");
    }
    if (has_copies && layout.zero_stage > 0) {
      add("parameters_on_their_way", Bytes(shard * size_of(storage_dtype(plan_.training))),
          "the shard of the largest bucket, copied for its gather");
    }
  }

  /// What the runtime's kernels and sums take on CPUs, where no device does it on the chip.
  void add_cpu() {
    if (plan_.stack.flash_attention) add_attention_tiles();
    if (size_of(storage_dtype(plan_.training)) < size_of(DType::Fp32)) {
      add("widened_operands", 4 * widest_,
          "a kernel of 16 bits reads fp32 copies of its operands: of two, twice as wide");
    }
    const Layout& layout = plan_.layout;
    const bool sums_whole =
        layout.zero_stage == 0 || program_.stage_map == program::StageMap::Mirrored;
    const std::int64_t ranks = gradient_ranks(layout);
    if (!sums_whole ||
        (ranks == 1 && expert_gradient_ranks(plan_) == 1 && work_.tied_parameters == 0))
      return;
    std::int64_t largest = work_.tied_parameters;
    for (const ChunkWork& chunk : work_.chunks) {
      largest = std::max(largest, chunk.parameters + chunk.experts);
    }
    const std::int64_t parts = std::max<std::int64_t>(2, ranks);
    const std::int64_t copied = largest % parts == 0 ? 0 : largest;
    add("sums_of_gradients",
        Bytes((copied + 3 * (largest / parts)) * size_of(plan_.training.gradient_dtype)),
        "three parts of the largest bucket while its ring sums it (all_reduce over Gloo), and a "
        "copy of it where the ranks do not divide it");
  }

  void add_attention_tiles() {
    const std::int64_t positions = plan_.training.sequence_length / plan_.layout.cp;
    const std::int64_t side = std::min(models::kAttentionTile, positions);
    const std::int64_t batch = plan_.layout.microbatch_size * plan_.model.heads / plan_.layout.tp;
    add("attention_tiles",
        Bytes(batch * side * (3 * side + 8 * plan_.model.head_size) * size_of(DType::Fp32)),
        "fused attention on a CPU: a tile's scores, probabilities and gradients, its queries, "
        "keys, "
        "values and their gradients, in fp32");
  }

  void add_gpu(const program::MemoryNeed& point) {
    using topologies::Generation;
    const Generation generation = plan_.cluster.device.nccl.generation;
    const bool is_large = generation == Generation::Hopper || generation == Generation::Blackwell;
    add("cuda_context", kCudaContext, "0.3 to 0.6 GB of context and kernels");
    add("blas_workspace", is_large ? 32_MiB : 4_MiB,
        "cuBLAS: 32 MiB recommended for Hopper, else 4 MiB (libtorch's default since 2024)");
    std::int64_t groups = 0;
    const RankId rank = first_rank();
    for (std::uint32_t i = 0; i < program_.communicators.size(); ++i) {
      if (program_.members(program::CommunicatorId{i}, rank).size() > 1) ++groups;
    }
    add("nccl_buffers", groups * 2 * kNcclChannels * kNcclBuffer,
        "NCCL_BUFFSIZE of 4 MiB per channel and direction, 32 channels, every communicator");
    // A third of what is reserved is half of what is used.
    add("fragmentation", Bytes((point.activations + point.buffers).count() / 2),
        "a third of what a caching allocator reserves for tensors that come and go (Guo et al. "
        "2024: 15 % on average, up to 33 %)");
  }

  RankId first_rank() const {
    program::Coordinates at{};
    at[static_cast<std::size_t>(program::Axis::Pp)] = stage_;
    return program_.grid.rank(at);
  }

  const Plan& plan_;
  const program::Program& program_;
  int stage_;
  StageWork work_;
  Bytes widest_;  ///< tensor of a backward pass
  std::vector<MemoryMargin> margins_;
};

}  // namespace

Bytes MemoryBound::upper() const {
  Bytes sum = point.peak();
  for (const MemoryMargin& margin : margins) sum += margin.bytes;
  return sum;
}

MemoryBound memory_bound(const Plan& plan, const program::Program& program, int stage) {
  FORESAIL_EXPECT(stage >= 0 && stage < plan.layout.pp);
  MemoryBound bound;
  bound.point = program.memory[static_cast<std::size_t>(stage)];
  bound.margins = Margins(plan, program, stage).all(bound.point);
  return bound;
}

Bytes upper_peak(const Plan& plan, const program::Program& program) {
  Bytes most;
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    most = std::max(most, memory_bound(plan, program, stage).upper());
  }
  return most;
}

std::string describe_upper_excess(const Plan& plan, const program::Program& program) {
  const Bytes limit = program.memory_limit;
  if (limit.count() == 0) return {};
  std::string worst;
  Bytes most = limit;
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    const MemoryBound bound = memory_bound(plan, program, stage);
    if (bound.upper() <= most) continue;
    most = bound.upper();
    std::string margins;
    for (const MemoryMargin& margin : bound.margins) {
      margins +=
          fmt::format("{}{} {}", margins.empty() ? "" : ", ", margin.name, to_text(margin.bytes));
    }
    worst = fmt::format("stage {} may need {} of {}: {} and {}", stage, to_text(most),
                        to_text(limit), to_text(bound.point.peak()), margins);
  }
  return worst;
}

}  // namespace foresail::planner
