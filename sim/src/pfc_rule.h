/// \file
/// Sharing pfc: what rates the ingress-fair fixed point gives the flows of a network.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "foresail/sim/fluid_network.h"
#include "foresail/sim/paths.h"
#include "foresail/sim/pfc.h"

namespace foresail::sim {

/// A ring or tree is one flow of many legs. Links within a node and resources are treated as those
/// of the fabric: NVLink and PCIe hold back what the next buffer has no room for, too.
class PfcRule final : public RateRule {
 public:
  /// Both must outlive the rule.
  PfcRule(const Paths& paths, const FluidNetwork& fluid);

  /// Throws Error{InvalidInput} if the ways of the routes so far can deadlock.
  std::span<const Answer> rates(std::span<const Flow> flows) override;

 private:
  static constexpr std::uint32_t kUnknown = ~0u;

  void learn(RouteId route);
  void read_capacities(std::span<const Flow> flows);
  [[noreturn]] void refuse(std::span<const std::uint32_t> cycle) const;

  const Paths& paths_;
  const FluidNetwork& fluid_;
  IngressFairRates rates_;
  std::vector<std::uint32_t> flow_of_;  // by route
  std::vector<PfcDemand> demands_;
  std::vector<Answer> answers_;
};

}  // namespace foresail::sim
