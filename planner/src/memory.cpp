#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "check_placement.h"
#include "device_memory.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/planner/plan.h"
#include "layout_laws.h"
#include "memory.h"
#include "optimizer_offload.h"
#include "stage_work.h"

namespace foresail::planner {
namespace {

using program::MemoryNeed;

__extension__ using Wide = __int128;

/// Bytes of one parameter (facts: 18 per parameter for 16 bits with fp32 gradients, 16 for fp32).
struct StateBytes {
  std::int64_t parameter;
  std::int64_t gradient;
  std::int64_t optimizer;  ///< two fp32 moments, and an fp32 master copy unless fp32 itself
};

StateBytes state_bytes(const program::Training& training) {
  const DType storage = storage_dtype(training);
  return {size_of(storage), size_of(training.gradient_dtype), storage == DType::Fp32 ? 8 : 12};
}

struct BucketSizes {
  std::int64_t whole = 0;     ///< parameters of all buckets
  std::int64_t shard = 0;     ///< of one rank's shard of all buckets
  std::int64_t chunks = 0;    ///< of the chunks' buckets alone
  std::int64_t shards = 0;    ///< of one rank's shard of those
  std::int64_t largest = 0;   ///< chunk, of what is shared
  std::int64_t gathered = 0;  ///< of all chunks' buckets, what is shared
  std::int64_t tied() const { return whole - chunks; }
};

BucketSizes bucket_sizes(const Plan& plan, const StageWork& work) {
  const std::int64_t ranks = plan.layout.shard_ranks();
  const auto shard = [&](std::int64_t parameters) { return (parameters + ranks - 1) / ranks; };
  const std::int64_t copies = expert_shard_ranks(plan);
  BucketSizes sizes;
  for (const ChunkWork& chunk : work.chunks) {
    sizes.chunks += chunk.parameters + chunk.experts;
    sizes.shards += shard(chunk.parameters) + (chunk.experts + copies - 1) / copies;
    // What nobody shares is never gathered, nor set aside for a reduction.
    const std::int64_t gathered =
        (ranks > 1 ? chunk.parameters : 0) + (copies > 1 ? chunk.experts : 0);
    sizes.largest = std::max(sizes.largest, gathered);
    sizes.gathered += gathered;
  }
  sizes.whole = sizes.chunks + work.tied_parameters;
  sizes.shard = sizes.shards + shard(work.tied_parameters);
  return sizes;
}

void add_states(const Plan& plan, const StageWork& work, MemoryNeed& need) {
  const BucketSizes sizes = bucket_sizes(plan, work);
  const StateBytes bytes = state_bytes(plan.training);
  const int zero = plan.layout.zero_stage;
  // Under a pipeline all chunks accumulate until their last microbatch, so ZeRO-2 frees too late
  // to lower the peak.
  const bool has_sharded_gradients = zero == 3 || (zero == 2 && plan.layout.pp == 1);
  const bool has_copies = gradient_ranks(plan.layout) > 1 || expert_gradient_ranks(plan) > 1;
  need.parameters = bytes.parameter * Bytes(sizes.whole);
  need.gradients = bytes.gradient * Bytes(sizes.whole);
  need.optimizer = bytes.optimizer * Bytes((zero == 0 ? sizes.whole : sizes.shard) -
                                           offloaded_parameters(plan, work).sum());
  if (has_sharded_gradients && has_copies) {
    need.gradients = bytes.gradient * Bytes(sizes.shards + sizes.tied());
    need.buffers += bytes.gradient * Bytes(sizes.largest);
  }
  if (zero == 3 && has_copies) {
    // The chunk in use and the one that is being prefetched.
    need.parameters = bytes.parameter * Bytes(sizes.shards + sizes.tied());
    need.buffers += bytes.parameter * Bytes(std::min(2 * sizes.largest, sizes.gathered));
  }
}

/// Bytes of many passes may leave 64 bits; nothing needs to tell such sums apart.
Bytes saturated(Wide bytes) {
  return Bytes(static_cast<std::int64_t>(std::min(bytes, Wide{1} << 60)));
}

/// Bytes that are there after a pass and were not before.
Wide kept_by(program::Pass pass, const ChunkWork& chunk) {
  switch (pass) {
    case program::Pass::Forward:
      return chunk.saved.count();
    case program::Pass::Backward:
      return -Wide{chunk.saved.count()};
    case program::Pass::BackwardInput:
      return Wide{chunk.retained.count()} - chunk.saved.count();
    case program::Pass::BackwardWeight:
      return -Wide{chunk.retained.count()};
    case program::Pass::Optimizer:
      break;
  }
  return 0;
}

/// Most bytes that a pass adds to those before it.
Wide added_by(program::Pass pass, const Plan& plan, const ChunkWork& chunk) {
  switch (pass) {
    case program::Pass::Forward:
      return chunk.forward_peak.count();
    case program::Pass::Backward:
      return Wide{chunk.backward_peak.count()} - chunk.saved.count();
    case program::Pass::BackwardInput:
      return Wide{chunk.input_peak.count()} - chunk.saved.count();
    case program::Pass::BackwardWeight:
      // Inputs of column-parallel layers are gathered again, one after the other.
      return plan.layout.sequence_parallel ? activation_bytes(plan).count() : 0;
    case program::Pass::Optimizer:
      break;
  }
  return 0;
}

void add_activations(const Plan& plan, const Schedule& schedule, const StageWork& work, int stage,
                     MemoryNeed& need) {
  Wide live = 0;
  Wide live_max = 0;
  Wide peak = 0;
  for (const SchedulePass& pass : schedule.order[static_cast<std::size_t>(stage)]) {
    const ChunkWork& chunk = work.chunks[static_cast<std::size_t>(pass.chunk)];
    peak = std::max(peak, live + added_by(pass.pass, plan, chunk));
    live += kept_by(pass.pass, chunk);
    live_max = std::max(live_max, live);
  }
  need.activations = saturated(live_max);
  need.buffers += saturated(std::max(Wide{0}, peak - live_max));
}

}  // namespace

std::string describe_excess(const std::vector<MemoryNeed>& memory, Bytes limit) {
  if (limit.count() == 0) return {};
  const auto worst = std::ranges::max_element(
      memory, [](const MemoryNeed& a, const MemoryNeed& b) { return a.peak() < b.peak(); });
  if (worst->peak() <= limit) return {};
  return fmt::format(
      "stage {} needs {} of {}: parameters {}, gradients {}, optimizer {}, activations {}, "
      "buffers {}",
      worst - memory.begin(), to_text(worst->peak()), to_text(limit), to_text(worst->parameters),
      to_text(worst->gradients), to_text(worst->optimizer), to_text(worst->activations),
      to_text(worst->buffers));
}

Bytes device_memory(const topologies::Cluster::Options& cluster) {
  const Bytes own = cluster.device.memory;
  const Bytes share(cluster.node.memory.count() / std::max(1, cluster.node.devices));
  if (own.count() == 0 || share.count() == 0) return std::max(own, share);
  return std::min(own, share);
}

MemoryNeed memory_need(const Plan& plan, int stage) {
  FORESAIL_EXPECT(stage >= 0 && stage < plan.layout.pp);
  return memory_need(plan, stage, stage_work(plan, stage), make_schedule(plan));
}

/// The gradient that a backward pass starts from stays until its end. A stage that does nothing
/// else until its outputs are on their way has received one message ahead; with overlap one of each
/// kind, and one is being sent. The stages at the seam of an interleaved schedule hold what arrives
/// G - p steps early.
Bytes message_need(const Plan& plan, int stage) {
  const Layout& layout = plan.layout;
  if (layout.pp == 1) return {};
  const bool has_both = chunk_count(plan) > 1;
  const bool receives_activations = stage > 0 || has_both;
  const bool receives_gradients = stage < layout.pp - 1 || has_both;
  std::int64_t activations = 0;
  std::int64_t gradients = receives_gradients ? 1 : 0;
  if (layout.overlap.pp) {
    activations += receives_activations ? 2 : 1;
    gradients += receives_gradients ? 1 : 0;
  } else if (receives_activations) {
    activations += 1;
  } else {
    gradients += 1;
  }
  const bool is_at_seam = stage == 0 || stage == layout.pp - 1;
  if (layout.schedule == ScheduleKind::Interleaved && is_at_seam && layout.group_size > layout.pp) {
    activations += layout.group_size - layout.pp;
  }
  return activations * message_bytes(plan, program::Payload::Activation) +
         gradients * message_bytes(plan, program::Payload::Gradient);
}

MemoryNeed state_need(const Plan& plan, const StageWork& work) {
  MemoryNeed need;
  add_states(plan, work, need);
  return need;
}

MemoryNeed memory_need(const Plan& plan, int stage, const StageWork& work,
                       const Schedule& schedule) {
  MemoryNeed need;
  add_states(plan, work, need);
  add_activations(plan, schedule, work, stage, need);
  need.buffers += message_need(plan, stage);
  return need;
}

Feasibility check(const Plan& plan) {
  Feasibility result;
  const int devices = plan.cluster.nodes * plan.cluster.node.devices;
  const int ranks = job_devices(plan);
  result.broken = check_laws(plan.model, plan.layout, plan.training, ranks);
  result.memory_limit = device_memory(plan.cluster);
  if (result.broken.empty()) {
    result.broken = check_host(plan.layout, plan.training, plan.cluster);
  }
  if (result.broken.empty()) {
    result.broken = check_placement(plan.placement, plan.layout.world_size(), devices);
  }
  if (!result.broken.empty()) return result;
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    result.memory.push_back(memory_need(plan, stage));
  }
  result.out_of_memory = describe_excess(result.memory, result.memory_limit);
  if (result.out_of_memory.empty() && plan.layout.optimizer_offload > 0) {
    Bytes fullest;
    for (int stage = 0; stage < plan.layout.pp; ++stage) {
      fullest = std::max(fullest, host_need(plan, stage_work(plan, stage)));
    }
    result.out_of_memory = describe_host_excess(plan, fullest);
  }
  return result;
}

}  // namespace foresail::planner
