/// \file
/// How far predictions of training steps were off where the fit had not seen the case, and the
/// intervals that follow. Written by scripts/fit_devices into scenarios/catalogue/spread.yaml.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/units.h"
#include "foresail/planner/plan.h"
#include "foresail/report/result.h"
#include "foresail/scenarios/fit.h"
#include "foresail/scenarios/rows.h"

namespace foresail::scenarios {

/// What a fit has seen of a case.
enum class Novelty {
  Configuration,  ///< device, software and fabric are known, this layout or model is not
  Source,         ///< the software or the fabric is new too
  Device          ///< nothing was ever fitted on the device
};

/// Quantiles of |log(predicted / published)|; every source counts as much as any other, and within
/// it every configuration.
struct SpreadLevel {
  double half_50 = 0, half_90 = 0;
  int rows = 0, configurations = 0;
};

struct Spread {
  SpreadLevel configuration, source, device;
  std::vector<std::string> devices;   ///< fitted ones
  std::vector<std::string> stacks;    ///< "a100_80 megatron_lm_2021": fitted rows exist
  std::vector<std::string> clusters;  ///< templates whose rows were fitted

  const SpreadLevel& level(Novelty novelty) const;
};

/// The level of residuals (half_50, half_90: the 50th and 90th percentile).
SpreadLevel spread_level(const std::vector<LeftOut>& rows);

/// What of the errors of unseen sources is common to a source, and what is a configuration's own:
/// standard deviations of the logarithm (means over rows of a configuration, then of a source).
struct SpreadParts {
  double between_sources = 0, within_source = 0;
};
SpreadParts spread_parts(const std::vector<LeftOut>& rows);

/// Reads scenarios/catalogue/spread.yaml from the data folders. Throws Error.
Spread load_spread();
Document to_document(const Spread& spread);

/// `stack`: name of a description in stacks.yaml; empty if the software is none of them.
Novelty novelty_of(const planner::Plan& plan, const std::string& stack, const Spread& spread);
/// The description whose switches equal the Plan's stack and layout habits; empty if none does.
std::string known_stack(const planner::Plan& plan, const std::vector<StackDescription>& stacks);

struct StepIntervals {
  report::Interval half, ninety;  ///< 50 % and 90 %
  Novelty novelty = Novelty::Device;
};
/// `time` divided and multiplied by exp(half width).
StepIntervals intervals(Duration time, Novelty novelty, const Spread& spread);

}  // namespace foresail::scenarios

namespace foresail {
template <>
inline constexpr auto kNames<scenarios::Novelty> =
    std::to_array<Named<scenarios::Novelty>>({{scenarios::Novelty::Configuration, "configuration"},
                                              {scenarios::Novelty::Source, "source"},
                                              {scenarios::Novelty::Device, "device"}});
}
