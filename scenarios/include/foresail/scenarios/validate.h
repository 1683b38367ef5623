/// \file
/// The scoreboard: published rows, each predicted from its own columns, and the errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/report/result.h"
#include "foresail/scenarios/anchor.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/rows.h"
#include "foresail/scenarios/spread.h"

namespace foresail::scenarios {

struct ValidatedRow {
  std::string id, source, device;
  double published_s = 0, predicted_s = 0;
  std::string stack;
  std::vector<std::string> assumed;
  std::optional<double> naive_s;  ///< of the yardstick; nothing without a rate for the device
  std::optional<StepIntervals> intervals;
  std::string sweep;      ///< rows of one model on one cluster: their order is compared
  std::string layout;     ///< rows of a sweep with one layout and batch measure one configuration
  double samples = 1;     ///< sequences per step: rows of a sweep compare time per sequence
  bool anchored = false;  ///< used to refit constants, so it counts in no figure

  double error() const { return predicted_s / published_s - 1; }
  std::optional<double> naive_error() const;
};

/// Order within sweeps of at least three rows. Rows of one layout and batch, which no prediction
/// can tell apart, are one configuration with their median published time.
struct Ranking {
  int sweeps = 0;
  int configurations = 0;
  int pairs = 0;          ///< whose published times differ by over 10 %
  int right = 0;          ///< of them, predicted in the same order
  double worst_pick = 0;  ///< largest published excess of the row predicted fastest, as a fraction
};

/// What was refitted on the first rows of a source, device and stack.
struct AnchorGroup {
  std::string name;
  int rows = 0;
  std::vector<FittedParameter> moved;
};

struct Scoreboard {
  std::vector<ValidatedRow> rows;
  std::vector<SkippedRow> skipped;
  std::vector<AnchorGroup> anchors;

  /// Rows that count: all but those used to refit.
  std::vector<const ValidatedRow*> scored() const;
  double mean_abs_error() const;
  double median_abs_error() const;
  double worst() const;  ///< signed, largest by magnitude
  double bias() const;   ///< mean of the signed errors
  /// Mean absolute error of the yardstick on the rows that it can predict; nothing without any.
  std::optional<double> naive_mean_abs_error() const;
  /// Share of rows within their 50 % and 90 % intervals; nothing without intervals.
  std::optional<double> coverage_50() const, coverage_90() const;
  /// Median of (high / low)^(1/2) - 1 of the 90 % intervals.
  std::optional<double> median_half_width_90() const;
  Ranking ranking() const;
};

struct ValidateOptions {
  PredictOptions predict;
  std::optional<std::uint64_t> seed;  ///< of hashing, instead of the Plans' own
  int threads = 1;  ///< rows predicted at the same time; the result does not depend on it
  /// Refit on the first rows (by id) of each source, device and stack, and score the others.
  int anchor_rows = 0;
  /// Called after each row with the number done and of all; may be empty.
  std::function<void(std::size_t, std::size_t)> progress;
};

/// Predicts every complete row. Rows that cannot be planned are skipped with their reason.
Scoreboard validate(const RowFile& file, const ValidateOptions& options);

/// The keys of docs/reference/validate.md.
Document to_document(const Scoreboard& scoreboard);
/// Rows that were skipped: how many for which reason, or one by one.
enum class SkippedRows { Counted, Listed };
/// Tables for people: per row, per source and device, overall.
std::string to_text(const Scoreboard& scoreboard, SkippedRows skipped = SkippedRows::Counted);
/// The same as a page (Markdown), without what was skipped.
std::string to_markdown(const Scoreboard& scoreboard);

/// One line for docs/validation/check_log.md: commit, digest of the constants, errors.
std::string log_line(const Scoreboard& scoreboard, const std::string& date,
                     const std::string& commit, const std::string& set);
/// First 12 digits of the SHA-256 of all that a prediction's constants come from: device files,
/// stacks and spread of the catalogue.
std::string constants_digest();

}  // namespace foresail::scenarios
