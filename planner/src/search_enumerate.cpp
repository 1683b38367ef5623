#include "search_enumerate.h"

#include <algorithm>
#include <ctime>

#include "device_memory.h"
#include "foresail/base/error.h"
#include "layout_laws.h"
#include "optimizer_offload.h"
#include "schedule_laws.h"
#include "search_bound.h"

namespace foresail::planner {
namespace {

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Plan plan_on(const SearchProblem& problem, const SearchSpace& space, const Mesh& mesh) {
  Plan plan = problem.base;
  plan.layout = mesh.layout;
  plan.placement =
      placement_on(space.placement[static_cast<std::size_t>(mesh.placement)], mesh.gpus);
  return plan;
}

/// Least chunks in flight on the first stage (facts: Megatron-LM's schedules).
std::int64_t in_flight(const Layout& layout, std::int64_t microbatches) {
  const std::int64_t stages = layout.pp;
  switch (layout.schedule) {
    case ScheduleKind::Gpipe:
      return microbatches;
    case ScheduleKind::OneForwardOneBackward:
      return std::min(stages, microbatches);
    case ScheduleKind::Interleaved:
      break;
    case ScheduleKind::ZbH1:
      return std::min(stages, microbatches);
    case ScheduleKind::ZbH2:
      return std::min(2 * stages - 1, microbatches);
    case ScheduleKind::ZbV:
      return std::min(2 * stages - 1, microbatches) + 1;
    case ScheduleKind::DualPipe:
      return stages + 1;
    case ScheduleKind::File:
      return 1;
  }
  const std::int64_t group = layout.group_size == 0 ? stages : layout.group_size;
  return std::min(2 * (stages - 1) + (layout.v - 1) * group + 1, microbatches * layout.v);
}

}  // namespace

MeshState::MeshState(const SearchProblem& problem, const SearchSpace& space, const Mesh& mesh,
                     const program::CostModel& cost)
    : plan_(plan_on(problem, space, mesh)),
      limit_(device_memory(plan_.cluster)),
      prices_(plan_, cost),
      shapes_(prices_, plan_) {}

double MeshState::coarse(const Layout& layout) {
  const std::lock_guard lock(guard_);
  plan_.layout = layout;
  return PlanBound(plan_, shapes_.shape(plan_), prices_, BoundKind::Coarse).coarse();
}

MeshState::Refined MeshState::refine(const Layout& layout) {
  const std::lock_guard lock(guard_);
  plan_.layout = layout;
  const PlanShape& shape = shapes_.shape(plan_);
  const Schedule schedule = make_schedule(plan_);
  std::vector<program::MemoryNeed> memory;
  Bytes on_host;
  for (int stage = 0; stage < layout.pp; ++stage) {
    memory.push_back(memory_need(plan_, stage, shape.of(stage).work, schedule));
    on_host = std::max(on_host, host_need(plan_, shape.of(stage).work));
  }
  Refined refined;
  refined.out_of_memory = describe_excess(memory, limit_);
  if (refined.out_of_memory.empty()) refined.out_of_memory = describe_host_excess(plan_, on_host);
  for (const program::MemoryNeed& need : memory) refined.peak = std::max(refined.peak, need.peak());
  if (refined.out_of_memory.empty()) {
    refined.bound_s = PlanBound(plan_, shape, prices_, BoundKind::Fine).fine(schedule);
  }
  return refined;
}

/// The loops over what a mesh leaves free.
class MeshEnumeration {
 public:
  MeshEnumeration(const SearchProblem& problem, const SearchSpace& space, const Mesh& mesh,
                  MeshState& state, const std::function<bool()>& should_stop)
      : problem_(problem),
        space_(space),
        mesh_(mesh),
        state_(state),
        should_stop_(should_stop),
        shards_(shard_choices(space, problem.base.model, mesh.layout)) {}

  MeshCandidates finish() {
    const double start = thread_seconds();
    for (const int v : chunk_choices(space_, problem_.base.model, mesh_.layout.pp)) {
      for (const ScheduleKind schedule : space_.schedule) {
        for (const StageLayers& stages : space_.stages) {
          for (const std::int64_t size : space_.microbatch_size) {
            Layout layout = mesh_.layout;
            layout.v = v;
            layout.stages = stages;
            layout.schedule = schedule;
            layout.microbatch_size = size;
            add_switches(layout);
          }
        }
      }
    }
    made_.counts.bound_cpu_s = thread_seconds() - start;
    return std::move(made_);
  }

 private:
  /// Laws know nothing of the other overlaps, and of ZeRO's stage and recomputation only those of a
  /// mirrored schedule, of sharding in groups and of checkpoints.
  void add_switches(Layout layout) {
    if (is_over()) return;
    const auto inner = static_cast<std::int64_t>(
        space_.zero_stage.size() * space_.recompute.size() * space_.overlap_tp.size() *
        space_.overlap_dp.size() * space_.overlap_aligned.size() * shards_.size() *
        space_.optimizer_offload.size());
    seen_.clear();
    for (const int is_parallel : space_.sequence_parallel) {
      for (const int overlaps : space_.overlap_pp) {
        layout.sequence_parallel = is_parallel != 0;
        layout.overlap.pp = overlaps != 0;
        const auto broken =
            check_laws(problem_.base.model, layout, problem_.base.training, mesh_.gpus);
        if (broken.empty()) {
          add_rest(layout);
          continue;
        }
        LawCount& law = made_.counts.law[broken.front().name];
        law.count += inner;
        if (law.example.empty()) law.example = broken.front().message;
      }
    }
  }

