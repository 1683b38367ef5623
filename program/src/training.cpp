#include "foresail/program/training.h"

#include <cmath>
#include <numbers>

#include "foresail/base/error.h"

namespace foresail::program {

double learning_rate_at(const Training& training, int step) {
  FORESAIL_EXPECT(step >= 0);
  const double highest = training.learning_rate;
  if (training.warmup_steps > 0 && step <= training.warmup_steps) {
    return highest * step / training.warmup_steps;
  }
  if (training.learning_rate_decay == LearningRateDecay::Constant) return highest;
  const double lowest = training.learning_rate_min;
  if (step > training.decay_steps) return lowest;
  const double done = static_cast<double>(step - training.warmup_steps) /
                      (training.decay_steps - training.warmup_steps);
  const double left = training.learning_rate_decay == LearningRateDecay::Linear
                          ? 1 - done
                          : 0.5 * (std::cos(std::numbers::pi * done) + 1);
  return lowest + left * (highest - lowest);
}

}  // namespace foresail::program
