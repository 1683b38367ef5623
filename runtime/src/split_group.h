/// \file
/// Groups made by colour, for networks that connect them anew.
#pragma once

#include "foresail/runtime/communicator.h"

namespace foresail::runtime {

/// This rank's group among the members of `all`: those of equal `color`, ordered by (key, rank).
/// Collective over `all`; `number` tells its splits apart.
Endpoint::Group split_group(Communicator& all, int color, int key, int number);

}  // namespace foresail::runtime
