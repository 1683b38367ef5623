/// \file
/// What is plugged in otherwise than planned.
#pragma once

#include <optional>
#include <string>

#include "build.h"

namespace foresail::topologies {

struct WiringFault {
  std::size_t change = 0;  ///< which of the wiring
  std::string message;
};

/// Applies the changes in order; stops at the first that names what is not there. Links keep their
/// order; those of a removed cable are gone, those of an added one come last.
std::optional<WiringFault> apply_wiring(const Cluster::Options& options, const NodeShape& shape,
                                        GraphParts& parts);

/// What apply_wiring finds, for readers that know the line. Requires options that obey all laws.
std::optional<WiringFault> broken_wiring(const Cluster::Options& options);

}  // namespace foresail::topologies
