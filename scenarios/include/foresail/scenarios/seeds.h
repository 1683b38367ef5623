/// \file
/// One question under many seeds: hashes, jitter and traffic drawn anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {

struct SeedTime {
  std::uint64_t seed = 0;
  Duration iteration{};
};

struct SeedDistribution {
  std::vector<SeedTime> times;  ///< by seed
  /// Value below which `share` of the draws lie (linear between order statistics).
  Duration quantile(double share) const;
  Duration mean() const;
};

/// Simulates the plan with `count` consecutive seeds from its own (or options.seed) on, on
/// `threads` threads; the answer does not depend on their number. Requires a plan without broken
/// laws. Throws Error{Unsupported} if the job fails on a fault under one of them.
SeedDistribution simulate_seeds(const planner::Plan& plan, const SimulateOptions& options,
                                int count, int threads);

Document to_document(const SeedDistribution& distribution);
std::string to_text(const SeedDistribution& distribution);

}  // namespace foresail::scenarios
