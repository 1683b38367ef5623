#include <algorithm>

#include "calibration.h"
#include "foresail/base/error.h"
#include "number_format.h"
#include "optimizer.h"
#include "span_log.h"
#include "worker_thread.h"

namespace foresail::runtime {
namespace {

constexpr int kRepeatsMin = 3;
/// On a device: kernels between two marks, so that what marks cost and resolve counts little.
constexpr double kBurstSeconds = 2e-4;
constexpr int kBurstMax = 100;
/// Kernels that only show what launching them costs.
constexpr int kLaunches = 200;
/// The product that shows whether a format is fast.
constexpr std::int64_t kProbeSide = 1024;

/// Measures one thing after another, each for `slice_ns`.
class Bench {
 public:
  Bench(Device* device, std::int64_t slice_ns) : clock_(device), slice_ns_(slice_ns) {}

  /// Median time of `work` over some repeats, after a first one that finds everything cold.
  template <class Work>
  Duration time_of(const Work& work) const {
    seconds_of(work, 1);
    const int burst = burst_of(work);
    std::vector<double> samples;
    const std::int64_t end = steady_ns() + slice_ns_;
    while (samples.size() < kRepeatsMin || steady_ns() < end) {
      samples.push_back(seconds_of(work, burst));
    }
    return duration_from_seconds(median(samples));
  }

  /// Of one of `burst` in a row.
  template <class Work>
  double seconds_of(const Work& work, int burst) const {
    clock_.begin();
    const Mark start = clock_.now();
    for (int i = 0; i < burst; ++i) work();
    const Mark end = clock_.now();
    return static_cast<double>(clock_.between_ns(start, end)) * 1e-9 / burst;
  }

 private:
  template <class Work>
  int burst_of(const Work& work) const {
    if (!clock_.is_of_device()) return 1;
    const double alone = std::max(seconds_of(work, 1), 1e-9);
    return static_cast<int>(std::clamp(kBurstSeconds / alone, 1.0, double{kBurstMax}));
  }

