#include "search_bound.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "optimizer_offload.h"

namespace foresail::planner {
namespace {

constexpr double kSlackRelative = 1e-9;
constexpr double kSlackSeconds = 1e-9;

std::int64_t padded(std::int64_t parameters, std::int64_t ranks) {
  return (parameters + ranks - 1) / ranks * ranks;
}

}  // namespace

PlanBound::PlanBound(const Plan& plan, const PlanShape& shape, MeshCost& mesh, BoundKind kind)
    : plan_(plan),
      shape_(shape),
      mesh_(mesh),
      stages_(plan.layout.pp),
      map_(plan.layout.stage_map()),
      is_split_(stages_ > 1 && plan.layout.has_split_backward()),
      microbatches_(microbatch_count(plan)),
      ranks_(plan.layout.shard_ranks()),
      expert_ranks_(expert_shard_ranks(plan)),
      zero_(ranks_ > 1 || expert_ranks_ > 1 ? plan.layout.zero_stage : 0),
      message_(mesh.message(message_bytes(plan, program::Payload::Activation))) {
  if (plan.layout.has_copies_of_shards()) {
    shard_ = {program::Cut::Kind::Within, plan.layout.shard_ranks()};
    copies_ = {program::Cut::Kind::Across, plan.layout.shard_ranks()};
    if (expert_gradient_ranks(plan) > 1) {
      expert_shard_ = {program::Cut::Kind::Within, static_cast<int>(expert_ranks_)};
      expert_copies_ = {program::Cut::Kind::Across, static_cast<int>(expert_ranks_)};
    }
  }
  exchange_.push_back(exchange(0));
  if (stages_ > 1) {
    exchange_.push_back(kind == BoundKind::Fine ? exchange(stages_ - 1) : Exchange{});
  }
}

double PlanBound::gather(int stage, std::int64_t parameters) const {
  if (ranks_ == 1 || parameters == 0) return 0;
  return mesh_.dp(stage, shard_, Collective::AllGather,
                  padded(parameters, ranks_) * Bytes(size_of(storage_dtype(plan_.training))));
}

PlanBound::Reduction PlanBound::reduce(int stage, std::int64_t parameters) const {
  if (ranks_ == 1 || parameters == 0) return {};
  const bool is_shared = zero_ >= 1;
  const std::int64_t size = is_shared ? padded(parameters, ranks_) : parameters;
  const Bytes bytes = size * Bytes(size_of(plan_.training.gradient_dtype));
  Reduction made;
  made.once =
      mesh_.dp(stage, shard_, is_shared ? Collective::ReduceScatter : Collective::AllReduce, bytes);
  if (copies_.kind == program::Cut::Kind::None) return made;
  made.copies = mesh_.dp(stage, copies_, Collective::AllReduce, Bytes(bytes.count() / ranks_));
  return made;
}

/// Of a chunk: what all share, then its experts, on one lane.
double PlanBound::gather_chunk(int stage, const ChunkWork& chunk) const {
  const double shared = gather(stage, chunk.parameters);
  if (expert_ranks_ == 1 || chunk.experts == 0) return shared;
  const Bytes element(size_of(storage_dtype(plan_.training)));
  return shared + mesh_.edp(stage, expert_shard_, Collective::AllGather,
                            padded(chunk.experts, expert_ranks_) * element);
}

PlanBound::Reduction PlanBound::reduce_chunk(int stage, const ChunkWork& chunk) const {
  const Reduction common = reduce(stage, chunk.parameters);
  const Reduction experts = reduce_experts(stage, chunk.experts);
  return {.once = common.once + experts.once,
          .copies = std::max(0.0, common.copies - experts.once) + experts.copies};
}

PlanBound::Reduction PlanBound::reduce_experts(int stage, std::int64_t parameters) const {
  if (parameters == 0) return {};
  const bool is_shared = zero_ >= 1;
  const std::int64_t size = is_shared ? padded(parameters, expert_ranks_) : parameters;
  const Bytes bytes = size * Bytes(size_of(plan_.training.gradient_dtype));
  Reduction made;
  if (expert_ranks_ > 1) {
    made.once = mesh_.edp(stage, expert_shard_,
                          is_shared ? Collective::ReduceScatter : Collective::AllReduce, bytes);
  }
  if (expert_copies_.kind == program::Cut::Kind::None) return made;
  made.copies =
      mesh_.edp(stage, expert_copies_, Collective::AllReduce, Bytes(bytes.count() / expert_ranks_));
  return made;
}

PlanBound::Exchange PlanBound::exchange(int stage) const {
  const StageShape& shape = shape_.of(stage);
  const bool is_prefetched = plan_.layout.overlap.dp.parameters;
  const bool is_resident = zero_ == 1 || zero_ == 2;
  Exchange made;
  double gathers = 0;
  if (is_resident) {
    gathers = gather(stage, shape.work.tied_parameters);
    if (is_prefetched) {
      // The tied matrix comes first where chunk 0 uses it: on stage 0.
      const double tied = stage == 0 ? gathers : 0;
      made.gather_first = tied + gather_chunk(stage, shape.work.chunks.front());
    }
    for (const ChunkWork& chunk : shape.work.chunks) gathers += gather_chunk(stage, chunk);
  }
  add_per_pass(stage, shape, made);
  made.behind = behind(stage, shape);
  const bool is_all_on_host = plan_.layout.optimizer_offload == 1;
  const double optimizer = is_all_on_host ? 0 : mesh_.kernel(optimizer_kernel(plan_, shape.work));
  made.finish = std::max(optimizer, to_seconds(plan_.stack.host_per_kernel));
  if (plan_.layout.optimizer_offload > 0) {
    const OffloadKernels host = offload_kernels(plan_, shape.work);
    double updates = 0;
    for (const Kernel& kernel : host.update) updates += mesh_.kernel(kernel);
    if (!host.update.empty()) updates += mesh_.kernel(host.parameters.back());
    made.finish = std::max(made.finish, updates);
  }
  (is_prefetched ? made.gathers : made.finish) += gathers;
  made.tied = reduce(stage, shape.work.tied_parameters);
  if (has_reductions(shape)) made.replicated = replicated_sum(shape);
  return made;
}

void PlanBound::add_per_pass(int stage, const StageShape& shape, Exchange& made) const {
  const bool reduces = zero_ == 3 || (zero_ == 2 && stages_ == 1);
  if (!reduces) return;
  double gathers = 0;
  double reductions = 0;
  double largest_gather = 0;
  double largest = 0;
  for (const ChunkWork& chunk : shape.work.chunks) {
    const double one_gather = zero_ == 3 ? gather_chunk(stage, chunk) : 0;
    gathers += 2 * one_gather;
    largest_gather = std::max(largest_gather, one_gather);
    const double one = reduce_chunk(stage, chunk).once;
    reductions += one;
    largest = std::max(largest, one);
  }
  const DataMessages hidden = plan_.layout.overlap.dp;
  const double first = stage == 0 ? 0 : largest_gather;
  // The last reduction is behind the last pass. The first gather starts with the step, before the
  // first pass; on stages behind the first it may be over when their input comes.
  double per_pass = 0;
  if (!hidden.gradients) per_pass += microbatches_ * reductions - largest;
  if (!hidden.parameters) per_pass += microbatches_ * gathers - first;
  made.per_pass = std::max(0.0, per_pass);
  if (hidden.any()) made.lane = microbatches_ * (gathers + reductions);
}

/// Of the reductions of all chunks.
PlanBound::Lanes PlanBound::chunks_behind(int stage, const StageShape& shape) const {
  Reduction least{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  Reduction all;
  for (const ChunkWork& chunk : shape.work.chunks) {
    const Reduction one = reduce_chunk(stage, chunk);
    least = {std::min(least.once, one.once), std::min(least.copies, one.copies)};
    all = {all.once + one.once, all.copies + one.copies};
  }
  // On stage 0 the last whole backward pass is that of chunk 0, the model's first.
  if (stage == 0 && !is_split_) least = reduce_chunk(stage, shape.work.chunks.front());
  const bool is_per_step = zero_ < 2 || (zero_ == 2 && stages_ > 1);
  Lanes lanes;
  if (!is_per_step || plan_.layout.overlap.dp.gradients) {
    lanes.append(least);
    return lanes;
  }
  // In whatever order: the replica lane starts behind one reduction and ends behind all.
  double shortest = std::numeric_limits<double>::infinity();
  double shortest_sum = std::numeric_limits<double>::infinity();
  for (const ChunkWork& chunk : shape.work.chunks) {
    const Reduction one = reduce_chunk(stage, chunk);
    shortest = std::min(shortest, one.once);
    shortest_sum = std::min(shortest_sum, one.copies);
  }
  lanes.dp = all.once;
  lanes.replica = std::max(all.once + shortest_sum, shortest + all.copies);
  return lanes;
}

/// The same in a mirrored schedule: first the two copies on the pp lane, then the replicas.
PlanBound::Lanes PlanBound::mirrored_behind(int stage, const StageShape& shape) const {
  Lanes least{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  double copies = 0;  // end of the last of both sums of copies
  Lanes replicas;
  for (int at = 0; at < 2; ++at) {
    const int chunk = stage < stages_ / 2 ? at : 1 - at;  // as GradientSync orders them
    const ChunkWork& work = shape.work.chunks[static_cast<std::size_t>(chunk)];
    const Bytes bytes =
        (work.parameters + work.experts) * Bytes(size_of(plan_.training.gradient_dtype));
    const double own = mesh_.mirror(stage, bytes);
    const Reduction shared = reduce_chunk(stage, work);
    copies += own;
    replicas.append(shared, copies);
    Lanes alone;
    alone.append(shared, own);
    least = {std::min(least.dp, alone.dp), std::min(least.replica, alone.replica)};
  }
  if (plan_.layout.overlap.dp.gradients) return least;
  replicas.dp = std::max(replicas.dp, copies);
  replicas.replica = std::max(replicas.replica, copies);
  return replicas;
}

double PlanBound::behind(int stage, const StageShape& shape) const {
  const bool is_mirrored = map_ == program::StageMap::Mirrored;
  Lanes lanes = is_mirrored ? mirrored_behind(stage, shape) : chunks_behind(stage, shape);
  if (shape.work.tied_parameters > 0) {
    // The copies of two stages are summed first; on the last stage with overlap maybe earlier. In a
    // V one stage has the only copy.
    const bool has_copies = stages_ > 1 && map_ != program::StageMap::V;
    const bool waits = !plan_.layout.overlap.dp.gradients || stage == 0;
    const Bytes bytes = shape.work.tied_parameters * Bytes(size_of(plan_.training.gradient_dtype));
    const double ready = waits && has_copies ? mesh_.embedding(bytes) : 0;
    lanes.append(reduce(stage, shape.work.tied_parameters), ready);
  }
  const double time = std::max(lanes.dp, lanes.replica);
  // Behind the last reduction; without one, behind the last pass.
  const double summed = replicated_sum(shape);
  return has_reductions(shape) ? time + summed : std::max(time, summed);
}

/// Of the gradients that all tp ranks hold, over tp.
double PlanBound::replicated_sum(const StageShape& shape) const {
  const std::int64_t replicated = shape.work.replicated();
  if (!plan_.layout.sequence_parallel || replicated == 0) return 0;
  return mesh_.tp(replicated * Bytes(size_of(plan_.training.gradient_dtype)));
}

/// Seconds of all passes of a stage.
double PlanBound::passes(const StageShape& shape) const {
  double all = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t chunk = 0; chunk < shape.forward.size(); ++chunk) {
    double backward = shape.backward[chunk];
    if (is_split_) {
      const double halves = shape.backward_input[chunk] + shape.backward_weight[chunk];
      // Zero-bubble orders split every backward pass.
      const bool is_always = plan_.layout.schedule != ScheduleKind::DualPipe &&
                             plan_.layout.schedule != ScheduleKind::File;
      backward = is_always ? halves : std::min(backward, halves);
    }
    all += shape.forward[chunk] + backward;
    least = std::min(least, shape.forward[chunk] + backward);
  }
  // Mirrored: every microbatch visits one of the two chunks.
  return microbatches_ * (map_ == program::StageMap::Mirrored ? least : all);
}

/// Messages of a stage that it waits for without overlap.pp.
double PlanBound::sends(int stage, const StageShape& shape) const {
  const double chunks = static_cast<double>(shape.forward.size());
  if (map_ == program::StageMap::Mirrored) {
    // One direction of a microbatch ends on the first and on the last stage. Behind the last pass
    // nobody waits for its message, or for both of two joined passes.
    return microbatches_ * (is_first_or_last(stage) ? 1 : 2) - 2;
  }
  // Forwards of all but the model's last chunk are sent, backwards of all but its first; at the
  // bends of a V they stay on their stage.
  double kept = (stage == 0 ? 1 : 0) + (stage == stages_ - 1 ? 1 : 0);
  if (map_ == program::StageMap::V) kept = is_first_or_last(stage) ? 2 : 0;
  return microbatches_ * (2 * chunks - kept) - 1;
}

/// W_s: from the start of the first pass to the end of the last.
double PlanBound::work(int stage) const {
  const StageShape& shape = shape_.of(stage);
  double waits = 0;
  if (!plan_.layout.overlap.pp && stages_ > 1) {
    waits = std::max(0.0, sends(stage, shape)) * message_;
  }
  double per_pass = 0;
  if (stage == 0) per_pass = exchange_.front().per_pass;
  if (stages_ > 1 && stage == stages_ - 1) per_pass = exchange_.back().per_pass;
  return passes(shape) + std::max(waits, per_pass);
}

std::vector<double> PlanBound::ends() const {
  std::vector<double> ends(static_cast<std::size_t>(stages_), 0.0);
  const bool is_mirrored = map_ == program::StageMap::Mirrored;
  double before = exchange_.front().gather_first;
  double after = 0;
  for (int stage = 0; stage < stages_; ++stage) {
    const StageShape& shape = shape_.of(stage);
    double& end = ends[static_cast<std::size_t>(stage)];
    const double own = stage == stages_ - 1 ? exchange_.back().gather_first : 0;
    double start = std::max(before, own);
    if (is_mirrored && stage > 0) start = own;
    end = start + work(stage);
    // In halves nobody waits for the last pass of another stage, which may be a W.
    if (!is_split_) ends.front() = std::max(ends.front(), end + after);
    before += shape.forward.front() + message_;
    after += shape.backward.front() + message_;
  }
  return ends;
}

/// When the chunks' reductions end; 0 where they are no chain behind the passes.
PlanBound::Lanes PlanBound::lane_end(int stage, const PassOrder& order,
                                     const std::vector<double>& end) const {
  const bool is_per_step = zero_ < 2 || (zero_ == 2 && stages_ > 1);
  if (!has_reductions(shape_.of(stage)) || !plan_.layout.overlap.dp.gradients || !is_per_step) {
    return {};
  }
  if (map_ == program::StageMap::Mirrored) return {};
  const StageShape& shape = shape_.of(stage);
  std::vector<std::pair<double, std::size_t>> ready(shape.work.chunks.size());
  for (std::size_t at = 0; at < order.size(); ++at) {
    const auto chunk = static_cast<std::size_t>(order[at].chunk);
    ready[chunk] = std::max(ready[chunk], {end[at], chunk});
  }
  std::ranges::sort(ready);
  Lanes lanes;
  lanes.dp = (stage == 0 ? exchange_.front() : exchange_.back()).gathers;
  for (const auto& [passed, chunk] : ready) {
    lanes.append(reduce_chunk(stage, shape.work.chunks[chunk]), passed);
  }
  return lanes;
}

double PlanBound::finish(const std::vector<double>& ends,
                         const std::vector<Lanes>& lane_ends) const {
  double synchronised = 0;
  double last = 0;
  for (int stage = 0; stage < stages_; ++stage) {
    const double end = ends[static_cast<std::size_t>(stage)];
    synchronised = std::max(synchronised, end);
    if (!is_first_or_last(stage)) continue;
    const Exchange& exchange = stage == 0 ? exchange_.front() : exchange_.back();
    synchronised = std::max({synchronised, end + exchange.behind, exchange.lane});
    Lanes lanes = lane_ends[static_cast<std::size_t>(stage)];
    if (lanes.dp > 0) {
      if (exchange.tied.once > 0) lanes.append(exchange.tied);
      synchronised = std::max(
          {synchronised, lanes.dp + exchange.replicated, lanes.replica + exchange.replicated});
    }
    last = std::max(last, exchange.finish);
  }
  const double bound = synchronised + mesh_.scalars() + last;
  return std::max(0.0, bound * (1 - kSlackRelative) - kSlackSeconds);
}

double PlanBound::coarse() const {
  return finish(ends(), std::vector<Lanes>(static_cast<std::size_t>(stages_)));
}

double PlanBound::fine(const Schedule& schedule) const {
  std::vector<double> ends = this->ends();
  std::vector<Lanes> lane_ends(ends.size());
  if (stages_ == 1) return finish(ends, lane_ends);
  PassCosts costs;
  costs.message = message_;
  costs.blocking = !plan_.layout.overlap.pp;
  for (int stage = 0; stage < stages_; ++stage) {
    const StageShape& shape = shape_.of(stage);
    costs.forward_of.push_back(shape.forward);
    costs.backward_of.push_back(shape.backward);
    costs.backward_input_of.push_back(shape.backward_input);
    costs.backward_weight_of.push_back(shape.backward_weight);
  }
  const TimedSchedule timed = simulate(schedule, costs);
  for (std::size_t stage = 0; stage < ends.size(); ++stage) {
    // The first pass of the ring and of the V is stage 0's; mirrored, that of either end.
    double start = exchange_.front().gather_first;
    if (map_ == program::StageMap::Mirrored) {
      start = std::min(start, exchange_.back().gather_first);
    }
    if (!timed.end[stage].empty()) {
      ends[stage] = std::max(ends[stage], start + timed.end[stage].back());
    }
  }
  for (const int stage : {0, stages_ - 1}) {
    const auto at = static_cast<std::size_t>(stage);
    lane_ends[at] = lane_end(stage, schedule.order[at], timed.end[at]);
  }
  return finish(ends, lane_ends);
}

}  // namespace foresail::planner
