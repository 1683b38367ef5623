#include "foresail/program/placement.h"

#include "foresail/base/error.h"

namespace foresail::program {

Placement Placement::identity(int ranks) {
  FORESAIL_EXPECT(ranks >= 0);
  Placement placement;
  const auto count = static_cast<std::uint32_t>(ranks);
  placement.device_of.reserve(count);
  for (std::uint32_t rank = 0; rank < count; ++rank) placement.device_of.push_back(DeviceId{rank});
  return placement;
}

}  // namespace foresail::program
