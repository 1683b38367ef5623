#include "foresail/scenarios/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace foresail::scenarios {
namespace {

std::vector<double> magnitudes(const std::vector<ValidatedRow>& rows) {
  std::vector<double> values;
  for (const ValidatedRow& row : rows) values.push_back(std::abs(row.error()));
  return values;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string group_line(const std::string& name, const std::vector<ValidatedRow>& rows) {
  Scoreboard part;
  part.rows = rows;
  return fmt::format("{:<28} {:>5} {:>8.1f} {:>8.1f} {:>+8.1f} {:>+8.1f}\n", name, rows.size(),
                     100 * part.mean_abs_error(), 100 * part.median_abs_error(), 100 * part.worst(),
                     100 * part.bias());
}

}  // namespace

double Scoreboard::mean_abs_error() const {
  return mean(magnitudes(rows));
}
double Scoreboard::median_abs_error() const {
  return median(magnitudes(rows));
}

double Scoreboard::worst() const {
  double worst = 0;
  for (const ValidatedRow& row : rows) {
    if (std::abs(row.error()) > std::abs(worst)) worst = row.error();
  }
  return worst;
}

double Scoreboard::bias() const {
  std::vector<double> errors;
  for (const ValidatedRow& row : rows) errors.push_back(row.error());
  return mean(errors);
}

namespace {

// Either field is filled.
struct RowOutcome {
  std::optional<ValidatedRow> row;
  std::string reason;
};

RowOutcome validate_row(const Row& row, const std::vector<StackDescription>& stacks,
                        const PredictOptions& options) {
  const RowPlanResult planned = plan_row(row, stacks);
  if (!planned.made) return {std::nullopt, planned.reason};
  const Prediction prediction = predict(planned.made->plan, options);
  ValidatedRow result;
  result.id = row.id;
  result.source = row.source;
  result.device = planned.made->plan.cluster.device.name;
  result.published_s = row.published_s;
  result.predicted_s = to_seconds(prediction.outcome.iteration);
  result.stack = planned.made->stack;
  result.assumed = planned.made->assumed;
  for (const std::string& column : row.unused) {
    result.assumed.push_back(fmt::format("column {} not used", column));
  }
  return {std::move(result), {}};
}

}  // namespace

Scoreboard validate(const RowFile& file, const ValidateOptions& options) {
  const std::vector<StackDescription> stacks = load_stacks();
  std::vector<RowOutcome> outcomes(file.rows.size());
  std::atomic<std::size_t> next = 0;
  std::mutex reporting;
  std::size_t done = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < file.rows.size(); i = next++) {
      try {
        outcomes[i] = validate_row(file.rows[i], stacks, options.predict);
      } catch (...) {
        const std::lock_guard lock(reporting);
        if (!failure) failure = std::current_exception();
        next = file.rows.size();
      }
      const std::lock_guard lock(reporting);
      if (options.progress) options.progress(++done, file.rows.size());
    }
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < options.threads; ++t) helpers.emplace_back(work);
  work();
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
  Scoreboard board;
  board.skipped = file.skipped;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i].row) {
      board.rows.push_back(std::move(*outcomes[i].row));
    } else {
      board.skipped.push_back({file.rows[i].id, outcomes[i].reason});
    }
  }
  return board;
}

Document to_document(const Scoreboard& board) {
  Document rows = Document::array();
  for (const ValidatedRow& row : board.rows) {
    rows.push_back({{"id", row.id},
                    {"source", row.source},
                    {"published_s", row.published_s},
                    {"predicted_s", row.predicted_s},
                    {"error", row.error()},
                    {"interval_50", nullptr},
                    {"interval_90", nullptr},
                    {"assumed", row.assumed},
                    {"anchored", false}});
  }
  Document skipped = Document::array();
  for (const SkippedRow& row : board.skipped) {
    skipped.push_back({{"id", row.id}, {"reason", row.reason}});
  }
  const bool has_rows = !board.rows.empty();
  const auto figure = [has_rows](double value) { return has_rows ? Document(value) : Document(); };
  return {{"rows", rows},
          {"skipped", skipped},
          {"mean_abs_error", figure(board.mean_abs_error())},
          {"median_abs_error", figure(board.median_abs_error())},
          {"worst", figure(board.worst())},
          {"bias", figure(board.bias())},
          {"naive_mean_abs_error", nullptr},
          {"coverage_50", nullptr},
          {"coverage_90", nullptr}};
}

std::string to_text(const Scoreboard& board) {
  std::string text =
      fmt::format("{:<44} {:>10} {:>10} {:>8}\n", "row", "published", "predicted", "error %");
  std::map<std::string, std::vector<ValidatedRow>> sources;
  for (const ValidatedRow& row : board.rows) {
    text += fmt::format("{:<44} {:>8.3f} s {:>8.3f} s {:>+8.1f}\n", row.id, row.published_s,
                        row.predicted_s, 100 * row.error());
    sources[row.source + " on " + row.device].push_back(row);
  }
  if (!board.rows.empty()) {
    text += fmt::format("\n{:<28} {:>5} {:>8} {:>8} {:>8} {:>8}\n", "absolute error, %", "rows",
                        "mean", "median", "worst", "bias");
    for (const auto& [name, rows] : sources) text += group_line(name, rows);
    text += group_line("all", board.rows);
  }
  if (!board.skipped.empty()) text += fmt::format("\nskipped {}:\n", board.skipped.size());
  for (const SkippedRow& row : board.skipped) {
    text += fmt::format("  {}: {}\n", row.id, row.reason);
  }
  return text;
}

}  // namespace foresail::scenarios