  void add_rest(Layout layout) {
    for (const Recomputation& recompute : space_.recompute) {
      for (const int overlap_tp : space_.overlap_tp) {
        for (const DataMessages overlap_dp : space_.overlap_dp) {
          layout.recompute = recompute;
          layout.overlap.tp = overlap_tp != 0;
          layout.overlap.dp = overlap_dp;
          add_zero_stages(layout);
        }
      }
    }
  }

  void add_zero_stages(Layout layout) {
    for (const DataMessages aligned : space_.overlap_aligned) {
      for (const int zero : space_.zero_stage) {
        layout.overlap.aligned = aligned;
        layout.zero_stage = zero;
        add_shards(layout);
      }
    }
  }

  void add_shards(Layout layout) {
    const bool is_mirrored = layout.stage_map() == program::StageMap::Mirrored;
    for (const int size : shards_) {
      for (const double offload : space_.optimizer_offload) {
        layout.shard_size = size;
        layout.optimizer_offload = offload;
        if ((layout.zero_stage == 3 && is_mirrored) || !check_alignment(layout).empty() ||
            !check_sharding(problem_.base.model, layout).empty() ||
            !check_recomputation(problem_.base.model, layout).empty() ||
            !host_laws(layout).empty()) {
          reject(layout);
        } else {
          add(layout);
        }
      }
    }
  }

  std::vector<BrokenLaw> host_laws(const Layout& layout) const {
    return check_host(layout, problem_.base.training, problem_.base.cluster);
  }

  void reject(const Layout& layout) {
    auto broken = check_laws(problem_.base.model, layout, problem_.base.training, mesh_.gpus);
    if (broken.empty()) broken = host_laws(layout);
    FORESAIL_EXPECT(!broken.empty());
    LawCount& law = made_.counts.law[broken.front().name];
    ++law.count;
    if (law.example.empty()) law.example = broken.front().message;
  }

  /// Asked in front of all that takes long.
  bool is_over() {
    if (!made_.is_cut && should_stop_) made_.is_cut = should_stop_();
    return made_.is_cut;
  }

  void add(const Layout& layout) {
    if (is_over()) return;
    const Layout plain = plain_form(layout, problem_.base.stack);
    if (layout.pp == 1 && plain.schedule != layout.schedule) {
      // Which schedule stands for all does not matter; the others are seen in other rounds.
      const auto& all = space_.schedule;
      if (std::ranges::find(all, plain.schedule) != all.end()) {
        ++made_.counts.equivalent;
        return;
      }
    }
    if (std::ranges::find(seen_, plain) != seen_.end()) {
      ++made_.counts.equivalent;
      return;
    }
    seen_.push_back(plain);
    state_.plan_.layout = layout;
    if (is_surely_too_large(state_.shapes_.sizes(state_.plan_))) {
      ++made_.counts.out_of_memory;
      if (!made_.too_large) made_.too_large = layout;
      return;
    }
    const PlanShape& shape = state_.shapes_.shape(state_.plan_);
    Candidate candidate;
    candidate.layout = layout;
    candidate.placement = mesh_.placement;
    candidate.bound_s = PlanBound(state_.plan_, shape, state_.prices_, BoundKind::Coarse).coarse();
    candidate.objective = objective_of(problem_, candidate.bound_s, mesh_.gpus);
    ++made_.counts.bounded;
    made_.candidates.push_back(candidate);
  }

  /// The first stage's states and the activations that its schedule keeps at least.
  bool is_surely_too_large(const PlanShape& shape) const {
    if (state_.limit_.count() == 0) return false;
    const Plan& plan = state_.plan_;
    const StageWork& work = shape.of(0).work;
    const double states = static_cast<double>(state_need(plan, work).peak().count());
    double kept = 0;
    if (plan.layout.pp == 1) {
      for (const ChunkWork& chunk : work.chunks) kept += static_cast<double>(chunk.saved.count());
    } else {
      double least = static_cast<double>(work.chunks.front().saved.count());
      for (const ChunkWork& chunk : work.chunks) {
        least = std::min(least, static_cast<double>(chunk.saved.count()));
      }
      kept = least * static_cast<double>(in_flight(plan.layout, microbatch_count(plan)));
    }
    return states + kept > static_cast<double>(state_.limit_.count());
  }

  const SearchProblem& problem_;
  const SearchSpace& space_;
  const Mesh& mesh_;
  MeshState& state_;
  const std::function<bool()>& should_stop_;
  const std::vector<int> shards_;
  MeshCandidates made_;
  std::vector<Layout> seen_;  // plain forms
};

MeshCandidates enumerate(const SearchProblem& problem, const SearchSpace& space, const Mesh& mesh,
                         MeshState& state, const std::function<bool()>& should_stop) {
  return MeshEnumeration(problem, space, mesh, state, should_stop).finish();
}

}  // namespace foresail::planner
