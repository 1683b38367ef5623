#include "optimizer.h"

#include <algorithm>
#include <cmath>

#include "foresail/base/error.h"

namespace foresail::runtime {

Optimizer::Optimizer(const OptimizerOptions& options, at::Tensor values,
                     std::vector<MatrixPart> matrices)
    : options_(options),
      values_(std::move(values)),
      mean_(at::zeros_like(values_)),
      square_(at::zeros_like(values_)),
      matrices_(std::move(matrices)) {
  FORESAIL_EXPECT(values_.is_contiguous());
  FORESAIL_EXPECT(values_.scalar_type() == at::kFloat);
}

template <class Visit>
void Optimizer::for_each_part(const Visit& visit) const {
  std::int64_t next = 0;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const MatrixPart& part = matrices_[i];
    FORESAIL_EXPECT(part.first >= next);
    visit(next, part.first - next, -1);
    visit(part.first, part.count, static_cast<int>(i));
    next = part.first + part.count;
  }
  visit(next, values_.numel() - next, -1);
}

template <class Use>
void Optimizer::for_each_direction(const at::Tensor& grads, double scale, const Use& use) {
  FORESAIL_EXPECT(grads.is_contiguous());
  FORESAIL_EXPECT(grads.numel() == values_.numel());
  ++steps_;
  const auto beta1 = static_cast<float>(options_.beta1);
  const auto beta2 = static_cast<float>(options_.beta2);
  const auto correction1 = static_cast<float>(1 / (1 - std::pow(options_.beta1, steps_)));
  const auto correction2 = static_cast<float>(1 / (1 - std::pow(options_.beta2, steps_)));
  const auto epsilon = static_cast<float>(options_.epsilon);
  const auto factor = static_cast<float>(scale);
  const float* grad = grads.data_ptr<float>();
  float* mean = mean_.data_ptr<float>();
  float* square = square_.data_ptr<float>();
  for_each_part([&](std::int64_t first, std::int64_t count, int matrix) {
    for (std::int64_t i = first; i < first + count; ++i) {
      const float g = grad[i] * factor;
      mean[i] = beta1 * mean[i] + (1 - beta1) * g;
      square[i] = beta2 * square[i] + (1 - beta2) * g * g;
      use(i, correction1 * mean[i] / (std::sqrt(square[i] * correction2) + epsilon), matrix);
    }
  });
}

void Optimizer::step(const at::Tensor& grads, double scale, double rate) {
  FORESAIL_EXPECT(options_.kind != program::Optimizer::Lamb);
  const auto factor = static_cast<float>(rate);
  const auto decay = static_cast<float>(rate * options_.weight_decay);
  float* value = values_.data_ptr<float>();
  for_each_direction(grads, scale, [&](std::int64_t i, float direction, int matrix) {
    value[i] -= factor * direction + (matrix < 0 ? 0 : decay * value[i]);
  });
}

void Optimizer::make_updates(at::Tensor& grads, double scale) {
  FORESAIL_EXPECT(options_.kind == program::Optimizer::Lamb);
  const auto decay = static_cast<float>(options_.weight_decay);
  const float* value = values_.data_ptr<float>();
  float* update = grads.data_ptr<float>();
  for_each_direction(grads, scale, [&](std::int64_t i, float direction, int matrix) {
    update[i] = direction + (matrix < 0 ? 0 : decay * value[i]);
  });
}

Optimizer::Norms Optimizer::squared_norms(std::size_t matrix, const at::Tensor& updates) const {
  const MatrixPart& part = matrices_.at(matrix);
  return {squared_norm(values_.narrow(0, part.first, part.count)),
          squared_norm(updates.narrow(0, part.first, part.count))};
}

void Optimizer::apply(const at::Tensor& updates, const std::vector<Norms>& norms, double rate) {
  FORESAIL_EXPECT(norms.size() == matrices_.size());
  const float* update = updates.data_ptr<float>();
  float* value = values_.data_ptr<float>();
  for_each_part([&](std::int64_t first, std::int64_t count, int matrix) {
    double ratio = 1;
    if (matrix >= 0) {
      const Norms& of = norms[static_cast<std::size_t>(matrix)];
      if (of.value > 0 && of.update > 0) ratio = std::sqrt(of.value / of.update);
    }
    const auto factor = static_cast<float>(rate * ratio);
    for (std::int64_t i = first; i < first + count; ++i) value[i] -= factor * update[i];
  });
}

double squared_norm(const at::Tensor& flat) {
  constexpr std::int64_t kBlock = 8192;
  double sum = 0;
  for (std::int64_t first = 0; first < flat.numel(); first += kBlock) {
    const at::Tensor block = flat.narrow(0, first, std::min(kBlock, flat.numel() - first));
    sum += at::dot(block, block).item<float>();
  }
  return sum;
}

double clip_scale(double clip, double norm) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

}  // namespace foresail::runtime
