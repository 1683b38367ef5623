/// \file
/// What the tiers of a fabric add up to, for the summary.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// Ports by bandwidth, fastest first.
using Ports = std::map<Bandwidth, int, std::greater<>>;

/// The switches of one tier. Downwards are NICs and lower tiers, across are switches of the tier.
struct Tier {
  std::string name;  ///< "leaf", "spine", "core", "tier 4", or "router" where there are no tiers
  int switches = 0;
  /// Of the switch that has the most in this direction.
  Ports ports_down, ports_up, ports_across;
  /// Of all switches together.
  Bandwidth down, up, across;
};

std::vector<Tier> tiers_of(const Cluster& cluster);

int count(const Ports& ports);
Bandwidth sum(const Ports& ports);

/// Bandwidth below a full switch over that above it; 0 at the top and where there are no tiers.
double oversubscription(const Tier& tier);

}  // namespace foresail::topologies
