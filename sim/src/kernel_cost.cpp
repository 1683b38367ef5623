#include "foresail/sim/kernel_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

using topologies::CostConstants;
using topologies::DeviceSpec;

// Tile shapes of a tensor-core GEMM library and their efficiency relative to the best one.
struct Tile {
  double m, n, efficiency;
};
constexpr std::array kTiles = {Tile{128, 256, 1.0}, Tile{256, 128, 1.0}, Tile{128, 128, 0.93},
                               Tile{128, 64, 0.75}, Tile{64, 64, 0.75}};
constexpr double kRooflineNorm = 4;  // p of the p-norm that joins the two roofs

double join(double a, double b) {
  const double larger = std::max(a, b);
  if (larger <= 0) return 0;
  const double ratio = std::min(a, b) / larger;
  return larger * std::pow(1 + std::pow(ratio, kRooflineNorm), 1 / kRooflineNorm);
}

double gemm_efficiency(DType dtype, const CostConstants& constants) {
  switch (dtype) {
    case DType::Fp8:
      return constants.gemm_8;
    case DType::Fp32:
      return constants.gemm_32;
    default:
      return constants.gemm_16;
  }
}

double tiled_seconds(const Kernel& kernel, const DeviceSpec& device) {
  const CostConstants& constants = device.constants;
  const double per_sm = device.peak(kernel.dtype).per_second() / device.multiprocessors *
                        gemm_efficiency(kernel.dtype, constants);
  const double k0 = constants.gemm_k0 * (kernel.dtype == DType::Fp8 ? 2 : 1);
  const auto m = static_cast<double>(kernel.m);
  const auto n = static_cast<double>(kernel.n);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles =
        std::ceil(m / tile.m) * std::ceil(n / tile.n) * static_cast<double>(kernel.batch);
    const double filled = tiles / device.multiprocessors;
    const double waves = filled + constants.wave_weight * (std::ceil(filled) - filled);
    const double seconds = waves * tile.m * tile.n * 2 * (static_cast<double>(kernel.k) + k0) /
                           (per_sm * tile.efficiency);
    best = std::min(best, seconds);
  }
  return best;
}

// Dense, of one multiprocessor.
double tensor_flops_per_cycle(topologies::Generation generation) {
  switch (generation) {
    case topologies::Generation::Volta:
      return 1024;
    case topologies::Generation::Ampere:
      return 2048;
    case topologies::Generation::Hopper:
      return 4096;
    case topologies::Generation::Blackwell:
      break;
  }
  return 8192;
}

// Random numbers of attention dropout are drawn with integer instructions between the fused
// kernel's products, which they hardly overlap (Ma et al. 2024, arXiv 2410.07531: fused drawing is
// bound by the same pipes as the kernel). FlashAttention draws with Philox 4x32 of 7 rounds and
// needs 8 bits a score: a round has two multiplications of two halves each, two exclusive ors of
// three operands and two key additions, for 16 scores; comparing and selecting takes two more
// instructions a score. A multiprocessor issues 64 of these a cycle, and so many dense 16-bit
// FLOPs on its tensor cores as its generation's white paper states.
double draw_seconds(const Kernel& kernel, const DeviceSpec& device) {
  if (kernel.draws == 0 || device.kind != topologies::DeviceKind::Gpu) return 0;
  constexpr double kPerScore = 7 * (2 * 2 + 2 + 2) / 16.0 + 2;
  constexpr double kIntegerLanes = 64;
  const double issued = kIntegerLanes / tensor_flops_per_cycle(device.nccl.generation);
  return static_cast<double>(kernel.draws) * kPerScore /
         (device.peak(DType::Bf16).per_second() * issued);
}

}  // namespace

double memory_seconds(const Kernel& kernel, const DeviceSpec& device) {
  return static_cast<double>(kernel.bytes.count()) /
         (device.memory_bandwidth.bytes_per_second() * device.constants.memory);
}

double gemm_seconds(const Kernel& kernel, const DeviceSpec& device) {
  FORESAIL_EXPECT(kernel.kind == KernelKind::Gemm);
  FORESAIL_EXPECT(kernel.parts >= 1);
  if (kernel.parts > 1) {
    Kernel whole = kernel;
    whole.parts = 1;
    whole.m *= kernel.parts;
    whole.flops = static_cast<double>(kernel.parts) * kernel.flops;
    whole.bytes = kernel.parts * kernel.bytes;
    return gemm_seconds(whole, device) / static_cast<double>(kernel.parts);
  }
  FORESAIL_EXPECT(device.peak(kernel.dtype).per_second() > 0);
  const double compute =
      device.kind == topologies::DeviceKind::Gpu
          ? tiled_seconds(kernel, device)
          : kernel.flops.count() / (device.peak(kernel.dtype).per_second() *
                                    gemm_efficiency(kernel.dtype, device.constants));
  return join(compute, memory_seconds(kernel, device));
}

double attention_seconds(const Kernel& kernel, const DeviceSpec& device) {
  FORESAIL_EXPECT(kernel.kind == KernelKind::Attention);
  const CostConstants& constants = device.constants;
  const auto queries = static_cast<double>(kernel.query_length);
  const double contiguous = kernel.query_length < kernel.key_length ? queries / 2 : queries;
  const double rate = device.peak(kernel.dtype).per_second() * constants.attention_forward *
                      (kernel.is_backward ? constants.attention_backward : 1.0) * contiguous /
                      (contiguous + constants.attention_s0);
  return join(kernel.flops.count() / rate + draw_seconds(kernel, device),
              memory_seconds(kernel, device));
}

double kernel_seconds(const Kernel& kernel, const DeviceSpec& device) {
  const double launch = device.constants.launch_us * 1e-6;
  switch (kernel.kind) {
    case KernelKind::Gemm:
      return launch + gemm_seconds(kernel, device);
    case KernelKind::Attention:
      return launch + attention_seconds(kernel, device);
    case KernelKind::Optimizer:
      return device.constants.optimizer_base_us * 1e-6 + memory_seconds(kernel, device);
    case KernelKind::Norm:
    case KernelKind::Elementwise:
    case KernelKind::Embedding:
    case KernelKind::CrossEntropy:
      return launch + memory_seconds(kernel, device);
    case KernelKind::Collective:
    case KernelKind::HostCopy:
    case KernelKind::HostOptimizer:
      break;
  }
  FORESAIL_EXPECT(!"a kernel of the device");
  return 0;
}

}  // namespace foresail::sim
