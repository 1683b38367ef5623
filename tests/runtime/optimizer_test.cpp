#include "optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parameters.h"

namespace foresail::runtime {
namespace {

TEST(Adam, FirstStepMovesByTheLearningRateAgainstTheSign) {
  // Bias correction makes the first step rate * g / (|g| + epsilon).
  at::Tensor values = at::zeros({2});
  Optimizer adam({}, values, {});
  adam.step(at::tensor({0.25f, -4.0f}), 1.0, 0.5);
  EXPECT_NEAR(values[0].item<float>(), -0.5, 1e-6);
  EXPECT_NEAR(values[1].item<float>(), 0.5, 1e-6);
}

TEST(Adam, FollowsTheFormulaOverSteps) {
  at::Tensor values = at::full({1}, 1.0);
  Optimizer adam({}, values, {});
  double value = 1, mean = 0, square = 0;
  for (int step = 1; step <= 5; ++step) {
    const double grad = 0.3 * step;
    mean = 0.9 * mean + 0.1 * grad;
    square = 0.95 * square + 0.05 * grad * grad;
    value -= 0.01 * mean / (1 - std::pow(0.9, step)) /
             (std::sqrt(square / (1 - std::pow(0.95, step))) + 1e-8);
    adam.step(at::full({1}, 2 * grad), 0.5, 0.01);
  }
  EXPECT_NEAR(values.item<float>(), value, 1e-6);
}

TEST(AdamW, DecaysMatricesAlone) {
  // Without a gradient only the decay moves: value * (1 - 0.5 * 0.1).
  at::Tensor values = at::full({4}, 2.0);
  Optimizer adam({.kind = program::Optimizer::AdamW, .weight_decay = 0.1}, values, {{1, 2}});
  adam.step(at::zeros({4}), 1.0, 0.5);
  EXPECT_TRUE(at::allclose(values, at::tensor({2.0f, 1.9f, 1.9f, 2.0f})));
}

TEST(Lamb, MovesAMatrixByTheRateTimesItsNorm) {
  // Elements 0 and 1 are a matrix of norm 5; the first direction of Adam is the sign.
  at::Tensor values = at::tensor({3.0f, 4.0f, 3.0f});
  Optimizer lamb({.kind = program::Optimizer::Lamb}, values, {{0, 2}});
  at::Tensor grads = at::tensor({0.5f, -2.0f, 1.0f});
  lamb.make_updates(grads, 1.0);
  const auto [value, update] = lamb.squared_norms(0, grads);
  const Optimizer::Norms norms{value.item<double>(), update.item<double>()};
  EXPECT_NEAR(norms.value, 25, 1e-5);
  EXPECT_NEAR(norms.update, 2, 1e-5);
  lamb.apply(grads, {norms}, 0.01);
  const double moved = 0.01 * 5 / std::sqrt(2.0);
  EXPECT_NEAR(values[0].item<float>(), 3 - moved, 1e-5);
  EXPECT_NEAR(values[1].item<float>(), 4 + moved, 1e-5);
  EXPECT_NEAR(values[2].item<float>(), 3 - 0.01, 1e-5);  // no matrix: by the rate alone
}

TEST(Lamb, AddsTheDecayToTheUpdateOfAMatrix) {
  at::Tensor values = at::tensor({2.0f, 2.0f});
  Optimizer lamb({.kind = program::Optimizer::Lamb, .weight_decay = 0.25}, values, {{0, 1}});
  at::Tensor grads = at::tensor({1.0f, 1.0f});
  lamb.make_updates(grads, 1.0);
  EXPECT_NEAR(grads[0].item<float>(), 1 + 0.25 * 2, 1e-5);
  EXPECT_NEAR(grads[1].item<float>(), 1, 1e-5);
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
  Bucket bucket(10, 4, DType::Fp32);
  EXPECT_EQ(bucket.padded(), 12);
  const auto first = bucket.take("a", Spread::Sharded, {2, 3});
  const auto second = bucket.take("b", Spread::Replicated, {4});
  EXPECT_TRUE(bucket.is_full());
  second->value.fill_(5);
  // Elements 6 to 9 of the flat buffer; the third shard holds 6, 7, 8.
  EXPECT_TRUE(at::equal(bucket.shard_of(bucket.values(), 2), at::full({3}, 5.0)));
  EXPECT_EQ(first->value.sum().item<float>(), 0);
}

TEST(Bucket, In16BitsIsFilledThroughFp32Masters) {
  Bucket bucket(4, 1, DType::Bf16);
  const auto parameter = bucket.take("a.weight", Spread::Sharded, {4});
  EXPECT_EQ(parameter->value.scalar_type(), at::kBFloat16);
  EXPECT_EQ(parameter->grad.scalar_type(), at::kFloat);
  parameter->master.fill_(1.001);  // bf16 has 1 and 1.0078125
  EXPECT_TRUE(at::equal(bucket.masters(), at::full({4}, 1.001)));
  bucket.drop_masters();
  EXPECT_FALSE(bucket.masters().defined());
  EXPECT_FALSE(parameter->master.defined());
  bucket.make_masters();
  EXPECT_TRUE(parameter->master.is_alias_of(bucket.masters()));
}

TEST(Parameter, BiasesAndNormsAreNoMatrices) {
  Bucket bucket(40, 1, DType::Fp32);
  const auto is_matrix = [&](const std::string& name) {
    return bucket.take(name, Spread::Sharded, {2})->is_matrix();
  };
  for (const char* name : {"words.weight", "layers.0.qkv.weight", "layers.1.experts.fc1.weight"}) {
    EXPECT_TRUE(is_matrix(name)) << name;
  }
  for (const char* name : {"layers.0.qkv.bias", "layers.0.norm1.weight", "final_norm.weight",
                           "layers.1.experts.fc2.bias"}) {
    EXPECT_FALSE(is_matrix(name)) << name;
  }
}

}  // namespace
}  // namespace foresail::runtime
