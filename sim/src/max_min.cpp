#include "foresail/sim/max_min.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "foresail/base/error.h"

namespace foresail::sim {

std::vector<double> solve_max_min(const MaxMinSystem& system) {
  const std::size_t constraints = system.capacity.size();
  std::vector<double> residual = system.capacity;
  std::vector<double> weight(constraints, 0.0);
  std::vector<std::vector<std::uint32_t>> users(constraints);
  for (std::uint32_t v = 0; v < system.variables.size(); ++v) {
    FORESAIL_EXPECT(!system.variables[v].empty());
    for (const MaxMinEntry& entry : system.variables[v]) {
      FORESAIL_EXPECT(entry.weight > 0);
      weight[entry.constraint] += entry.weight;
      users[entry.constraint].push_back(v);
    }
  }
  struct Level {
    double value;
    std::uint32_t constraint;
    bool operator>(const Level& other) const {
      return value != other.value ? value > other.value : constraint > other.constraint;
    }
  };
  std::priority_queue<Level, std::vector<Level>, std::greater<>> levels;
  std::vector<std::uint32_t> left(constraints, 0);
  for (std::uint32_t l = 0; l < constraints; ++l) {
    left[l] = static_cast<std::uint32_t>(users[l].size());
    if (left[l] > 0) levels.push({residual[l] / weight[l], l});
  }
  std::vector<double> rate(system.variables.size(), -1.0);
  const auto level_of = [&](std::uint32_t l) { return std::max(0.0, residual[l]) / weight[l]; };
  while (!levels.empty()) {
    const Level lowest = levels.top();
    levels.pop();
    const std::uint32_t l = lowest.constraint;
    if (left[l] == 0) continue;
    const double now = level_of(l);
    if (now > lowest.value) {  // keys only grow: refresh and look again
      levels.push({now, l});
      continue;
    }
    for (const std::uint32_t v : users[l]) {
      if (rate[v] >= 0) continue;
      rate[v] = now;
      for (const MaxMinEntry& entry : system.variables[v]) {
        residual[entry.constraint] -= entry.weight * now;
        weight[entry.constraint] -= entry.weight;
        --left[entry.constraint];
      }
    }
  }
  return rate;
}

}  // namespace foresail::sim
