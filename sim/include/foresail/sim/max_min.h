/// \file
/// Weighted max-min fairness by progressive filling: pure mathematics on vectors, no links of a
/// cluster, no time. The reference for FluidNetwork's incremental solver, and the solver of small
/// systems.
///
/// Every variable x_v loads constraint l with a_lv x_v (a ring is one variable that loads each link
/// as often as it crosses it). An allocation is max-min fair when every variable is at its cap or
/// has a saturated constraint on which no other variable has more in proportion to its share.
#pragma once

#include <cstdint>
#include <vector>

namespace foresail::sim {

struct MaxMinEntry {
  std::uint32_t constraint = 0;
  double weight = 1;  ///< a_lv > 0
};

struct MaxMinSystem {
  std::vector<double> capacity;                     ///< per constraint, >= 0
  std::vector<std::vector<MaxMinEntry>> variables;  ///< entries of each variable, not empty
  std::vector<double> share = {};                   ///< per variable, > 0; empty: all 1
  std::vector<double> cap = {};                     ///< per variable, > 0; empty: none
};

/// The one max-min fair allocation, by a heap over constraint levels: O(E log E), E entries.
std::vector<double> solve_max_min(const MaxMinSystem& system);

}  // namespace foresail::sim
