/// \file
/// The answer of `simulate` and of `run`: one document, one table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/units.h"
#include "foresail/program/program.h"
#include "foresail/report/breakdown.h"

namespace foresail::report {

/// Bounds of a duration, low and high.
struct Interval {
  Duration low{}, high{};
};

/// What the simulation itself took.
struct SimulatorCost {
  std::int64_t events = 0;
  double cpu_s = 0, wall_s = 0;
  Bytes peak_rss;
};

struct StepResult {
  Duration iteration_time{};
  std::optional<Interval> interval_50, interval_90;  ///< where the spread is known
  double tokens_per_s = 0, tokens_per_s_per_gpu = 0;
  double mfu = 0;  ///< model FLOPs of the step / (time * GPUs * peak)
  double hfu = 0;  ///< the same with recomputed FLOPs
  double model_tflops_per_gpu = 0;
  std::string mfu_formula;               ///< which count of model FLOPs
  bool mfu_causal = false;               ///< whether it counts half the attention
  double peak_tflops = 0;                ///< of one GPU, the denominator of MFU
  program::MemoryNeed memory;            ///< of the stage that needs most, as planned
  std::optional<Bytes> memory_upper;     ///< what a rank of that stage needs at most
  std::optional<Bytes> memory_measured;  ///< most bytes of tensors that any rank really held
  Breakdown breakdown;
  /// Free in its keys: numbers and texts, or lists of objects with equal keys, which become tables.
  Document network = Document::object();
  std::string fidelity;  ///< "analytic", "flow", "packet", "measured"
  std::uint64_t seed = 0;
  std::string version, plan_digest, program_digest;
  std::optional<SimulatorCost> simulator;  ///< nothing if the step was measured
  std::vector<std::string> notes;          ///< what a reader should know, such as what was folded
};

/// Keys of docs/reference/result.md; what is not known is null.
Document to_document(const StepResult& result);
/// A table for people.
std::string to_text(const StepResult& result);

}  // namespace foresail::report
