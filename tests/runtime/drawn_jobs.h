/// \file
/// Jobs of up to 8 ranks, drawn by seed over everything that a layout, a model and an optimizer may
/// choose.
#pragma once

#include <cstdint>
#include <string>

#include "thread_job.h"

namespace foresail::testing {

struct DrawnJob {
  TinyPlan tiny;
  std::string text;     ///< all choices
  std::string learner;  ///< those of them that one process must share: model, optimizer, precision
  bool is_bf16 = false;
  /// Where tokens go follows from the data, and with it the shapes of the experts' GEMMs.
  bool is_dropless = false;
};

/// The same for the same `index`; legal, supported, and of at least two ranks.
DrawnJob draw_job(std::uint64_t index);

/// The same learner in one process.
TinyPlan one_process_of(const DrawnJob& job);

/// How many jobs tests run: FORESAIL_PARITY_LAYOUTS, or `usual`.
int parity_layouts(int usual);

}  // namespace foresail::testing
