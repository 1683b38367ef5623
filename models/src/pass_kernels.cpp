#include "pass_kernels.h"

#include <utility>

#include "foresail/base/error.h"

namespace foresail::models {

void PassKernels::await(const std::vector<int>& collectives) {
  awaited_.insert(awaited_.end(), collectives.begin(), collectives.end());
}

int PassKernels::push(Kernel kernel) {
  kernel.name += suffix_;
  kernels_.push_back(std::move(kernel));
  return static_cast<int>(kernels_.size()) - 1;
}

int PassKernels::compute(Kernel kernel) {
  FORESAIL_EXPECT(kernel.kind != KernelKind::Collective);
  kernel.after = std::exchange(awaited_, {});
  last_compute_ = push(std::move(kernel));
  return last_compute_;
}

int PassKernels::gemm(const std::string& name, DType dtype, const GemmShape& shape,
                      GemmResult result) {
  FORESAIL_EXPECT(shape.m > 0);
  FORESAIL_EXPECT(shape.n > 0);
  FORESAIL_EXPECT(shape.k > 0);
  FORESAIL_EXPECT(shape.batch > 0);
  Kernel kernel;
  kernel.kind = KernelKind::Gemm;
  kernel.name = name;
  kernel.dtype = dtype;
  kernel.batch = shape.batch;
  kernel.m = shape.m;
  kernel.n = shape.n;
  kernel.k = shape.k;
  kernel.parts = shape.parts;
  kernel.flops = Flops(2 * static_cast<double>(shape.batch) * static_cast<double>(shape.m) *
                       static_cast<double>(shape.n) * static_cast<double>(shape.k));
  const std::int64_t operands = (shape.m * shape.k + shape.k * shape.n) * size_of(dtype);
  const std::int64_t stored = result == GemmResult::Accumulated ? 8 : share_.element;
  kernel.bytes = Bytes(shape.batch * (operands + shape.m * shape.n * stored));
  return compute(std::move(kernel));
}

int PassKernels::memory_bound(KernelKind kind, const std::string& name, std::int64_t bytes) {
  Kernel kernel;
  kernel.kind = kind;
  kernel.name = name;
  kernel.dtype = share_.dtype;
  kernel.bytes = Bytes(bytes);
  return compute(std::move(kernel));
}

int PassKernels::collective(const std::string& name, Collective kind, std::int64_t bytes,
                            Lane lane) {
  Kernel kernel;
  kernel.kind = KernelKind::Collective;
  kernel.name = name;
  kernel.dtype = share_.dtype;
  kernel.collective = kind;
  kernel.lane = lane;
  kernel.bytes = Bytes(bytes);
  if (last_compute_ >= 0) kernel.after = {last_compute_};
  return push(std::move(kernel));
}

int PassKernels::exchange(const std::string& name, Collective kind, std::int64_t tokens,
                          std::int64_t width) {
  const std::int64_t columns = width > 0 ? width : share_.hidden;
  return collective(name, kind, tokens * columns * share_.element);
}

}  // namespace foresail::models
