#include <cmath>

#include "calibration.h"
#include "optimizer.h"
#include "span_log.h"
#include "worker_thread.h"

namespace foresail::runtime {
namespace {

constexpr std::int64_t kGemmSides[] = {32, 128, 512, 1024};
constexpr double kGemmFlopsMax = 2.2e9;
constexpr std::int64_t kRows[] = {64, 512, 4096};
constexpr std::int64_t kWidth = 512;
constexpr int kRepeatsMin = 3;

/// Median CPU time of `work` over some repeats within `budget_ns`.
template <class Work>
Duration time_of(std::int64_t budget_ns, const Work& work) {
  work();
  std::vector<double> samples;
  const std::int64_t end = steady_ns() + budget_ns;
  while (samples.size() < kRepeatsMin || steady_ns() < end) {
    const std::int64_t start = thread_cpu_ns();
    work();
    samples.push_back(static_cast<double>(thread_cpu_ns() - start) * 1e-9);
  }
  return duration_from_seconds(median(samples));
}

Kernel gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  Kernel kernel;
  kernel.kind = KernelKind::Gemm;
  kernel.dtype = DType::Fp32;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  kernel.flops = Flops(2.0 * static_cast<double>(m * n) * static_cast<double>(k));
  kernel.bytes = Bytes(4 * (m * k + k * n + m * n));
  return kernel;
}

/// `bytes` as models/operators.h counts them for this kind in fp32.
Kernel memory_bound(KernelKind kind, std::int64_t bytes) {
  Kernel kernel;
  kernel.kind = kind;
  kernel.dtype = DType::Fp32;
  kernel.bytes = Bytes(bytes);
  return kernel;
}

void sweep_rows(std::int64_t rows, std::int64_t slice_ns,
                std::vector<program::KernelTiming>& timings) {
  const std::int64_t elements = rows * kWidth;
  const at::Tensor x = at::randn({rows, kWidth});
  const at::Tensor y = at::randn({rows, kWidth});
  const at::Tensor weight = at::ones({kWidth});
  timings.push_back({memory_bound(KernelKind::Norm, 8 * elements), time_of(slice_ns, [&] {
                       at::native_layer_norm(x, {kWidth}, weight, weight, 1e-5);
                     })});
  timings.push_back(
      {memory_bound(KernelKind::Elementwise, 12 * elements), time_of(slice_ns, [&] { x + y; })});
  const at::Tensor index = at::arange(rows, at::kLong);
  timings.push_back({memory_bound(KernelKind::Embedding, 8 * elements),
                     time_of(slice_ns, [&] { at::index_select(x, 0, index); })});
  timings.push_back({memory_bound(KernelKind::CrossEntropy, 16 * elements),
                     time_of(slice_ns, [&] { at::log_softmax(x, 1); })});
  Optimizer adam({}, x.clone().view(-1), {});
  const at::Tensor grads = y.view(-1);
  timings.push_back({memory_bound(KernelKind::Optimizer, 28 * elements),
                     time_of(slice_ns, [&] { adam.step(grads, 1.0, 3e-4); })});
}

}  // namespace

std::vector<program::KernelTiming> sweep_kernels(std::chrono::milliseconds budget) {
  use_one_core();
  std::vector<Kernel> gemms;
  for (const std::int64_t m : kGemmSides) {
    for (const std::int64_t n : kGemmSides) {
      for (const std::int64_t k : kGemmSides) {
        const Kernel kernel = gemm(m, n, k);
        if (kernel.flops.count() <= kGemmFlopsMax) gemms.push_back(kernel);
      }
    }
  }
  const std::int64_t budget_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(budget).count();
  const auto cases = static_cast<std::int64_t>(gemms.size() + 5 * std::size(kRows));
  const std::int64_t slice_ns = budget_ns / cases;
  std::vector<program::KernelTiming> timings;
  for (const Kernel& kernel : gemms) {
    const at::Tensor a = at::randn({kernel.m, kernel.k});
    const at::Tensor b = at::randn({kernel.k, kernel.n});
    timings.push_back({kernel, time_of(slice_ns, [&] { at::mm(a, b); })});
  }
  for (const std::int64_t rows : kRows) sweep_rows(rows, slice_ns, timings);
  return timings;
}

}  // namespace foresail::runtime
