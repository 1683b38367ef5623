#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "device_memory.h"
#include "foresail/base/error.h"
#include "foresail/planner/memory_bound.h"
#include "foresail/planner/search.h"
#include "layout_laws.h"
#include "schedule_laws.h"
#include "search_bound.h"
#include "search_enumerate.h"

namespace foresail::planner {
namespace {

/// The first stage's first chunk, one forward, without its collectives.
double first_forward(const Plan& plan, const program::CostModel& cost) {
  double seconds = 0;
  const int nodes = job_nodes(plan);
  const StageWork work = stage_work(plan, 0);
  for (const Kernel& kernel : work.chunks.front().forward) {
    if (kernel.kind == KernelKind::Collective) continue;
    seconds += to_seconds(cost.kernel(kernel, nodes));
  }
  return seconds;
}

Mesh mesh_of(const Layout& layout, int placement) {
  Mesh mesh;
  mesh.layout.tp = layout.tp;
  mesh.layout.cp = layout.cp;
  mesh.layout.cp_kind = layout.cp_kind;
  mesh.layout.ep = layout.ep;
  mesh.layout.etp = layout.etp;
  mesh.layout.overlap.ep = layout.overlap.ep;
  mesh.layout.pp = layout.pp;
  mesh.layout.dp = layout.dp;
  mesh.layout.rank_order = layout.rank_order;
  mesh.gpus = layout.world_size();
  mesh.placement = placement;
  return mesh;
}

/// Adds `layout` with each of `choices` put in by `set`, but itself.
template <class T, class Set>
void vary(const std::vector<T>& choices, const Layout& layout, const Set& set,
          std::vector<Layout>& out) {
  for (const T& choice : choices) {
    Layout varied = layout;
    set(varied, choice);
    // What can't be aligned any more is not, or the law would be the only answer.
    const bool is_kept = varied.overlap.aligned == layout.overlap.aligned;
    if (is_kept && !check_alignment(varied).empty()) varied.overlap.aligned = false;
    const bool is_known = varied == layout || std::ranges::find(out, varied) != out.end();
    if (!is_known) out.push_back(varied);
  }
}

bool has_two_chunks(ScheduleKind kind) {
  return kind == ScheduleKind::ZbV || kind == ScheduleKind::DualPipe;
}

/// Changes the schedule, and v to what it needs.
void take_schedule(Layout& layout, ScheduleKind kind, const std::vector<int>& chunks) {
  layout.schedule = kind;
  if (kind != ScheduleKind::Interleaved) {
    layout.v = has_two_chunks(kind) ? 2 : 1;
    return;
  }
  if (layout.v > 1) return;
  for (const int each : chunks) {
    if (each > 1 && (layout.v == 1 || each < layout.v)) layout.v = each;
  }
}

std::vector<int> divisors_to(int number, int most) {
  std::vector<int> found;
  for (int each = 1; each <= std::min(number, most); ++each) {
    if (number % each == 0) found.push_back(each);
  }
  return found;
}

void vary_experts_and_context(const SearchSpace& space, const Layout& layout,
                              std::vector<Layout>& out) {
  vary(
      space.ep, layout, [](Layout& m, int ep) { m.ep = ep; }, out);
  vary(
      space.etp, layout, [](Layout& m, int etp) { m.etp = etp; }, out);
  if (layout.cp > 1) {
    vary(
        space.cp_kind, layout, [](Layout& m, models::ContextParallel kind) { m.cp_kind = kind; },
        out);
  }
}

void vary_overlap(const SearchSpace& space, const Layout& layout, std::vector<Layout>& out) {
  vary(
      space.overlap_tp, layout, [](Layout& m, int on) { m.overlap.tp = on != 0; }, out);
  vary(
      space.overlap_pp, layout, [](Layout& m, int on) { m.overlap.pp = on != 0; }, out);
  vary(
      space.overlap_dp, layout, [](Layout& m, DataMessages on) { m.overlap.dp = on; }, out);
  vary(
      space.overlap_aligned, layout, [](Layout& m, DataMessages on) { m.overlap.aligned = on; },
      out);
}

}  // namespace

std::vector<Layout> neighbours(const SearchProblem& problem, const Layout& layout) {
  const SearchSpace space = completed(problem);
  const models::Model& model = problem.base.model;
  const int gpus = layout.world_size();
  const auto rest = [&](Layout& made) {
    made.dp = std::max(1, gpus / (made.tp * made.cp * made.pp));
    if (made.tp == 1) made.sequence_parallel = false;
  };
  const auto chunks = [](Layout& made, int v) {
    made.v = v;
    const bool has_own = has_two_chunks(made.schedule);
    if (v > 1 && !(has_own && v == 2)) made.schedule = ScheduleKind::Interleaved;
    if (v == 1 && (has_own || made.schedule == ScheduleKind::Interleaved)) {
      made.schedule = ScheduleKind::OneForwardOneBackward;
    }
  };
  const auto or_all = [&](const std::vector<int>& given, int most) {
    return given.empty() ? divisors_to(gpus, most) : given;
  };
  std::vector<Layout> out;
  vary(
      or_all(space.tp, model.heads), layout, [&](Layout& m, int tp) { m.tp = tp, rest(m); }, out);
  vary(
      or_all(space.pp, model.layers), layout,
      [&](Layout& m, int pp) {
        m.pp = pp;
        rest(m);
        // The most chunks that this pipeline can have, up to those of `layout`.
        int v = 1;
        for (const int each : chunk_choices(space, model, pp)) {
          if (each <= layout.v) v = std::max(v, each);
        }
        chunks(m, v);
        if (pp == 1) m.schedule = ScheduleKind::OneForwardOneBackward;
      },
      out);
  vary(chunk_choices(space, model, layout.pp), layout, chunks, out);
  vary_experts_and_context(space, layout, out);
  vary(
      space.stages, layout, [](Layout& m, const StageLayers& stages) { m.stages = stages; }, out);
  vary(
      space.microbatch_size, layout, [](Layout& m, std::int64_t size) { m.microbatch_size = size; },
      out);
  vary(
      space.sequence_parallel, layout, [](Layout& m, int on) { m.sequence_parallel = on != 0; },
      out);
  vary(
      space.zero_stage, layout, [](Layout& m, int zero) { m.zero_stage = zero; }, out);
  vary(
      shard_choices(space, model, layout), layout, [](Layout& m, int size) { m.shard_size = size; },
      out);
  vary(
      space.optimizer_offload, layout, [](Layout& m, double share) { m.optimizer_offload = share; },
      out);
  vary(
      space.recompute, layout, [](Layout& m, const Recomputation& r) { m.recompute = r; }, out);
  vary(
      space.schedule, layout,
      [&](Layout& m, ScheduleKind kind) {
        take_schedule(m, kind, chunk_choices(space, model, m.pp));
      },
      out);
  vary_overlap(space, layout, out);
  return out;
}

double message_cost(const Plan& plan, const program::CostModel& cost) {
  if (plan.layout.pp == 1) return plan.message_cost;
  program::Coordinates next{};
  next[static_cast<std::size_t>(program::Axis::Pp)] = 1;
  const DeviceId from = plan.placement.device_of[RankId{0}];
  const DeviceId to = plan.placement.device_of[plan.layout.grid().rank(next)];
  const double message =
      to_seconds(cost.message(message_bytes(plan, program::Payload::Activation), from, to));
  const double share = std::max(kMessageCostMin, message / first_forward(plan, cost));
  return std::stod(fmt::format("{:.3g}", share));
}

double step_bound(const Plan& plan, BoundKind kind, const program::CostModel& cost) {
  FORESAIL_EXPECT(check(plan).broken.empty());
  MeshCost prices(plan, cost);
  ShapeCache shapes(prices, plan);
  const PlanBound bound(plan, shapes.shape(plan), prices, kind);
  return kind == BoundKind::Coarse ? bound.coarse() : bound.fine(make_schedule(plan));
}

Verdict judge(const SearchProblem& problem, const SearchOutcome& outcome, const Layout& layout,
              int placement, const program::CostModel& cost) {
  const SearchSpace space = completed(problem);
  Verdict verdict;
  verdict.candidate.layout = layout;
  verdict.candidate.placement = placement;
  const std::int64_t ranks =
      std::int64_t{layout.tp} * layout.cp * layout.pp * std::int64_t{layout.dp};
  const auto is_size = [&](int gpus) { return gpus == ranks; };
  const bool is_allowed = std::ranges::any_of(space.gpus, is_size);
  const int gpus = is_allowed ? static_cast<int>(ranks) : space.gpus.front();
  for (const BrokenLaw& law : check_laws(problem.base.model, layout, problem.base.training, gpus)) {
    if (verdict.law.empty()) verdict.law = law.name;
    if (!verdict.reason.empty()) verdict.reason += "; ";
    verdict.reason += law.message;
  }
  if (verdict.reason.empty()) {
    for (const BrokenLaw& law : check_host(layout, problem.base.training, problem.base.cluster)) {
      if (verdict.law.empty()) verdict.law = law.name;
      verdict.reason += (verdict.reason.empty() ? "" : "; ") + law.message;
    }
  }
  if (!verdict.reason.empty()) return verdict;
  const Layout plain = plain_form(layout, problem.base.stack);
  const auto same = std::ranges::find_if(outcome.simulated, [&](const Candidate& each) {
    return each.placement == placement && plain_form(each.layout, problem.base.stack) == plain;
  });
  if (same != outcome.simulated.end()) {
    verdict.kind = Verdict::Kind::Simulated;
    verdict.candidate = *same;
    verdict.candidate.layout = layout;
    return verdict;
  }
  MeshState state(problem, space, mesh_of(layout, placement), cost);
  const MeshState::Refined refined = state.refine(layout);
  verdict.candidate.peak = refined.peak;
  if (!refined.out_of_memory.empty()) {
    verdict.kind = Verdict::Kind::OutOfMemory;
    verdict.reason = refined.out_of_memory;
    verdict.excess = std::max(Bytes{}, refined.peak - device_memory(problem.base.cluster));
    return verdict;
  }
  if (problem.memory == MemoryRule::AtMost) {
    const Plan plan = plan_of(problem, verdict.candidate, cost);
    verdict.reason = describe_upper_excess(plan, lower(plan));
    if (!verdict.reason.empty()) {
      verdict.kind = Verdict::Kind::OutOfMemory;
      return verdict;
    }
  }
  verdict.kind = Verdict::Kind::Bounded;
  verdict.candidate.bound_s = std::max(refined.bound_s, state.coarse(layout));
  verdict.candidate.objective = objective_of(problem, verdict.candidate.bound_s, gpus);
  return verdict;
}

}  // namespace foresail::planner
