#include "shuffle.h"

#include <bit>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::runtime {
namespace {

constexpr std::uint64_t kRounds = 6;

std::uint64_t permute(std::uint64_t value, unsigned half_bits, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = left ^ (mix64(mix64(key + round) ^ right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits | right;
}

}  // namespace

std::int64_t shuffled_place(std::int64_t place, std::int64_t count, std::uint64_t key) {
  FORESAIL_EXPECT(place >= 0);
  FORESAIL_EXPECT(place < count);
  if (count == 1) return 0;
  const auto size = static_cast<std::uint64_t>(count);
  const auto half_bits = static_cast<unsigned>((std::bit_width(size - 1) + 1) / 2);
  auto value = static_cast<std::uint64_t>(place);
  do {
    value = permute(value, half_bits, key);
  } while (value >= size);
  return static_cast<std::int64_t>(value);
}

}  // namespace foresail::runtime
