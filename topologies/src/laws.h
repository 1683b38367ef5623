/// \file
/// The laws that a cluster must obey, and how large it is: pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// Switches of the fabric, and links of the whole cluster in both directions, as planned.
std::int64_t switch_count(const Cluster::Options& options);
std::int64_t link_count(const Cluster::Options& options);

/// The first law that the parts break, with every term in it; nothing if they fit together.
/// The wiring is checked where it is applied (wiring.h).
std::optional<std::string> broken_law(const Cluster::Options& options);

}  // namespace foresail::topologies
