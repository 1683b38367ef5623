#include "philox.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "foresail/base/error.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define FORESAIL_HAS_AVX2_PATH 1
#include <immintrin.h>
#endif

namespace foresail::runtime {
namespace {

/// Counters whose flags are made at once: 32 flags.
constexpr std::size_t kBatch = 8;
constexpr std::size_t kBatchFlags = kBatch * static_cast<std::size_t>(kPhiloxNumbers);
/// The flags of one counter, the first in the lowest byte.
using Flags = std::array<std::uint32_t, kBatch>;
static_assert(std::endian::native == std::endian::little);

PhiloxKey next(PhiloxKey key) {
  return {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
}

Flags scalar_flags(PhiloxCounter first, PhiloxKey key, std::uint32_t threshold) {
  Flags flags{};
  for (std::uint32_t& four : flags) {
    const std::array<std::uint32_t, 4> numbers = philox(first, key);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      four |= static_cast<std::uint32_t>(numbers[i] < threshold) << (8 * i);
    }
    ++first[0];
  }
  return flags;
}

#ifdef FORESAIL_HAS_AVX2_PATH

#define FORESAIL_AVX2 __attribute__((target("avx2"), always_inline)) inline

/// Four counters, word by word, each in the lower half of a lane of 64 bits. What stands in the
/// upper halves is never read.
struct Lanes {
  __m256i a, b, c, d;
};

FORESAIL_AVX2 void do_round(Lanes& lanes, __m256i key0, __m256i key1) {
  const __m256i p = _mm256_mul_epu32(lanes.a, _mm256_set1_epi64x(kPhiloxMultipliers[0]));
  const __m256i q = _mm256_mul_epu32(lanes.c, _mm256_set1_epi64x(kPhiloxMultipliers[1]));
  lanes.a = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(q, 32), lanes.b), key0);
  lanes.c = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p, 32), lanes.d), key1);
  lanes.b = q;
  lanes.d = p;
}

FORESAIL_AVX2 __m256i flag_of(__m256i numbers, __m256i threshold, int byte) {
  const __m256i low = _mm256_and_si256(numbers, _mm256_set1_epi64x(0xFFFFFFFF));
  return _mm256_and_si256(_mm256_cmpgt_epi64(threshold, low),
                          _mm256_set1_epi64x(std::int64_t{1} << (8 * byte)));
}

FORESAIL_AVX2 __m128i flags_of(const Lanes& lanes, __m256i threshold) {
  const __m256i flags = _mm256_or_si256(
      _mm256_or_si256(flag_of(lanes.a, threshold, 0), flag_of(lanes.b, threshold, 1)),
      _mm256_or_si256(flag_of(lanes.c, threshold, 2), flag_of(lanes.d, threshold, 3)));
  const __m256i lower_halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(flags, lower_halves));
}

__attribute__((target("avx2"))) Flags vector_flags(PhiloxCounter first, PhiloxKey key,
                                                   std::uint32_t threshold) {
  Lanes x{_mm256_add_epi64(_mm256_set1_epi64x(first[0]), _mm256_setr_epi64x(0, 1, 2, 3)),
          _mm256_set1_epi64x(first[1]), _mm256_set1_epi64x(first[2]), _mm256_set1_epi64x(first[3])};
  Lanes y = x;
  y.a = _mm256_add_epi64(y.a, _mm256_set1_epi64x(4));
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(key[0]);
    const __m256i key1 = _mm256_set1_epi64x(key[1]);
    do_round(x, key0, key1);
    do_round(y, key0, key1);
    key = next(key);
  }
  const __m256i limit = _mm256_set1_epi64x(threshold);
  Flags flags{};
  const __m128i halves[2] = {flags_of(x, limit), flags_of(y, limit)};
  static_assert(sizeof(halves) == sizeof(Flags));
  std::memcpy(flags.data(), halves, sizeof(halves));
  return flags;
}

using MakeFlags = Flags (*)(PhiloxCounter, PhiloxKey, std::uint32_t);

MakeFlags fastest() {
  static const MakeFlags kFastest = __builtin_cpu_supports("avx2") ? vector_flags : scalar_flags;
  return kFastest;
}

#else

constexpr auto fastest() {
  return scalar_flags;
}

#endif

}  // namespace

std::array<std::uint32_t, 4> philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p = std::uint64_t{kPhiloxMultipliers[0]} * counter[0];
    const std::uint64_t q = std::uint64_t{kPhiloxMultipliers[1]} * counter[2];
    counter = {
        static_cast<std::uint32_t>(q >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(q),
        static_cast<std::uint32_t>(p >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p)};
    key = next(key);
  }
  return counter;
}

void philox_below(PhiloxCounter first, PhiloxKey key, std::uint32_t threshold,
                  std::span<std::uint8_t> flags) {
  const auto make_flags = fastest();
  const std::size_t counters = (flags.size() + kPhiloxNumbers - 1) / kPhiloxNumbers;
  FORESAIL_EXPECT(counters <= 0xFFFFFFFF - std::size_t{first[0]});
  for (std::size_t done = 0; done < flags.size(); done += kBatchFlags) {
    const Flags made = make_flags(first, key, threshold);
    std::memcpy(flags.data() + done, made.data(), std::min(kBatchFlags, flags.size() - done));
    first[0] += kBatch;
  }
}

}  // namespace foresail::runtime
