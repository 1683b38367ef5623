/// \file
/// The only source of randomness: named streams of one seed. The standard library's
/// distributions differ between vendors, so the distributions are our own.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace foresail {

/// One reproducible stream (xoshiro256**, Blackman and Vigna 2018, seeded by splitmix64).
class RandomStream {
 public:
  explicit RandomStream(std::uint64_t seed);
  std::uint64_t next();
  /// Uniform in [0, 1), 53 bits.
  double uniform();
  /// Uniform in [0, bound), unbiased. Requires bound > 0.
  std::uint64_t below(std::uint64_t bound);
  /// Standard normal (Box-Muller).
  double normal();

 private:
  std::array<std::uint64_t, 4> state_{};
};

/// `Rng(7).stream("ecmp")` and `Rng(7).stream("jitter", 12)` are independent and never change.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : seed_(seed) {}
  RandomStream stream(std::string_view name, std::uint64_t index = 0) const;

 private:
  std::uint64_t seed_;
};

/// The finalizer of splitmix64: a good 64-bit mix for keys.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace foresail
