#include "foresail/base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

#include "foresail/base/digest.h"

namespace foresail {
namespace {

TEST(Rng, NamedStreamsAreReproducibleAndDiffer) {
  EXPECT_EQ(Rng(7).stream("ecmp").next(), Rng(7).stream("ecmp").next());
  EXPECT_NE(Rng(7).stream("ecmp").next(), Rng(7).stream("jitter").next());
  EXPECT_NE(Rng(7).stream("ecmp").next(), Rng(8).stream("ecmp").next());
  EXPECT_NE(Rng(7).stream("ecmp", 0).next(), Rng(7).stream("ecmp", 1).next());
}

TEST(Rng, UniformAndNormalHaveTheirMoments) {
  RandomStream stream = Rng(1).stream("moments");
  double sum = 0;
  double square = 0;
  double uniform = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = stream.normal();
    sum += x;
    square += x * x;
    uniform += stream.uniform();
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.03);         // sigma of the mean 0.007
  EXPECT_NEAR(square / kDraws, 1, 0.04);      // sigma 0.01
  EXPECT_NEAR(uniform / kDraws, 0.5, 0.009);  // sigma 0.002
}

TEST(Rng, BelowStaysBelow) {
  RandomStream stream = Rng(3).stream("below");
  for (int i = 0; i < 1000; ++i) EXPECT_LT(stream.below(7), 7u);
}

TEST(Digest, IsSha256) {
  // FIPS 180-4 example "abc".
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace foresail
