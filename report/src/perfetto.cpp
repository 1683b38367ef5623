#include "foresail/report/perfetto.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "foresail/base/document.h"
#include "transfers.h"

namespace foresail::report {
namespace {

using program::Program;
using program::Span;
using program::Trace;

double microseconds(Duration time) {
  return static_cast<double>(time.count()) * 1e-6;
}

Document metadata(const char* name, RankId rank, int lane, const std::string& label) {
  return {
      {"ph", "M"}, {"name", name}, {"pid", rank.value}, {"tid", lane}, {"args", {{"name", label}}}};
}

Document event(const Program& program, const Span& span, Duration offset) {
  const program::Op& op = op_of(program, span);
  Document args = {{"op", span.op.value}, {"step", span.step}};
  if (span.kernel >= 0) args["kernel"] = span.kernel;
  if (span.bytes > Bytes{}) args["bytes"] = span.bytes.count();
  return {{"ph", "X"},
          {"name", span.kernel >= 0 ? kernel_of(program, span).name : program::describe(op)},
          {"cat", span.kernel >= 0 ? "kernel" : to_string(op.kind)},
          {"pid", span.rank.value},
          {"tid", static_cast<int>(span.lane)},
          {"ts", microseconds(offset + span.start.time_since_epoch())},
          {"dur", microseconds(span.end - span.start)},
          {"args", std::move(args)}};
}

}  // namespace

std::string to_perfetto(const Program& program, const Trace& trace) {
  std::vector<Duration> offsets{Duration::zero()};
  for (const Duration step : trace.steps) offsets.push_back(offsets.back() + step);
  Document events = Document::array();
  std::set<RankId> ranks;
  std::set<std::pair<RankId, Lane>> lanes;
  for (const Span& span : trace.spans) {
    events.push_back(event(program, span, offsets.at(static_cast<std::size_t>(span.step))));
    ranks.insert(span.rank);
    lanes.insert({span.rank, span.lane});
  }
  for (const RankId rank : ranks) {
    const int stage = program.grid.coordinates(rank)[static_cast<std::size_t>(program::Axis::Pp)];
    events.push_back(
        metadata("process_name", rank, 0, fmt::format("rank {} (stage {})", rank.value, stage)));
  }
  for (const auto& [rank, lane] : lanes) {
    events.push_back(
        metadata("thread_name", rank, static_cast<int>(lane), std::string(to_string(lane))));
  }
  return Document{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump();
}

}  // namespace foresail::report
