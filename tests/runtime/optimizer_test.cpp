#include "optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parameters.h"

namespace foresail::runtime {
namespace {

TEST(Adam, FirstStepMovesByTheLearningRateAgainstTheSign) {
  // Bias correction makes the first step rate * g / (|g| + epsilon).
  at::Tensor values = at::zeros({2});
  Adam adam({.learning_rate = 0.5}, values);
  adam.step(at::tensor({0.25f, -4.0f}), 1.0);
  EXPECT_NEAR(values[0].item<float>(), -0.5, 1e-6);
  EXPECT_NEAR(values[1].item<float>(), 0.5, 1e-6);
}

TEST(Adam, FollowsTheFormulaOverSteps) {
  at::Tensor values = at::full({1}, 1.0);
  Adam adam({.learning_rate = 0.01}, values);
  double value = 1, mean = 0, square = 0;
  for (int step = 1; step <= 5; ++step) {
    const double grad = 0.3 * step;
    mean = 0.9 * mean + 0.1 * grad;
    square = 0.95 * square + 0.05 * grad * grad;
    value -= 0.01 * mean / (1 - std::pow(0.9, step)) /
             (std::sqrt(square / (1 - std::pow(0.95, step))) + 1e-8);
    adam.step(at::full({1}, 2 * grad), 0.5);
  }
  EXPECT_NEAR(values.item<float>(), value, 1e-6);
}

TEST(ClipScale, LimitsTheNormAndIsOffAtZero) {
  EXPECT_DOUBLE_EQ(clip_scale(1.0, 0.5), 1.0);
  EXPECT_NEAR(clip_scale(1.0, 4.0), 0.25, 1e-6);
  EXPECT_DOUBLE_EQ(clip_scale(0.0, 1e9), 1.0);
}

TEST(FillNormal, ShardsAreBlocksOfOneGlobalMatrix) {
  at::Tensor whole = at::empty({6, 4});
  fill_normal(whole, "w",
              {.first_row = 0, .rows = 6, .first_column = 0, .columns = 4, .total_columns = 4}, 9,
              0.02);
  at::Tensor rows = at::empty({2, 4});
  fill_normal(rows, "w",
              {.first_row = 2, .rows = 2, .first_column = 0, .columns = 4, .total_columns = 4}, 9,
              0.02);
  EXPECT_TRUE(at::equal(rows, whole.narrow(0, 2, 2)));
  at::Tensor columns = at::empty({6, 2});
  fill_normal(columns, "w",
              {.first_row = 0, .rows = 6, .first_column = 2, .columns = 2, .total_columns = 4}, 9,
              0.02);
  EXPECT_TRUE(at::equal(columns, whole.narrow(1, 2, 2)));
  at::Tensor other = at::empty({6, 4});
  fill_normal(other, "v",
              {.first_row = 0, .rows = 6, .first_column = 0, .columns = 4, .total_columns = 4}, 9,
              0.02);
  EXPECT_FALSE(at::equal(other, whole));
}

TEST(Bucket, IsPaddedToAMultipleOfItsShards) {
  Bucket bucket(10, 4);
  EXPECT_EQ(bucket.padded(), 12);
  const auto first = bucket.take("a", Spread::Sharded, {2, 3});
  const auto second = bucket.take("b", Spread::Replicated, {4});
  EXPECT_TRUE(bucket.is_full());
  second->value.fill_(5);
  // Elements 6 to 9 of the flat buffer; the third shard holds 6, 7, 8.
  EXPECT_TRUE(at::equal(bucket.shard_of(bucket.values(), 2), at::full({3}, 5.0)));
  EXPECT_EQ(first->value.sum().item<float>(), 0);
}

}  // namespace
}  // namespace foresail::runtime
