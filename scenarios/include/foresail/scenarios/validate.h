/// \file
/// The scoreboard: published rows, each predicted from its own columns, and the errors.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/rows.h"

namespace foresail::scenarios {

struct ValidatedRow {
  std::string id, source, device;
  double published_s = 0, predicted_s = 0;
  std::string stack;
  std::vector<std::string> assumed;
  double error() const { return predicted_s / published_s - 1; }
};

struct Scoreboard {
  std::vector<ValidatedRow> rows;
  std::vector<SkippedRow> skipped;
  double mean_abs_error() const;
  double median_abs_error() const;
  double worst() const;  ///< signed, largest by magnitude
  double bias() const;   ///< mean of the signed errors
};

struct ValidateOptions {
  PredictOptions predict;
  int threads = 1;  ///< rows predicted at the same time; the result does not depend on it
  /// Called after each row with the number done and of all; may be empty.
  std::function<void(std::size_t, std::size_t)> progress;
};

/// Predicts every complete row. Rows that cannot be planned are skipped with their reason.
Scoreboard validate(const RowFile& file, const ValidateOptions& options);

/// The keys of design section 7; those of later versions (intervals, anchors, naive yardstick) are
/// null.
Document to_document(const Scoreboard& scoreboard);
/// Tables for people: per row, per source, overall.
std::string to_text(const Scoreboard& scoreboard);

}  // namespace foresail::scenarios
