#include "parameters.h"

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "host_copy.h"
#include "number_format.h"

namespace foresail::runtime {

namespace {

void draw_normal(float* out, const std::string& name, const Block& block, std::uint64_t seed,
                 double deviation) {
  const Rng rng(seed);
  for (std::int64_t row = 0; row < block.rows; ++row) {
    RandomStream stream = rng.stream(name, static_cast<std::uint64_t>(block.first_row + row));
    for (std::int64_t column = 0; column < block.total_columns; ++column) {
      const double value = deviation * stream.normal();
      const std::int64_t place = column - block.first_column;
      if (place < 0 || place >= block.columns) continue;
      out[row * block.columns + place] = static_cast<float>(value);
    }
  }
}

}  // namespace

void fill_normal(const at::Tensor& target, const std::string& name, const Block& block,
                 std::uint64_t seed, double deviation) {
  FORESAIL_EXPECT(target.is_contiguous());
  FORESAIL_EXPECT(target.numel() == block.rows * block.columns);
  edit_on_host(target, [&](at::Tensor& values) {
    draw_normal(values.data_ptr<float>(), name, block, seed, deviation);
  });
}

Extent overlap(const Extent& a, const Extent& b) {
  const std::int64_t first = std::max(a.first, b.first);
  const std::int64_t end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<std::int64_t>(0, end - first)};
}

bool Parameter::is_matrix() const {
  return !name.ends_with(".bias") && name.find("norm") == std::string::npos;
}

std::vector<Extent> Parameter::matrices() const {
  std::vector<Extent> all;
  if (!is_matrix()) return all;
  const std::int64_t count = value.numel() / stacked;
  for (std::int64_t i = 0; i < stacked; ++i) all.push_back({offset + i * count, count});
  return all;
}

Bucket::Bucket(std::int64_t elements, int shards, DType dtype, at::Device device)
    : elements_(elements), shards_(shards) {
  FORESAIL_EXPECT(elements > 0);
  FORESAIL_EXPECT(shards > 0);
  const std::int64_t padded = (elements + shards - 1) / shards * shards;
  values_ = at::zeros({padded}, at::device(device).dtype(scalar_type(dtype)));
  grads_ = at::zeros({padded}, at::device(device).dtype(at::kFloat));
  masters_ = dtype == DType::Fp32 ? values_ : at::zeros_like(grads_);
}

std::shared_ptr<Parameter> Bucket::take(const std::string& name, Spread spread,
                                        const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  FORESAIL_EXPECT(taken_ + count <= elements_);
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  parameter->spread = spread;
  parameter->offset = taken_;
  parameter->value = values_.narrow(0, taken_, count).view(shape);
  parameter->master = masters_.narrow(0, taken_, count).view(shape);
  parameter->grad = grads_.narrow(0, taken_, count).view(shape);
  taken_ += count;
  parameters_.push_back(parameter);
  return parameter;
}

void Bucket::make_masters() {
  FORESAIL_EXPECT(!masters_.defined());
  masters_ = at::zeros({padded()}, values_.options().dtype(at::kFloat));
  for (const auto& parameter : parameters_) {
    parameter->master = masters_.narrow(0, parameter->offset, parameter->value.numel())
                            .view(parameter->value.sizes());
  }
}

void Bucket::drop_masters() {
  if (masters_.is_same(values_)) return;
  masters_.reset();
  for (const auto& parameter : parameters_) parameter->master.reset();
}

at::Tensor Bucket::shard_of(const at::Tensor& flat, int shard) const {
  FORESAIL_EXPECT(flat.numel() == padded());
  FORESAIL_EXPECT(shard < shards_);
  const std::int64_t size = padded() / shards_;
  return flat.narrow(0, shard * size, size);
}

}  // namespace foresail::runtime
