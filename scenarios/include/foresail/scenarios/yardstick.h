/// \file
/// A naive prediction to be better than: one rate of FLOPs (the model's, and those that full
/// recomputation repeats) per device and precision, and the ideal pipeline bubble. Rates are fitted
/// on the fit set (scripts/fit_devices) and stand in scenarios/catalogue/yardstick.yaml.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/units.h"
#include "foresail/planner/plan.h"

namespace foresail::scenarios {

struct NaiveRate {
  std::string device;
  int bits = 16;      ///< 8 for fp8, 32, else 16
  double tflops = 0;  ///< FLOP/s of one device (Korthikanti 2022), times 1e-12
  std::size_t rows = 0;
};

struct Yardstick {
  std::vector<NaiveRate> rates;
  /// FLOPs / (devices * rate) * (1 + (p - 1) / (v m)); nothing for a device and precision
  /// without rate.
  std::optional<Duration> predict(const planner::Plan& plan) const;
};

/// A published step to fit a rate on.
struct NaiveSample {
  const planner::Plan* plan = nullptr;
  double seconds = 0;
  double weight = 1;
};
/// One rate per device and precision: the weighted geometric mean.
Yardstick fit_yardstick(const std::vector<NaiveSample>& samples);

Yardstick load_yardstick();  ///< throws Error
Document to_document(const Yardstick& yardstick);

}  // namespace foresail::scenarios
