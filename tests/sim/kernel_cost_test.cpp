#include "foresail/sim/kernel_cost.h"

#include <gtest/gtest.h>

#include "foresail/sim/compute_cost.h"
#include "test_clusters.h"

namespace foresail::sim {
namespace {

const topologies::DeviceSpec kGpu = test::small_clos(1).device;

Kernel gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  Kernel kernel;
  kernel.kind = KernelKind::Gemm;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  kernel.flops =
      Flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
  kernel.bytes = Bytes(2 * (m * k + k * n + m * n));
  return kernel;
}

double efficiency(const Kernel& kernel) {
  return kernel.flops.count() / gemm_seconds(kernel, kGpu) / kGpu.peak_16.per_second();
}

TEST(GemmCost, LargeSquareReachesTheAsymptote) {
  // 8192^3: 2048 full tiles on 108 SMs, k0 150 of 8192 lost: near gemm_16 = 0.78.
  EXPECT_NEAR(efficiency(gemm(8192, 8192, 8192)), 0.75, 0.03);
}

TEST(GemmCost, SmallKAndPartialWavesCostEfficiency) {
  EXPECT_LT(efficiency(gemm(8192, 8192, 128)), 0.6 * efficiency(gemm(8192, 8192, 8192)));
  // 109 tiles of 128x256 on 108 SMs start a second wave.
  EXPECT_LT(efficiency(gemm(128, 256 * 109, 4096)), efficiency(gemm(128, 256 * 108, 4096)));
}

// Four parts of a GEMM of 108 tiles: alone, each would leave SMs idle.
TEST(GemmCost, PartsTakeTheTimeOfTheWhole) {
  const Kernel whole = gemm(128 * 4, 256 * 27, 4096);
  Kernel part = gemm(128, 256 * 27, 4096);
  part.bytes = Bytes(whole.bytes.count() / 4);
  const double alone = gemm_seconds(part, kGpu);
  part.parts = 4;
  EXPECT_NEAR(4 * gemm_seconds(part, kGpu) / gemm_seconds(whole, kGpu), 1, 1e-9);
  EXPECT_GT(4 * alone, 1.2 * gemm_seconds(whole, kGpu));
}

TEST(GemmCost, NeverBeatsEitherRoof) {
  for (const std::int64_t m : {16, 128, 2048}) {
    for (const std::int64_t k : {64, 1024, 8192}) {
      const Kernel kernel = gemm(m, 4096, k);
      const double seconds = gemm_seconds(kernel, kGpu);
      EXPECT_GE(seconds, memory_seconds(kernel, kGpu));
      EXPECT_GE(seconds, kernel.flops.count() / kGpu.peak_16.per_second());
    }
  }
}

TEST(AttentionCost, LongSequencesApproachTheFullRate) {
  Kernel kernel;
  kernel.kind = KernelKind::Attention;
  kernel.heads = 16;
  kernel.head_size = 128;
  kernel.flops = Flops(1e12);
  kernel.query_length = kernel.key_length = 800;  // s0: half of the asymptotic rate
  const double half = attention_seconds(kernel, kGpu);
  kernel.query_length = kernel.key_length = 1 << 20;
  EXPECT_NEAR(half / attention_seconds(kernel, kGpu), 2.0, 0.01);
}

/// By how much a pass forward and one backward grow if their scores draw random numbers.
double growth_by_draws(const topologies::DeviceSpec& device, std::int64_t head_size) {
  Kernel kernel;
  kernel.kind = KernelKind::Attention;
  kernel.heads = 16;
  kernel.head_size = head_size;
  kernel.query_length = kernel.key_length = 8192;
  const std::int64_t pairs = kernel.heads * kernel.query_length * kernel.key_length / 2;
  const auto seconds = [&](std::int64_t draws) {
    kernel.draws = draws;
    kernel.is_backward = false;
    kernel.flops = Flops(4.0 * static_cast<double>(pairs * head_size));
    const double forward = attention_seconds(kernel, device);
    kernel.is_backward = true;
    kernel.flops = 2.5 * kernel.flops;
    return forward + attention_seconds(kernel, device);
  };
  return seconds(pairs) / seconds(0) - 1;
}

// FlashAttention's dropout on a GB200 takes 20 to 40 % more (Dao-AILab/flash-attention, pull
// request 2597). The faster the tensor cores and the narrower the heads, the more.
TEST(AttentionCost, DrawingRandomNumbersCostsAFifthToTwoFifthsOnBlackwell) {
  topologies::DeviceSpec blackwell = kGpu;
  blackwell.peak_16 = FlopRate::per_second(2.5e15);
  blackwell.nccl.generation = topologies::Generation::Blackwell;
  EXPECT_GT(growth_by_draws(blackwell, 128), 0.2);
  EXPECT_LT(growth_by_draws(blackwell, 128), 0.4);
  EXPECT_NEAR(growth_by_draws(blackwell, 64), 2 * growth_by_draws(blackwell, 128), 1e-9);
  topologies::DeviceSpec ampere = kGpu;
  ampere.nccl.generation = topologies::Generation::Ampere;
  EXPECT_LT(growth_by_draws(ampere, 128), 0.5 * growth_by_draws(blackwell, 128));
  EXPECT_GT(growth_by_draws(ampere, 128), 0.05);
}

TEST(PassCost, ACollectiveHidesUnderTheKernelThatDoesNotNeedIt) {
  const ComputeCost compute(kGpu, nullptr);
  const PassCost cost(compute, Duration{});
  const Kernel dgrad = gemm(4096, 4096, 4096);
  const Kernel wgrad = gemm(4096, 4096, 4096);
  Kernel reduce;
  reduce.kind = KernelKind::Collective;
  reduce.lane = Lane::Tp;
  reduce.after = {0};
  Kernel next = gemm(64, 64, 64);
  next.after = {1};
  const Duration one = compute.kernel(dgrad);
  const Duration hidden = one / 2;
  const PassTimeline overlapped = cost.timeline({dgrad, reduce, wgrad, next}, {{}, hidden, {}, {}});
  // Overlapped: dgrad, wgrad (slower by 10 % while the reduction runs), next.
  EXPECT_LT(overlapped.duration, 2 * one + hidden + compute.kernel(next));
  EXPECT_GT(overlapped.duration, 2 * one + compute.kernel(next));
  Kernel waits = wgrad;
  waits.after = {1};
  const PassTimeline exposed = cost.timeline({dgrad, reduce, waits}, {{}, hidden, {}});
  EXPECT_EQ(exposed.duration, 2 * one + hidden);
}

TEST(PassCost, AHostThatLaunchesSlowlySetsTheFloor) {
  const ComputeCost compute(kGpu, nullptr);
  const std::vector<Kernel> kernels(10, gemm(64, 64, 64));
  const std::vector<Duration> none(10);
  const Duration fast = PassCost(compute, Duration{}).timeline(kernels, none).duration;
  const Duration slow =
      PassCost(compute, std::chrono::microseconds(100)).timeline(kernels, none).duration;
  EXPECT_LT(fast, std::chrono::microseconds(100));
  EXPECT_GE(slow, std::chrono::microseconds(1000));
}

TEST(ComputeCost, AMeasuredKernelReplacesTheCurve) {
  program::Profile profile;
  const Kernel kernel = gemm(128, 128, 128);
  profile.kernels = {{kernel, std::chrono::microseconds(77)}};
  const ComputeCost cost(kGpu, &profile);
  EXPECT_EQ(cost.kernel(kernel), std::chrono::microseconds(77));
  // Not measured: the nearest one, scaled by FLOPs.
  EXPECT_EQ(cost.kernel(gemm(256, 128, 128)), std::chrono::microseconds(154));
  // On a device that was measured no kernel is shorter than what lies between two launches.
  profile.launch_overhead = std::chrono::microseconds(5);
  EXPECT_EQ(cost.kernel(gemm(8, 8, 128)), std::chrono::microseconds(5));
  EXPECT_EQ(cost.kernel(gemm(256, 128, 128)), std::chrono::microseconds(154));
}

/// Expected largest of n standard normal numbers: the integral of x d(Phi(x)^n).
double expected_largest(int n) {
  const double step = 1e-4;
  const auto below = [n](double x) { return std::pow(0.5 * std::erfc(-x / std::sqrt(2.0)), n); };
  double sum = 0;
  for (double x = -9; x < 9; x += step) sum += (x + step / 2) * (below(x + step) - below(x));
  return sum;
}

TEST(SlowestPace, GrowsAsTheLargestOfSoManyNormalNumbers) {
  topologies::CostConstants constants;
  EXPECT_EQ(topologies::slowest_pace(constants, 1000), 1);
  constants.node_spread = 0.01;
  EXPECT_EQ(topologies::slowest_pace(constants, 1), 1);
  for (const int nodes : {2, 8, 32, 256, 1536}) {
    const double expected = 1 + 0.01 * expected_largest(nodes);
    EXPECT_NEAR(topologies::slowest_pace(constants, nodes), expected, 4e-4) << nodes;
  }
}

TEST(ComputeCost, TheSlowestNodeOfAJobComputesSlowerButItsHostCopiesAsFast) {
  topologies::DeviceSpec device = kGpu;
  device.constants.node_spread = 0.02;
  const ComputeCost mean(device, nullptr, {Bandwidth::gbps(100), Bandwidth::gbps(100)});
  const ComputeCost slowest = mean.on_slowest_of(100);
  const Kernel kernel = gemm(4096, 4096, 4096);
  EXPECT_NEAR(to_seconds(slowest.kernel(kernel)) / to_seconds(mean.kernel(kernel)),
              topologies::slowest_pace(device.constants, 100), 1e-6);
  EXPECT_EQ(mean.on_slowest_of(1).kernel(kernel), mean.kernel(kernel));
  Kernel copy;
  copy.kind = KernelKind::HostCopy;
  copy.bytes = Bytes(1 << 20);
  EXPECT_EQ(slowest.kernel(copy), mean.kernel(copy));
}

}  // namespace
}  // namespace foresail::sim
