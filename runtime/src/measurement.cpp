#include "foresail/runtime/measurement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

Duration from_ns(std::int64_t ns) {
  return std::chrono::nanoseconds(ns);
}

/// The earliest start of every step on one host.
std::map<std::pair<std::string, int>, std::int64_t> step_starts(
    const std::vector<RankMeasurement>& ranks) {
  std::map<std::pair<std::string, int>, std::int64_t> starts;
  for (const RankMeasurement& rank : ranks) {
    for (const StepSummary& step : rank.steps) {
      const auto [place, is_new] = starts.emplace(std::pair(rank.host, step.step), step.start_ns);
      if (!is_new) place->second = std::min(place->second, step.start_ns);
    }
  }
  return starts;
}

program::Span to_span(const MeasuredSpan& measured, RankId rank, std::int64_t origin_ns) {
  program::Span span;
  span.rank = rank;
  span.lane = static_cast<Lane>(measured.lane);
  span.op = program::OpId{measured.op};
  span.kernel = measured.kernel;
  span.step = measured.step;
  span.start = SimTime(from_ns(measured.start_ns - origin_ns));
  span.end = SimTime(from_ns(measured.end_ns - origin_ns));
  span.bytes = Bytes(measured.bytes);
  return span;
}

}  // namespace

std::string pack(const RankMeasurement& measurement) {
  Document header{{"rank", measurement.rank.value},
                  {"host", measurement.host},
                  {"plan_digest", measurement.plan_digest},
                  {"program_digest", measurement.program_digest}};
  header["steps"] = Document::array();
  for (const StepSummary& step : measurement.steps) {
    header["steps"].push_back({step.step, step.loss, step.gradient_norm, step.start_ns, step.end_ns,
                               step.data_wait_ns, step.executed_digest, step.peak_bytes});
  }
  std::string packed = header.dump() + '\n';
  packed.append(reinterpret_cast<const char*>(measurement.spans.data()),
                measurement.spans.size() * sizeof(MeasuredSpan));
  return packed;
}

RankMeasurement unpack(const std::string& packed) {
  const std::size_t end = packed.find('\n');
  FORESAIL_EXPECT(end != std::string::npos);
  const Document header = parse_json(packed.substr(0, end), "measurement");
  RankMeasurement measurement;
  measurement.rank = RankId{header.at("rank").get<std::uint32_t>()};
  measurement.host = header.at("host");
  measurement.plan_digest = header.at("plan_digest");
  measurement.program_digest = header.at("program_digest");
  for (const Document& step : header.at("steps")) {
    measurement.steps.push_back({.step = step.at(0),
                                 .loss = step.at(1),
                                 .gradient_norm = step.at(2),
                                 .start_ns = step.at(3),
                                 .end_ns = step.at(4),
                                 .data_wait_ns = step.at(5),
                                 .executed_digest = step.at(6),
                                 .peak_bytes = step.at(7)});
  }
  const std::size_t bytes = packed.size() - end - 1;
  FORESAIL_EXPECT(bytes % sizeof(MeasuredSpan) == 0);
  measurement.spans.resize(bytes / sizeof(MeasuredSpan));
  if (bytes > 0) std::memcpy(measurement.spans.data(), packed.data() + end + 1, bytes);
  return measurement;
}

program::Trace make_trace(const Job& job, const std::string& version,
                          const std::vector<RankMeasurement>& ranks) {
  program::Trace trace;
  trace.kind = program::TraceKind::Measured;
  trace.version = version;
  trace.plan_digest = job.plan_digest;
  trace.program_digest = program::program_digest(job.program);
  trace.seed = job.seed;
  trace.fidelity = "measured";
  const auto starts = step_starts(ranks);
  for (const RankMeasurement& rank : ranks) {
    for (const StepSummary& step : rank.steps) {
      const auto index = static_cast<std::size_t>(step.step);
      if (trace.steps.size() <= index) trace.steps.resize(index + 1);
      const Duration length = from_ns(step.end_ns - starts.at({rank.host, step.step}));
      trace.steps[index] = std::max(trace.steps[index], length);
    }
    for (const MeasuredSpan& span : rank.spans) {
      trace.spans.push_back(to_span(span, rank.rank, starts.at({rank.host, span.step})));
    }
  }
  std::ranges::sort(trace.spans, {}, [](const program::Span& span) {
    return std::tuple(span.step, span.rank, span.start, span.lane, span.op, span.kernel);
  });
  return trace;
}

}  // namespace foresail::runtime
