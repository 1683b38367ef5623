#include <algorithm>
#include <cmath>
#include <map>

#include "foresail/scenarios/validate.h"

namespace foresail::scenarios {
namespace {

constexpr double kDistinct = 1.10;  // published times closer than that have no order
constexpr std::size_t kSweepRows = 3;

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

std::vector<double> magnitudes(const Scoreboard& board) {
  std::vector<double> values;
  for (const ValidatedRow* row : board.scored()) values.push_back(std::abs(row->error()));
  return values;
}

bool contains(const report::Interval& interval, double seconds) {
  return to_seconds(interval.low) <= seconds && seconds <= to_seconds(interval.high);
}

std::optional<double> coverage(const Scoreboard& board, report::Interval StepIntervals::*which) {
  std::vector<double> hits;
  for (const ValidatedRow* row : board.scored()) {
    if (!row->intervals) continue;
    hits.push_back(contains((*row->intervals).*which, row->published_s) ? 1 : 0);
  }
  if (hits.empty()) return std::nullopt;
  return mean(hits);
}

// Seconds per sequence.
struct Configuration {
  double published = 0, predicted = 0;
};

std::vector<Configuration> configurations(const std::vector<const ValidatedRow*>& rows) {
  std::map<std::string, std::vector<const ValidatedRow*>> repeats;
  for (const ValidatedRow* row : rows) repeats[row->layout].push_back(row);
  std::vector<Configuration> those;
  for (const auto& [layout, members] : repeats) {
    std::vector<double> published, predicted;
    for (const ValidatedRow* row : members) {
      published.push_back(row->published_s / row->samples);
      predicted.push_back(row->predicted_s / row->samples);
    }
    those.push_back({median(std::move(published)), median(std::move(predicted))});
  }
  return those;
}

void rank_sweep(const std::vector<Configuration>& rows, Ranking& ranking) {
  ++ranking.sweeps;
  ranking.configurations += static_cast<int>(rows.size());
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t b = a + 1; b < rows.size(); ++b) {
      const double ratio = rows[a].published / rows[b].published;
      if (ratio < kDistinct && ratio > 1 / kDistinct) continue;
      ++ranking.pairs;
      if ((ratio > 1) == (rows[a].predicted > rows[b].predicted)) ++ranking.right;
    }
  }
  const Configuration picked = *std::ranges::min_element(rows, {}, &Configuration::predicted);
  const Configuration best = *std::ranges::min_element(rows, {}, &Configuration::published);
  ranking.worst_pick = std::max(ranking.worst_pick, picked.published / best.published - 1);
}

}  // namespace

std::optional<double> ValidatedRow::naive_error() const {
  if (!naive_s) return std::nullopt;
  return *naive_s / published_s - 1;
}

std::vector<const ValidatedRow*> Scoreboard::scored() const {
  std::vector<const ValidatedRow*> those;
  for (const ValidatedRow& row : rows) {
    if (!row.anchored) those.push_back(&row);
  }
  return those;
}

double Scoreboard::mean_abs_error() const {
  return mean(magnitudes(*this));
}
double Scoreboard::median_abs_error() const {
  return median(magnitudes(*this));
}

double Scoreboard::worst() const {
  double worst = 0;
  for (const ValidatedRow* row : scored()) {
    if (std::abs(row->error()) > std::abs(worst)) worst = row->error();
  }
  return worst;
}

double Scoreboard::bias() const {
  std::vector<double> errors;
  for (const ValidatedRow* row : scored()) errors.push_back(row->error());
  return mean(errors);
}

std::optional<double> Scoreboard::naive_mean_abs_error() const {
  std::vector<double> values;
  for (const ValidatedRow* row : scored()) {
    if (const auto error = row->naive_error()) values.push_back(std::abs(*error));
  }
  if (values.empty()) return std::nullopt;
  return mean(values);
}

std::optional<double> Scoreboard::coverage_50() const {
  return coverage(*this, &StepIntervals::half);
}
std::optional<double> Scoreboard::coverage_90() const {
  return coverage(*this, &StepIntervals::ninety);
}

std::optional<double> Scoreboard::median_half_width_90() const {
  std::vector<double> widths;
  for (const ValidatedRow* row : scored()) {
    if (!row->intervals) continue;
    const report::Interval& interval = row->intervals->ninety;
    widths.push_back(std::sqrt(to_seconds(interval.high) / to_seconds(interval.low)) - 1);
  }
  if (widths.empty()) return std::nullopt;
  return median(widths);
}

Ranking Scoreboard::ranking() const {
  std::map<std::string, std::vector<const ValidatedRow*>> sweeps;
  for (const ValidatedRow* row : scored()) {
    if (!row->sweep.empty()) sweeps[row->sweep].push_back(row);
  }
  Ranking ranking;
  for (const auto& [name, members] : sweeps) {
    const std::vector<Configuration> distinct = configurations(members);
    if (distinct.size() >= kSweepRows) rank_sweep(distinct, ranking);
  }
  return ranking;
}

}  // namespace foresail::scenarios
