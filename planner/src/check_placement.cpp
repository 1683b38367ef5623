#include "check_placement.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

namespace foresail::planner {

std::vector<BrokenLaw> check_placement(const program::Placement& placement, int ranks,
                                       int devices) {
  if (std::cmp_not_equal(placement.device_of.size(), ranks)) {
    return {{"placement_size", fmt::format("the placement has {} ranks, must have {}",
                                           placement.device_of.size(), ranks)}};
  }
  std::vector<int> rank_on(static_cast<std::size_t>(devices), -1);
  int rank = 0;
  for (const DeviceId device : placement.device_of) {
    if (std::cmp_greater_equal(device.value, devices)) {
      return {{"placement_device",
               fmt::format("rank {} is placed on device {}, but the cluster has {} devices", rank,
                           device.value, devices)}};
    }
    int& other = rank_on[device.value];
    if (other >= 0) {
      return {{"placement_once", fmt::format("ranks {} and {} are both placed on device {}", other,
                                             rank, device.value)}};
    }
    other = rank++;
  }
  return {};
}

}  // namespace foresail::planner
