#include "foresail/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "transfers.h"

namespace foresail::report {
namespace {

using foresail::to_text;

using program::Op;
using program::OpKind;
using program::Program;
using program::Span;
using program::Trace;

/// Orders rows: the step, passes, the rest of a rank's own work, messages, collectives.
using ClassKey = std::pair<int, std::string>;

struct ClassTimes {
  std::int64_t count = 0;
  Duration sum{};
  Duration mean() const { return sum / count; }
};
using StepTimes = std::map<ClassKey, ClassTimes>;

ClassKey class_of(const Program& program, const Span& span) {
  const Op& op = op_of(program, span);
  if (span.kernel >= 0) {
    const Kernel& kernel = kernel_of(program, span);
    return {5,
            fmt::format("{} {} (in passes)", to_string(kernel.lane), to_string(kernel.collective))};
  }
  switch (op.kind) {
    case OpKind::Compute:
      return {op.pass == program::Pass::Optimizer ? 2 : 1, std::string(to_string(op.pass))};
    case OpKind::Host:
      return {2, std::string(to_string(op.host))};
    case OpKind::Send:
    case OpKind::Recv:
      return {3, fmt::format("{} {}", to_string(op.kind), to_string(op.payload))};
    case OpKind::Collective:
      return {4, fmt::format("{} {} {}", to_string(op.lane), to_string(op.collective),
                             to_string(op.payload))};
  }
  return {6, "?"};
}

/// Times by class of each step that counts, over `ranks`.
std::vector<StepTimes> times_of(const Program& program, const Trace& trace,
                                const std::set<RankId>& ranks) {
  const std::vector<SimTime> starts = transfer_starts(program, trace);
  const auto first = static_cast<std::size_t>(first_step(trace));
  std::vector<StepTimes> steps(trace.steps.size() - first);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i][{0, "step"}] = {1, trace.steps[first + i]};
  }
  for (std::size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    const auto step = static_cast<std::size_t>(span.step);
    FORESAIL_EXPECT(step < trace.steps.size());
    if (step < first || !ranks.contains(span.rank)) continue;
    if (span.kernel >= 0 && kernel_of(program, span).kind != KernelKind::Collective) continue;
    ClassTimes& times = steps[step - first][class_of(program, span)];
    ++times.count;
    times.sum += span.end - starts[i];
  }
  return steps;
}

/// Median over the steps of each step's mean.
std::optional<Duration> median(const std::vector<StepTimes>& steps, const ClassKey& key) {
  std::vector<Duration> means;
  for (const StepTimes& step : steps) {
    if (const auto found = step.find(key); found != step.end()) {
      means.push_back(found->second.mean());
    }
  }
  if (means.empty()) return std::nullopt;
  std::ranges::sort(means);
  const std::size_t half = means.size() / 2;
  return means.size() % 2 == 1 ? means[half] : (means[half - 1] + means[half]) / 2;
}

void demand_equal(std::string_view what, const std::string& predicted,
                  const std::string& measured) {
  if (predicted == measured) return;
  throw Error(ErrorCode::InvalidInput,
              fmt::format("{} digest {} of the predicted trace is not {} of the measured one", what,
                          predicted, measured));
}

std::set<RankId> ranks_of(const Trace& trace) {
  std::set<RankId> ranks;
  for (const Span& span : trace.spans) ranks.insert(span.rank);
  return ranks;
}

std::set<RankId> common_ranks(const Trace& a, const Trace& b) {
  const std::set<RankId> of_a = ranks_of(a);
  const std::set<RankId> of_b = ranks_of(b);
  std::set<RankId> common;
  std::ranges::set_intersection(of_a, of_b, std::inserter(common, common.end()));
  if (common.empty()) {
    throw Error(ErrorCode::InvalidInput, "the two traces have no rank in common");
  }
  return common;
}

std::string shown(const std::optional<Duration>& time) {
  return time ? to_text(*time) : "-";
}

}  // namespace

std::optional<double> ComparisonRow::error() const {
  if (!predicted || !measured || *measured == Duration::zero()) return std::nullopt;
  return to_seconds(*predicted) / to_seconds(*measured) - 1;
}

Comparison compare(const Program& program, const Trace& predicted, const Trace& measured) {
  demand_equal("plan", predicted.plan_digest, measured.plan_digest);
  demand_equal("program", predicted.program_digest, measured.program_digest);
  const std::string own = program::program_digest(program);
  if (own != predicted.program_digest) {
    throw Error(ErrorCode::InvalidInput, fmt::format("program digest {} is not {} of the traces",
                                                     own, predicted.program_digest));
  }
  if (predicted.steps.empty() || measured.steps.empty()) {
    throw Error(ErrorCode::InvalidInput, "a trace without steps cannot be compared");
  }
  const std::set<RankId> ranks = common_ranks(predicted, measured);
  const std::vector<StepTimes> expected = times_of(program, predicted, ranks);
  const std::vector<StepTimes> happened = times_of(program, measured, ranks);

  std::map<ClassKey, std::int64_t> counts;  // the predicted trace's, where it has the class
  for (const auto& [key, times] : happened.front()) counts[key] = times.count;
  for (const auto& [key, times] : expected.front()) counts[key] = times.count;

  Comparison comparison;
  comparison.plan_digest = predicted.plan_digest;
  comparison.program_digest = predicted.program_digest;
  comparison.ranks.assign(ranks.begin(), ranks.end());
  comparison.steps = happened.size();
  for (const auto& [key, count] : counts) {
    comparison.rows.push_back({key.second, count, median(expected, key), median(happened, key)});
  }
  return comparison;
}

Document to_document(const Comparison& comparison) {
  Document ranks = Document::array();
  for (const RankId rank : comparison.ranks) ranks.push_back(rank.value);
  Document rows = Document::array();
  for (const ComparisonRow& row : comparison.rows) {
    const auto seconds = [](const std::optional<Duration>& time) {
      return time ? Document(to_seconds(*time)) : Document();
    };
    const std::optional<double> error = row.error();
    rows.push_back({{"op_class", row.op_class},
                    {"count", row.count},
                    {"predicted_s", seconds(row.predicted)},
                    {"measured_s", seconds(row.measured)},
                    {"error", error ? Document(*error) : Document()}});
  }
  return {{"plan_digest", comparison.plan_digest},
          {"program_digest", comparison.program_digest},
          {"ranks", std::move(ranks)},
          {"steps", comparison.steps},
          {"rows", std::move(rows)}};
}

std::string to_text(const Comparison& comparison) {
  std::size_t width = std::string_view("op class").size();
  for (const ComparisonRow& row : comparison.rows) width = std::max(width, row.op_class.size());
  std::string text = fmt::format("{:<{}} {:>7} {:>10} {:>10} {:>9}\n", "op class", width, "count",
                                 "predicted", "measured", "error");
  for (const ComparisonRow& row : comparison.rows) {
    const std::optional<double> error = row.error();
    text += fmt::format("{:<{}} {:>7} {:>10} {:>10} {:>9}\n", row.op_class, width, row.count,
                        shown(row.predicted), shown(row.measured),
                        error ? fmt::format("{:+.1f} %", 100 * *error) : "-");
  }
  text += fmt::format("\nplan digest {}\nprogram digest {}\nranks compared {}, steps measured {}\n",
                      comparison.plan_digest, comparison.program_digest, comparison.ranks.size(),
                      comparison.steps);
  return text;
}

}  // namespace foresail::report
