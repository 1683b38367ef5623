/// \file
/// Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as easy as 1, 2, 3"): random
/// numbers that are a function of a key and a counter, so that whoever knows where a number stands
/// can make it, in any order.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace foresail::runtime {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxCounter = std::array<std::uint32_t, 4>;

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::array<std::uint32_t, 2> kPhiloxMultipliers{0xD2511F53, 0xCD9E8D57};
/// The golden ratio and sqrt(3) - 1, added to the key from round to round.
inline constexpr PhiloxKey kPhiloxWeyl{0x9E3779B9, 0xBB67AE85};
/// Numbers of one counter.
inline constexpr std::int64_t kPhiloxNumbers = 4;

/// The four numbers of `counter`.
std::array<std::uint32_t, 4> philox(PhiloxCounter counter, PhiloxKey key);

/// flags[i] = whether number i % 4 of counter `first` + (i / 4, 0, 0, 0) is below `threshold`, for
/// as many as there are. The first word of no counter may overflow.
void philox_below(PhiloxCounter first, PhiloxKey key, std::uint32_t threshold,
                  std::span<std::uint8_t> flags);

}  // namespace foresail::runtime
