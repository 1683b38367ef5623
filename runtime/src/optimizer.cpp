#include "optimizer.h"

#include <algorithm>
#include <cmath>

#include "foresail/base/error.h"

namespace foresail::runtime {

Adam::Adam(const AdamOptions& options, at::Tensor values)
    : options_(options),
      values_(std::move(values)),
      mean_(at::zeros_like(values_)),
      square_(at::zeros_like(values_)) {
  FORESAIL_EXPECT(values_.is_contiguous());
}

void Adam::step(const at::Tensor& grads, double scale) {
  FORESAIL_EXPECT(grads.is_contiguous());
  FORESAIL_EXPECT(grads.numel() == values_.numel());
  ++steps_;
  const auto beta1 = static_cast<float>(options_.beta1);
  const auto beta2 = static_cast<float>(options_.beta2);
  const auto rate =
      static_cast<float>(options_.learning_rate / (1 - std::pow(options_.beta1, steps_)));
  const auto correction = static_cast<float>(1 / (1 - std::pow(options_.beta2, steps_)));
  const auto epsilon = static_cast<float>(options_.epsilon);
  const auto factor = static_cast<float>(scale);
  const float* grad = grads.data_ptr<float>();
  float* value = values_.data_ptr<float>();
  float* mean = mean_.data_ptr<float>();
  float* square = square_.data_ptr<float>();
  for (std::int64_t i = 0; i < values_.numel(); ++i) {
    const float g = grad[i] * factor;
    mean[i] = beta1 * mean[i] + (1 - beta1) * g;
    square[i] = beta2 * square[i] + (1 - beta2) * g * g;
    value[i] -= rate * mean[i] / (std::sqrt(square[i] * correction) + epsilon);
  }
}

double clip_scale(double clip, double norm) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

}  // namespace foresail::runtime
