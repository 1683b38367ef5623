#include "foresail/program/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "foresail/base/error.h"

namespace foresail::program {
namespace {

/// One row per span; a row has these columns, in this order.
constexpr std::array<std::string_view, 8> kColumns = {"step",   "rank",     "lane",   "op",
                                                      "kernel", "start_ps", "end_ps", "bytes"};
constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMaxId = std::numeric_limits<std::uint32_t>::max();
/// Of times, so that differences of two cannot overflow, and of byte counts.
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int64_t>::max() / 2;

class TraceReader {
 public:
  TraceReader(const Document& document, const std::string& name)
      : document_(document), name_(name) {}

  Trace read() const;

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::InvalidInput, name_ + ": " + message);
  }
  const Document& at(std::string_view key) const {
    const auto found = document_.find(key);
    if (found == document_.end()) fail(fmt::format("{} is missing", key));
    return *found;
  }
  std::string text(std::string_view key) const {
    const Document& value = at(key);
    if (!value.is_string()) fail(fmt::format("{}: expected a string", key));
    return value.get<std::string>();
  }
  const Document& list(std::string_view key) const {
    const Document& value = at(key);
    if (!value.is_array()) fail(fmt::format("{}: expected a list", key));
    return value;
  }
  std::int64_t integer(const Document& value, const std::string& what, std::int64_t low,
                       std::int64_t high) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{kMaxCount})) {
      fail(fmt::format("{}: expected an integer, got {}", what, value.dump()));
    }
    const auto number = value.get<std::int64_t>();
    if (number < low || number > high) {
      fail(fmt::format("{} {} is not in {} to {}", what, number, low, high));
    }
    return number;
  }
  void check_columns() const;
  Span span(const Document& row, std::size_t index, std::size_t steps) const;

  const Document& document_;
  const std::string& name_;
};

void TraceReader::check_columns() const {
  if (at("columns") != Document(kColumns)) {
    fail("columns: expected " + Document(kColumns).dump());
  }
  Document lanes = Document::array();
  for (const auto& entry : kNames<Lane>) lanes.push_back(entry.name);
  // Lanes that came later stand last, and a trace that is older lacks them.
  const Document& named = at("lanes");
  const bool is_older = named.is_array() && !named.empty() && named.size() < lanes.size();
  if (is_older) lanes.erase(lanes.begin() + static_cast<std::ptrdiff_t>(named.size()), lanes.end());
  if (named != lanes) fail("lanes: expected " + lanes.dump());
}

Span TraceReader::span(const Document& row, std::size_t index, std::size_t steps) const {
  if (!row.is_array() || row.size() != kColumns.size()) {
    fail(fmt::format("spans[{}]: expected {} columns", index, kColumns.size()));
  }
  const auto column = [&](std::size_t i, std::int64_t low, std::int64_t high) {
    return integer(row[i], fmt::format("spans[{}].{}", index, kColumns[i]), low, high);
  };
  Span span;
  span.step = static_cast<int>(column(0, 0, static_cast<std::int64_t>(steps) - 1));
  span.rank = RankId{static_cast<std::uint32_t>(column(1, 0, kMaxId))};
  span.lane = static_cast<Lane>(column(2, 0, static_cast<std::int64_t>(at("lanes").size()) - 1));
  span.op = OpId{static_cast<std::uint32_t>(column(3, 0, kMaxId))};
  span.kernel = static_cast<int>(column(4, -1, kMaxInt));
  const std::int64_t start = column(5, -kMaxCount, kMaxCount);
  span.start = SimTime(Duration(start));
  span.end = SimTime(Duration(column(6, start, kMaxCount)));
  span.bytes = Bytes(column(7, 0, kMaxCount));
  return span;
}

Trace TraceReader::read() const {
  if (!document_.is_object()) fail("expected an object");
  integer(at("foresail_trace"), "foresail_trace", 1, 1);
  check_columns();
  Trace trace;
  const std::string kind = text("kind");
  if (const auto known = from_string<TraceKind>(kind)) {
    trace.kind = *known;
  } else {
    fail(fmt::format("kind: \"{}\" is not one of {}", kind, choices<TraceKind>()));
  }
  trace.version = text("version");
  trace.plan_digest = text("plan_digest");
  trace.program_digest = text("program_digest");
  trace.fidelity = text("fidelity");
  if (document_.contains("program")) trace.program = text("program");
  const Document& seed = at("seed");
  if (!seed.is_number_unsigned() && !(seed.is_number_integer() && seed.get<std::int64_t>() >= 0)) {
    fail("seed: expected an integer not below 0");
  }
  trace.seed = seed.get<std::uint64_t>();
  for (const Document& step : list("steps_ps")) {
    trace.steps.emplace_back(integer(step, "steps_ps", 0, kMaxCount));
  }
  const Document& rows = list("spans");
  trace.spans.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    trace.spans.push_back(span(rows[i], i, trace.steps.size()));
  }
  std::ranges::stable_sort(trace.spans, {}, [](const Span& span) {
    return std::tuple(span.step, span.rank, span.start, span.lane, span.op, span.kernel);
  });
  return trace;
}

}  // namespace

Document to_document(const Trace& trace) {
  Document lanes = Document::array();
  for (const auto& entry : kNames<Lane>) lanes.push_back(entry.name);
  Document steps = Document::array();
  for (const Duration step : trace.steps) steps.push_back(step.count());
  Document spans = Document::array();
  for (const Span& span : trace.spans) {
    spans.push_back(
        Document::array({span.step, span.rank.value, static_cast<int>(span.lane), span.op.value,
                         span.kernel, span.start.time_since_epoch().count(),
                         span.end.time_since_epoch().count(), span.bytes.count()}));
  }
  Document document = {{"foresail_trace", 1},
                       {"kind", to_string(trace.kind)},
                       {"version", trace.version},
                       {"plan_digest", trace.plan_digest},
                       {"program_digest", trace.program_digest},
                       {"seed", trace.seed},
                       {"fidelity", trace.fidelity},
                       {"steps_ps", std::move(steps)},
                       {"lanes", std::move(lanes)},
                       {"columns", kColumns},
                       {"spans", std::move(spans)}};
  if (!trace.program.empty()) document["program"] = trace.program;
  return document;
}

Trace trace_from_document(const Document& document, const std::string& name) {
  return TraceReader(document, name).read();
}

}  // namespace foresail::program
