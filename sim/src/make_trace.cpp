#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/sim/simulator.h"

namespace foresail::sim {
namespace {

using program::Op;
using program::OpKind;
using program::Program;
using program::Span;
using program::Trace;

// The unit with the latest end of any op: the slowest replica at its last stage.
std::size_t slowest(const StepOutcome& outcome) {
  std::size_t worst = 0;
  SimTime latest{};
  for (std::size_t u = 0; u < outcome.units.size(); ++u) {
    for (std::size_t o = 0; o < outcome.op_times[u].size(); ++o) {
      if (outcome.op_times[u][o].end > latest) {
        latest = outcome.op_times[u][o].end;
        worst = u;
      }
    }
  }
  return worst;
}

void add_kernels(const Program& program, const StepOutcome& outcome, const Op& op, Span span,
                 std::vector<Span>& spans) {
  const std::vector<StepOutcome::OpTime>& times = outcome.kernel_times[op.kernels.value];
  SimTime last{};
  for (const StepOutcome::OpTime& time : times) last = std::max(last, time.end);
  if (last == SimTime{}) return;
  // The pass as it ran (shared cores, slower beside a collective), in proportion to its own times.
  const double scale = to_seconds(span.end - span.start) / to_seconds(last - SimTime{});
  const auto placed = [&](SimTime at) {
    return span.start + Duration(static_cast<std::int64_t>(
                            static_cast<double>((at - SimTime{}).count()) * scale));
  };
  const std::vector<Kernel>& kernels = program.kernel_lists[op.kernels.value].kernels;
  for (std::size_t k = 0; k < times.size(); ++k) {
    Span kernel = span;
    kernel.kernel = static_cast<int>(k);
    kernel.lane = kernels[k].lane;
    kernel.start = placed(times[k].start);
    kernel.end = placed(times[k].end);
    kernel.bytes = kernels[k].kind == KernelKind::Collective ? kernels[k].bytes : Bytes{};
    spans.push_back(kernel);
  }
}

void add_rank(const Program& program, const StepOutcome& outcome, std::size_t unit, RankId rank,
              std::vector<Span>& spans) {
  const auto stage = static_cast<std::size_t>(outcome.units[unit].stage);
  std::uint32_t id = 0;
  for (const Op& op : program.stages[stage].ops) {
    Span span;
    span.rank = rank;
    span.lane = op.lane;
    span.op = program::OpId{id};
    span.start = outcome.op_times[unit][id].start;
    span.end = outcome.op_times[unit][id].end;
    span.bytes = op.bytes;
    spans.push_back(span);
    if (op.kind == OpKind::Compute) add_kernels(program, outcome, op, span, spans);
    ++id;
  }
}

// The simulated unit that stands for `rank`: its own, or the representative of its replica.
std::size_t unit_of(const Program& program, const StepOutcome& outcome, RankId rank) {
  const program::Coordinates at = program.grid.coordinates(rank);
  const int stage = at[static_cast<std::size_t>(program::Axis::Pp)];
  const int replica = at[static_cast<std::size_t>(program::Axis::Dp)];
  std::size_t stand_in = outcome.units.size();
  for (std::size_t u = 0; u < outcome.units.size(); ++u) {
    if (outcome.units[u].stage != stage) continue;
    if (outcome.units[u].replica == replica) return u;
    if (stand_in == outcome.units.size()) stand_in = u;
  }
  FORESAIL_EXPECT(stand_in < outcome.units.size());
  return stand_in;
}

}  // namespace

Trace make_trace(const Program& program, const StepOutcome& outcome, const TraceRanks& ranks) {
  Trace trace;
  trace.kind = program::TraceKind::Predicted;
  trace.steps = {outcome.iteration};
  std::vector<RankId> chosen;
  if (ranks.kind == TraceRanks::Kind::List) {
    chosen = ranks.list;
  } else if (ranks.kind == TraceRanks::Kind::All) {
    for (int r = 0; r < program.grid.world_size(); ++r) {
      chosen.push_back(RankId{static_cast<std::uint32_t>(r)});
    }
  } else {
    const std::size_t stages = program.stages.size();
    for (std::size_t s = 0; s < stages; ++s) chosen.push_back(outcome.units[s].ranks.front());
    chosen.push_back(outcome.units[slowest(outcome)].ranks.front());
  }
  std::ranges::sort(chosen);
  const auto repeated = std::ranges::unique(chosen);
  chosen.erase(repeated.begin(), repeated.end());
  for (const RankId rank : chosen) {
    FORESAIL_EXPECT(rank.value < static_cast<std::uint32_t>(program.grid.world_size()));
    add_rank(program, outcome, unit_of(program, outcome, rank), rank, trace.spans);
  }
  std::ranges::stable_sort(trace.spans, [](const Span& a, const Span& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.start != b.start) return a.start < b.start;
    if (a.lane != b.lane) return a.lane < b.lane;
    return a.op != b.op ? a.op < b.op : a.kernel < b.kernel;
  });
  return trace;
}

}  // namespace foresail::sim