  CostClock clock_;
  std::int64_t slice_ns_;
};

Kernel gemm(DType format, std::int64_t m, std::int64_t n, std::int64_t k) {
  Kernel kernel;
  kernel.kind = KernelKind::Gemm;
  kernel.dtype = format;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  kernel.flops = Flops(2.0 * static_cast<double>(m * n) * static_cast<double>(k));
  kernel.bytes = Bytes(size_of(format) * (m * k + k * n + m * n));
  return kernel;
}

/// `bytes` as models/operators.h counts them for this kind and format.
Kernel memory_bound(KernelKind kind, DType format, std::int64_t bytes) {
  Kernel kernel;
  kernel.kind = kind;
  kernel.dtype = format;
  kernel.bytes = Bytes(bytes);
  return kernel;
}

at::TensorOptions options_of(Device* device, DType format) {
  const c10::Device place = device != nullptr ? device->place() : c10::Device(at::kCPU);
  return at::device(place).dtype(scalar_type(format));
}

struct Rows {
  std::int64_t rows = 0, width = 0;
  DType format = DType::Fp32;
};

void sweep_rows(Device* device, const Rows& of, const Bench& bench,
                std::vector<program::KernelTiming>& timings) {
  const std::int64_t elements = of.rows * of.width;
  const std::int64_t bytes = elements * size_of(of.format);
  const at::TensorOptions options = options_of(device, of.format);
  const at::Tensor x = at::randn({of.rows, of.width}, options);
  const at::Tensor y = at::randn({of.rows, of.width}, options);
  const at::Tensor weight = at::ones({of.width}, options);
  const auto add = [&](KernelKind kind, std::int64_t moved, const auto& work) {
    timings.push_back({memory_bound(kind, of.format, moved), bench.time_of(work)});
  };
  add(KernelKind::Norm, 2 * bytes,
      [&] { at::native_layer_norm(x, {of.width}, weight, weight, 1e-5); });
  add(KernelKind::Elementwise, 3 * bytes, [&] { x + y; });
  const at::Tensor index = at::arange(of.rows, options.dtype(at::kLong));
  add(KernelKind::Embedding, 2 * bytes, [&] { at::index_select(x, 0, index); });
  // Probabilities are fp32: they are written, and read and written once more.
  add(KernelKind::CrossEntropy, bytes + 12 * elements, [&] { at::log_softmax(x, 1, at::kFloat); });
  if (of.format != DType::Fp32) return;  // the optimizer's states are fp32 whatever the rest is
  Optimizer adam({}, x.clone().view(-1), {});
  const at::Tensor grads = y.view(-1);
  add(KernelKind::Optimizer, 28 * elements, [&] { adam.step(grads, 1.0, 3e-4); });
}

std::vector<Kernel> gemms_of(const SweepSizes& sizes) {
  std::vector<Kernel> gemms;
  for (const DType format : sizes.formats) {
    for (const std::int64_t m : sizes.gemm_sides) {
      for (const std::int64_t n : sizes.gemm_sides) {
        for (const std::int64_t k : sizes.gemm_sides) {
          const Kernel kernel = gemm(format, m, n, k);
          if (kernel.flops.count() <= sizes.gemm_flops_max) gemms.push_back(kernel);
        }
      }
    }
  }
  return gemms;
}

}  // namespace

SweepSizes sweep_sizes(Device* device) {
  if (device == nullptr) {
    return {.gemm_sides = {32, 128, 512, 1024},
            .gemm_flops_max = 2.2e9,
            .rows = {64, 512, 4096},
            .width = 512,
            .formats = {DType::Fp32}};
  }
  return {.gemm_sides = {128, 512, 2048, 8192},
          .gemm_flops_max = 1.2e12,
          .rows = {64, 1024, 16384},
          .width = 4096,
          .formats = fast_formats(*device, kProbeSide)};
}

std::vector<DType> fast_formats(Device& device, std::int64_t side) {
  const Bench bench(&device, 0);
  const auto time_in = [&](DType format) {
    const at::Tensor a = at::ones({side, side}, options_of(&device, format));
    return bench.time_of([&] { at::mm(a, a); });
  };
  if (time_in(DType::Bf16) <= time_in(DType::Fp32)) return {DType::Fp32, DType::Bf16};
  return {DType::Fp32};
}

std::vector<program::KernelTiming> sweep_kernels(Device* device, const SweepSizes& sizes,
                                                 std::chrono::milliseconds budget) {
  use_one_core();
  const std::vector<Kernel> gemms = gemms_of(sizes);
  const std::int64_t budget_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(budget).count();
  const std::size_t cases = gemms.size() + 5 * sizes.rows.size() * sizes.formats.size();
  const Bench bench(device, budget_ns / static_cast<std::int64_t>(cases));
  std::vector<program::KernelTiming> timings;
  for (const Kernel& kernel : gemms) {
    const at::TensorOptions options = options_of(device, kernel.dtype);
    const at::Tensor a = at::randn({kernel.m, kernel.k}, options);
    const at::Tensor b = at::randn({kernel.k, kernel.n}, options);
    timings.push_back({kernel, bench.time_of([&] { at::mm(a, b); })});
  }
  for (const DType format : sizes.formats) {
    for (const std::int64_t rows : sizes.rows) {
      sweep_rows(device, {rows, sizes.width, format}, bench, timings);
    }
  }
  return timings;
}

Duration measure_launches(Device& device) {
  const Bench bench(&device, 0);
  at::Tensor one = at::ones({1}, options_of(&device, DType::Fp32));
  std::vector<double> samples;
  for (int i = 0; i <= kRepeatsMin; ++i) {
    samples.push_back(bench.seconds_of([&] { one.mul_(1); }, kLaunches));
  }
  samples.erase(samples.begin());  // found everything cold
  return duration_from_seconds(median(samples));
}

}  // namespace foresail::runtime
