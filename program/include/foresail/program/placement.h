/// \file
/// Rank -> device.
#pragma once

#include <vector>

#include "foresail/base/id.h"

namespace foresail::program {

/// device_of[rank]. The default is the identity: rank r on device r (devices are numbered node by
/// node).
struct Placement {
  IdVector<RankId, DeviceId> device_of;
  static Placement identity(int ranks);
};

}  // namespace foresail::program
