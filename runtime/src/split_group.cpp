#include "split_group.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

namespace foresail::runtime {

Endpoint::Group split_group(Communicator& all, int color, int key, int number) {
  const at::Tensor mine = at::tensor({std::int64_t{color}, std::int64_t{key}}, at::kLong);
  at::Tensor gathered = at::empty({2 * all.size()}, at::kLong);
  all.all_gather(mine, gathered);
  const auto* entries = gathered.data_ptr<std::int64_t>();
  Endpoint::Group group;
  group.size = 0;
  for (int other = 0; other < all.size(); ++other) {
    if (entries[2 * other] != color) continue;
    ++group.size;
    const std::pair<std::int64_t, int> place(entries[2 * other + 1], other);
    if (place < std::pair<std::int64_t, int>(key, all.rank())) ++group.rank;
  }
  group.name = all.name() + "/split" + std::to_string(number) + "." + std::to_string(color);
  return group;
}

}  // namespace foresail::runtime
