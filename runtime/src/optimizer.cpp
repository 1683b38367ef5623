#include "optimizer.h"

#include <algorithm>
#include <cmath>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

/// Elements that a device updates at once: what kernels make in between is of this size.
constexpr std::int64_t kPiece = 1 << 24;

}  // namespace

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

template <class Use>
void Optimizer::for_each_piece(const at::Tensor& grads, double scale, const Use& use) {
  FORESAIL_EXPECT(grads.numel() == values_.numel());
  ++steps_;
  const double correction1 = 1 / (1 - std::pow(options_.beta1, steps_));
  const double correction2 = 1 / (1 - std::pow(options_.beta2, steps_));
  for (std::int64_t first = 0; first < values_.numel(); first += kPiece) {
    const std::int64_t count = std::min(kPiece, values_.numel() - first);
    const at::Tensor grad = grads.narrow(0, first, count);
    at::Tensor mean = mean_.narrow(0, first, count);
    at::Tensor square = square_.narrow(0, first, count);
    mean.mul_(options_.beta1).add_(grad, (1 - options_.beta1) * scale);
    square.mul_(options_.beta2).addcmul_(grad, grad, (1 - options_.beta2) * scale * scale);
    at::Tensor direction = (square * correction2).sqrt_().add_(options_.epsilon);
    at::div_out(direction, mean, direction);
    use(first, count, direction.mul_(correction1));
  }
}

void Optimizer::step_on_device(const at::Tensor& grads, double scale, double rate) {
  for (const MatrixPart& part : matrices_) {
    values_.narrow(0, part.first, part.count).mul_(1 - rate * options_.weight_decay);
  }
  for_each_piece(grads, scale, [&](std::int64_t first, std::int64_t count, const at::Tensor& by) {
    values_.narrow(0, first, count).sub_(by, rate);
  });
}

void Optimizer::step(const at::Tensor& grads, double scale, double rate) {
  FORESAIL_EXPECT(options_.kind != program::Optimizer::Lamb);
  if (!values_.is_cpu()) return step_on_device(grads, scale, rate);
  const auto factor = static_cast<float>(rate);
  const auto decay = static_cast<float>(rate * options_.weight_decay);
  float* value = values_.data_ptr<float>();
  for_each_direction(grads, scale, [&](std::int64_t i, float direction, int matrix) {
    value[i] -= factor * direction + (matrix < 0 ? 0 : decay * value[i]);
  });
}

void Optimizer::make_updates(at::Tensor& grads, double scale) {
  FORESAIL_EXPECT(options_.kind == program::Optimizer::Lamb);
  if (!values_.is_cpu()) {
    for_each_piece(grads, scale, [&](std::int64_t first, std::int64_t count, const at::Tensor& by) {
      grads.narrow(0, first, count).copy_(by);
    });
    for (const MatrixPart& part : matrices_) {
      grads.narrow(0, part.first, part.count)
          .add_(values_.narrow(0, part.first, part.count), options_.weight_decay);
    }
    return;
  }
  const auto decay = static_cast<float>(options_.weight_decay);
  const float* value = values_.data_ptr<float>();
  float* update = grads.data_ptr<float>();
  for_each_direction(grads, scale, [&](std::int64_t i, float direction, int matrix) {
    update[i] = direction + (matrix < 0 ? 0 : decay * value[i]);
  });
}

std::array<at::Tensor, 2> Optimizer::squared_norms(std::size_t matrix,
                                                   const at::Tensor& updates) const {
  const MatrixPart& part = matrices_.at(matrix);
  return {squared_norm(values_.narrow(0, part.first, part.count)),
          squared_norm(updates.narrow(0, part.first, part.count))};
}

void Optimizer::apply(const at::Tensor& updates, const std::vector<Norms>& norms, double rate) {
  FORESAIL_EXPECT(norms.size() == matrices_.size());
  const bool is_on_cpu = values_.is_cpu();
  const float* update = is_on_cpu ? updates.data_ptr<float>() : nullptr;
  float* value = is_on_cpu ? values_.data_ptr<float>() : nullptr;
  for_each_part([&](std::int64_t first, std::int64_t count, int matrix) {
    double ratio = 1;
    if (matrix >= 0) {
      const Norms& of = norms[static_cast<std::size_t>(matrix)];
      if (of.value > 0 && of.update > 0) ratio = std::sqrt(of.value / of.update);
    }
    if (!is_on_cpu) {
      values_.narrow(0, first, count).sub_(updates.narrow(0, first, count), rate * ratio);
      return;
    }
    const auto factor = static_cast<float>(rate * ratio);
    for (std::int64_t i = first; i < first + count; ++i) value[i] -= factor * update[i];
  });
}

at::Tensor squared_norm(const at::Tensor& flat) {
  if (!flat.is_cpu()) return at::linalg_vector_norm(flat, 2).to(at::kDouble).square_();
  constexpr std::int64_t kBlock = 8192;
  double sum = 0;
  for (std::int64_t first = 0; first < flat.numel(); first += kBlock) {
    const at::Tensor block = flat.narrow(0, first, std::min(kBlock, flat.numel() - first));
    sum += at::dot(block, block).item<float>();
  }
  return at::scalar_tensor(sum, at::kDouble);
}

double clip_scale(double clip, double norm) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

}  // namespace foresail::runtime
