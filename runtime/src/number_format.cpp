#include "number_format.h"

#include "foresail/base/error.h"

namespace foresail::runtime {

at::ScalarType scalar_type(DType dtype) {
  FORESAIL_EXPECT(dtype == DType::Fp32 || dtype == DType::Bf16);
  return dtype == DType::Fp32 ? at::kFloat : at::kBFloat16;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return rounded(at::mm(widened(a), widened(b)), a);
}

at::Tensor product(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b) {
  return rounded(at::addmm(widened(bias), widened(a), widened(b)), a);
}

at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b) {
  return rounded(at::bmm(widened(a), widened(b)), a);
}

void add_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor sum = widened(target);
  at::addmm_out(sum, sum, widened(a), widened(b));
  if (!sum.is_same(target)) at::Tensor(target).copy_(sum);
}

void set_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor result = target;
  if (target.scalar_type() == at::kFloat) {
    at::mm_out(result, widened(a), widened(b));
  } else {
    result.copy_(at::mm(widened(a), widened(b)));
  }
}

void set_product(const at::Tensor& target, const at::Tensor& bias, const at::Tensor& a,
                 const at::Tensor& b) {
  at::Tensor result = target;
  if (target.scalar_type() == at::kFloat) {
    at::addmm_out(result, widened(bias), widened(a), widened(b));
  } else {
    result.copy_(at::addmm(widened(bias), widened(a), widened(b)));
  }
}

}  // namespace foresail::runtime
