/// \file
/// What a run says of each step: a line for people, and a line of JSON for programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/planner/plan.h"
#include "foresail/runtime/job.h"
#include "foresail/runtime/measurement.h"

namespace foresail::cli {

/// One step in the units of docs/reference/run.md.
struct StepMetrics {
  int step = 0;
  double loss = 0, grad_norm = 0;
  double step_time_s = 0, tokens_per_s = 0, mfu = 0;
  std::int64_t memory_bytes = 0;  ///< most bytes of tensors at one time
  double exposed_communication_s = 0;
  double data_wait_s = 0;
};
Document to_document(const StepMetrics& metrics);
std::string to_text(const StepMetrics& metrics);

/// Turns measurements of a job's steps into metrics.
class StepMeter {
 public:
  StepMeter(const planner::Plan& plan, const runtime::Job& job);

  /// Of this rank's clock; `spans` are those of the step.
  StepMetrics of_rank(const runtime::StepSummary& step, RankId rank,
                      const std::vector<runtime::MeasuredSpan>& spans) const;
  /// Of all ranks, whose Trace is `trace`: the step ends with the last of them, memory and wait are
  /// those of the rank with most, exposed communication is the mean of the traced ranks.
  StepMetrics of_job(std::size_t step, const program::Trace& trace,
                     const std::vector<runtime::RankMeasurement>& ranks) const;

 private:
  StepMetrics timed(const runtime::StepSummary& step, double seconds) const;
  double exposed(const program::Trace& whole, std::size_t step) const;

  const runtime::Job& job_;
  double tokens_ = 0;           ///< per step
  double mfu_of_a_second_ = 0;  ///< the MFU of a step that takes one second
};

/// A file of JSON lines that others may read while it grows: every line gets there in one write,
/// whole or not at all.
class JsonLines {
 public:
  /// Throws Error{InvalidInput} if the file cannot be opened. An older file is replaced.
  explicit JsonLines(const std::filesystem::path& path);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;
  JsonLines& operator=(const JsonLines&) = delete;
  /// Throws Error{Io}.
  void add(const Document& line);

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace foresail::cli
