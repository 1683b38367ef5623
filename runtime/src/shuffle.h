/// \file
/// A permutation that needs no table.
#pragma once

#include <cstdint>

namespace foresail::runtime {

/// Where the permutation of 0 ... count - 1 that `key` names puts `place`: a Feistel network of six
/// rounds over the next power of four, walked along its cycle until it is below `count` (Black and
/// Rogaway 2002). Constant memory, some ten mixes a call. Requires 0 <= place < count.
std::int64_t shuffled_place(std::int64_t place, std::int64_t count, std::uint64_t key);

}  // namespace foresail::runtime
