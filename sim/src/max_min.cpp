#include "foresail/sim/max_min.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "foresail/base/error.h"

namespace foresail::sim {

std::vector<double> solve_max_min(const MaxMinSystem& system) {
  const std::size_t variables = system.variables.size();
  FORESAIL_EXPECT(system.share.empty() || system.share.size() == variables);
  FORESAIL_EXPECT(system.cap.empty() || system.cap.size() == variables);
  std::vector<double> residual = system.capacity;
  std::vector<std::vector<MaxMinEntry>> entries = system.variables;
  for (std::uint32_t v = 0; v < variables; ++v) {
    FORESAIL_EXPECT(!entries[v].empty());
    if (!system.cap.empty()) {  // a constraint of its own
      entries[v].push_back({static_cast<std::uint32_t>(residual.size()), 1});
      residual.push_back(system.cap[v]);
    }
    for (MaxMinEntry& entry : entries[v]) {
      FORESAIL_EXPECT(entry.weight > 0);
      if (!system.share.empty()) entry.weight *= system.share[v];
    }
  }
  const std::size_t constraints = residual.size();
  std::vector<double> weight(constraints, 0.0);
  std::vector<std::vector<std::uint32_t>> users(constraints);
  for (std::uint32_t v = 0; v < variables; ++v) {
    for (const MaxMinEntry& entry : entries[v]) {
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
  std::vector<double> rate(variables, -1.0);
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
      for (const MaxMinEntry& entry : entries[v]) {
        residual[entry.constraint] -= entry.weight * now;
        weight[entry.constraint] -= entry.weight;
        --left[entry.constraint];
      }
    }
  }
  for (std::uint32_t v = 0; v < system.share.size(); ++v) rate[v] *= system.share[v];
  return rate;
}

}  // namespace foresail::sim
