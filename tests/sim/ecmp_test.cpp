#include "foresail/sim/ecmp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace foresail::sim {
namespace {

using topologies::Hash;

TEST(Ecmp, SourcePortFollowsTheKernelsRule) {
  // lqpn 0x11, rqpn 0x12: v = 306, no high bits: label 306 = 0x132, port 0xc000 | 0x132.
  EXPECT_EQ(roce_source_port(0x11, 0x12), 0xc132);
  EXPECT_EQ(roce_source_port(0x12, 0x11), 0xc132);  // commutative: both ways collide alike
  EXPECT_GE(roce_source_port(0xffffff, 0xabcdef), 49152);
}

TEST(Ecmp, CrcIsTheIeeePolynomial) {
  // CRC-32 of the 17 bytes: addresses 1 and 2, ports 3 and 4, protocol 17, seed 5 (computed with
  // zlib.crc32 over the same bytes: 1759629246), read from bit 5 on.
  const FiveTuple tuple{1, 2, 3, 4};
  EXPECT_EQ(hash_tuple(Hash::Crc, tuple, 5), 4081520253u);
}

TEST(Ecmp, EveryHashSpreadsPortsOverPaths) {
  for (const Hash kind : {Hash::Crc, Hash::Toeplitz, Hash::Xor}) {
    std::array<int, 16> load{};
    for (std::uint16_t port = 49152; port < 49152 + 1600; ++port) {
      ++load[hash_tuple(kind, {77, 1234, port}, 9) % load.size()];
    }
    EXPECT_GT(*std::ranges::min_element(load), 50) << to_string(kind);  // 100 on average
    EXPECT_LT(*std::ranges::max_element(load), 200) << to_string(kind);
  }
}

// Flows that a switch sent the same way, at the next switch of 16 ways: how many ways do they take?
int ways_after_meeting(Hash kind, std::uint32_t seed, std::uint32_t next_seed) {
  std::array<bool, 16> taken{};
  for (std::uint16_t port = 49152; port < 52000; ++port) {
    const FiveTuple tuple{3, 9, port};
    if (hash_tuple(kind, tuple, seed) % 16 != 5) continue;
    taken[hash_tuple(kind, tuple, next_seed) % 16] = true;
  }
  return static_cast<int>(std::ranges::count(taken, true));
}

TEST(Ecmp, EqualSeedsPolariseAndOthersDoNot) {
  for (const Hash kind : {Hash::Crc, Hash::Toeplitz}) {
    EXPECT_EQ(ways_after_meeting(kind, 7, 7), 1) << to_string(kind);
    EXPECT_EQ(ways_after_meeting(kind, 7, 16), 16) << to_string(kind);  // 9 bits apart
  }
  EXPECT_EQ(ways_after_meeting(Hash::Xor, 7, 8), 1);
}

TEST(Ecmp, AnotherSeedChoosesOtherPaths) {
  int same = 0;
  for (std::uint16_t port = 50000; port < 50400; ++port) {
    const FiveTuple tuple{3, 9, port};
    same += hash_tuple(Hash::Crc, tuple, 1) % 16 == hash_tuple(Hash::Crc, tuple, 2) % 16 ? 1 : 0;
  }
  EXPECT_LT(same, 80);  // 25 expected of 400
}

}  // namespace
}  // namespace foresail::sim
