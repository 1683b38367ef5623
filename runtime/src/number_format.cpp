#include "number_format.h"

#include <torch/version.h>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

/// CUDA devices read 16 bits in products and accumulate in fp32 by themselves (cuBLAS): nothing is
/// widened for them.
bool reads_16_bits(const at::Tensor& a) {
  return a.is_cuda();
}

/// target += a * b of 16 bits into fp32, if this libtorch can (since 2.8).
bool add_mixed_product(at::Tensor target, const at::Tensor& a, const at::Tensor& b) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
  at::addmm_out(target, target, a, b, at::kFloat);
  return true;
#else
  (void)target, (void)a, (void)b;
  return false;
#endif
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  FORESAIL_EXPECT(dtype == DType::Fp32 || dtype == DType::Bf16);
  return dtype == DType::Fp32 ? at::kFloat : at::kBFloat16;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (reads_16_bits(a)) return at::mm(a, b);
  return rounded(at::mm(widened(a), widened(b)), a);
}

at::Tensor product(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b) {
  if (reads_16_bits(a)) return at::addmm(bias, a, b);
  return rounded(at::addmm(widened(bias), widened(a), widened(b)), a);
}

at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b) {
  if (reads_16_bits(a)) return at::bmm(a, b);
  return rounded(at::bmm(widened(a), widened(b)), a);
}

void add_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b) {
  if (reads_16_bits(a)) {
    at::Tensor sum = target;
    if (a.scalar_type() == target.scalar_type()) {
      at::addmm_out(sum, sum, a, b);
      return;
    }
    if (add_mixed_product(sum, a, b)) return;
  }
  at::Tensor sum = widened(target);
  at::addmm_out(sum, sum, widened(a), widened(b));
  if (!sum.is_same(target)) at::Tensor(target).copy_(sum);
}

void set_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor result = target;
  if (reads_16_bits(a) && a.scalar_type() == target.scalar_type()) {
    at::mm_out(result, a, b);
  } else if (target.scalar_type() == at::kFloat) {
    at::mm_out(result, widened(a), widened(b));
  } else {
    result.copy_(at::mm(widened(a), widened(b)));
  }
}

void set_product(const at::Tensor& target, const at::Tensor& bias, const at::Tensor& a,
                 const at::Tensor& b) {
  at::Tensor result = target;
  if (reads_16_bits(a) && a.scalar_type() == target.scalar_type()) {
    at::addmm_out(result, bias, a, b);
  } else if (target.scalar_type() == at::kFloat) {
    at::addmm_out(result, widened(bias), widened(a), widened(b));
  } else {
    result.copy_(at::addmm(widened(bias), widened(a), widened(b)));
  }
}

}  // namespace foresail::runtime
