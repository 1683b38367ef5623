#include "foresail/base/rng.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "foresail/base/error.h"

namespace foresail {

RandomStream::RandomStream(std::uint64_t seed) {
  std::uint64_t x = seed;
  for (std::uint64_t& word : state_) {
    word = mix64(x);
    x += 0x9e3779b97f4a7c15ULL;
  }
}

std::uint64_t RandomStream::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17u;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double RandomStream::uniform() {
  return static_cast<double>(next() >> 11u) * 0x1.0p-53;
}

std::uint64_t RandomStream::below(std::uint64_t bound) {
  FORESAIL_EXPECT(bound > 0);
  const std::uint64_t rejected = (0 - bound) % bound;  // 2^64 mod bound
  for (;;) {
    const std::uint64_t value = next();
    if (value >= rejected) return value % bound;
  }
}

double RandomStream::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

RandomStream Rng::stream(std::string_view name, std::uint64_t index) const {
  std::uint64_t key = mix64(seed_);
  for (const char c : name) key = mix64(key ^ static_cast<unsigned char>(c));
  return RandomStream(mix64(key ^ mix64(index)));
}

}  // namespace foresail
