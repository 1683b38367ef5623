/// \file
/// Anchors: a user who has measured a few steps refits a few physical constants on them.
#pragma once

#include <string>
#include <vector>

#include "foresail/scenarios/fit.h"
#include "foresail/scenarios/rows.h"
#include "foresail/topologies/device.h"

namespace foresail::scenarios {

/// What a refit may move: constants around the catalogue's value, each with a relative width.
struct AnchorSettings {
  std::vector<FitParameter> parameters;  ///< `prior` is ignored: the row's own constant is used
  /// Spread of one configuration's error about that of its source, from the fit set
  /// (scripts/fit_devices): how much a single row says of others.
  double row_sigma = 0.03;
};
/// `anchor` of scenarios/catalogue/fit.yaml.
AnchorSettings load_anchor_settings();

/// A published step with the prediction that stands against it.
struct AnchorRow {
  const Row* row = nullptr;
  double predicted_s = 0;  ///< at the fidelity that will be used
};

/// Constants refitted on some rows of one source, device and stack.
struct Anchored {
  topologies::CostConstants constants;
  Duration host_per_kernel{};
  std::vector<FittedParameter> moved;  ///< for people
};
/// Requires at least one row, all of one device and stack.
Anchored fit_anchor(const std::vector<AnchorRow>& rows, const std::vector<StackDescription>& stacks,
                    const AnchorSettings& settings, int threads);

}  // namespace foresail::scenarios
