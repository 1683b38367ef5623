#include "foresail/program/training.h"

#include <gtest/gtest.h>

namespace foresail::program {
namespace {

/// 10 steps of warm-up to 1, then down to 0.2 at step 110.
Training decaying(LearningRateDecay decay) {
  Training training;
  training.learning_rate = 1;
  training.learning_rate_min = 0.2;
  training.learning_rate_decay = decay;
  training.warmup_steps = 10;
  training.decay_steps = 110;
  return training;
}

TEST(LearningRate, IsConstantUnlessSaidOtherwise) {
  Training training;
  training.learning_rate = 0.5;
  for (const int step : {0, 1, 1000}) EXPECT_EQ(learning_rate_at(training, step), 0.5);
}

TEST(LearningRate, WarmsUpInALineFromZero) {
  for (const LearningRateDecay decay :
       {LearningRateDecay::Constant, LearningRateDecay::Linear, LearningRateDecay::Cosine}) {
    const Training training = decaying(decay);
    EXPECT_EQ(learning_rate_at(training, 0), 0);
    EXPECT_DOUBLE_EQ(learning_rate_at(training, 3), 0.3);
    EXPECT_DOUBLE_EQ(learning_rate_at(training, 10), 1);
  }
  EXPECT_EQ(learning_rate_at(decaying(LearningRateDecay::Constant), 500), 1);
}

TEST(LearningRate, FallsInALineOrACosineToItsMinimum) {
  // A quarter, half and three quarters of the way from step 10 to step 110.
  const Training linear = decaying(LearningRateDecay::Linear);
  EXPECT_NEAR(learning_rate_at(linear, 35), 0.2 + 0.8 * 0.75, 1e-12);
  EXPECT_NEAR(learning_rate_at(linear, 60), 0.2 + 0.8 * 0.5, 1e-12);
  EXPECT_NEAR(learning_rate_at(linear, 85), 0.2 + 0.8 * 0.25, 1e-12);
  // (cos(pi / 4) + 1) / 2 = 0.853553
  const Training cosine = decaying(LearningRateDecay::Cosine);
  EXPECT_NEAR(learning_rate_at(cosine, 35), 0.2 + 0.8 * 0.853553, 1e-6);
  EXPECT_NEAR(learning_rate_at(cosine, 60), 0.2 + 0.8 * 0.5, 1e-12);
  for (const Training& training : {linear, cosine}) {
    EXPECT_NEAR(learning_rate_at(training, 110), 0.2, 1e-12);
    EXPECT_EQ(learning_rate_at(training, 111), 0.2);
  }
}

}  // namespace
}  // namespace foresail::program
