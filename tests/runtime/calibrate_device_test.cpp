// Measuring a device that is not the CPU. FarDevice stands for the GPU: its clock counts marks, so
// that times are how many marks lie between two.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "calibration.h"
#include "far_device.h"
#include "foresail/runtime/local.h"
#include "foresail/runtime/store.h"
#include "profile_checks.h"
#include "staged_network.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using std::chrono::milliseconds;

/// Autograd's thread works for the lane that opened last, which is the one that measures.
class MeasuredDevice : public FarDevice {
 public:
  using FarDevice::FarDevice;
  std::unique_ptr<Lane> open_lane() override {
    auto lane = FarDevice::open_lane();
    serve_autograd();
    return lane;
  }
};

/// What rank 0 of `ranks` threads, each with a device, gets.
program::Profile measure(const runtime::Job* job, int ranks) {
  runtime::LocalNetwork network;
  runtime::MemoryStore store{std::chrono::seconds(60)};
  std::vector<program::Profile> profiles(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failures(profiles.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      try {
        MeasuredDevice device(rank);
        const auto endpoint = make_staged_endpoint(network.endpoint());
        runtime::CalibrateOptions options;
        options.job = job;
        options.rank = rank;
        options.processes = ranks;
        options.store = &store;
        options.endpoint = ranks > 1 ? endpoint.get() : nullptr;
        options.device = &device;
        options.device_name = "far " + std::to_string(rank);
        options.device_blas = "the CPU's";
        options.budget = milliseconds(1);
        profiles[at] = runtime::calibrate(options);
      } catch (...) {
        failures[at] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return profiles.front();
}

void expect_transfers(const program::Profile& profile) {
  for (const char* kind : {"all_gather", "all_reduce", "reduce_scatter", "send"}) {
    const auto is_of_kind = [&](const auto& timing) {
      return timing.kind == kind && timing.ranks == 2 && timing.time > Duration(0);
    };
    EXPECT_GE(std::ranges::count_if(profile.transfers, is_of_kind), 9) << kind;
  }
}

void expect_measured(const Layout& layout, DType format) {
  const runtime::Job job =
      cli::make_job(make_plan({.layout = layout, .change = [&](planner::Plan& plan) {
                                 plan.training.precision = format;
                               }}));
  const program::Profile profile = measure(&job, 2);
  expect_every_kernel(job.program, profile);
  // Between the marks of a kernel lies no other: one tick of the clock, 1 ns.
  for (const program::KernelTiming& timing : profile.kernels) {
    EXPECT_EQ(timing.time, std::chrono::nanoseconds(1));
  }
  expect_transfers(profile);
  EXPECT_EQ(profile.device, "far 0");
  EXPECT_EQ(profile.blas, "the CPU's");
  EXPECT_EQ(profile.processes, 2);
  EXPECT_FALSE(profile.date.empty());
  EXPECT_GT(profile.op_overhead, Duration(0));
  EXPECT_GT(profile.step_overhead, Duration(0));
  EXPECT_GT(profile.launch_overhead, Duration(0));
}

TEST(CalibrateDevice, CoversKernelsAndTransfersOfTensorParallelRanksInBf16) {
  Layout layout;
  layout.tp = 2;
  layout.sequence_parallel = true;
  expect_measured(layout, DType::Bf16);
}

TEST(CalibrateDevice, CoversKernelsAndTransfersOfAPipeline) {
  Layout layout;
  layout.pp = 2;
  expect_measured(layout, DType::Fp32);
}

TEST(CalibrateDevice, OneDeviceAloneHasNothingToTransfer) {
  const runtime::Job job = cli::make_job(make_plan({}));
  const program::Profile profile = measure(&job, 1);
  EXPECT_TRUE(profile.transfers.empty());
  expect_every_kernel(job.program, profile);
}

TEST(CalibrateDevice, SweepsBothFormatsWhereBothAreFast) {
  MeasuredDevice device(0);
  const auto lane = device.open_lane();
  // No time passes in its streams: bf16 takes no longer than fp32.
  const auto formats = runtime::fast_formats(device, 16);
  EXPECT_EQ(formats, (std::vector<DType>{DType::Fp32, DType::Bf16}));
  const runtime::SweepSizes sizes{.gemm_sides = {8, 16},
                                  .gemm_flops_max = 2 * 16 * 16 * 8,
                                  .rows = {4},
                                  .width = 32,
                                  .formats = formats};
  const auto timings = runtime::sweep_kernels(&device, sizes, milliseconds(1));
  // Of 8 products the largest is beyond the limit; norm, addition, look-up and loss in both
  // formats, the optimizer once.
  EXPECT_EQ(timings.size(), 2 * 7 + 2 * 4 + 1);
  for (const program::KernelTiming& timing : timings) {
    // 100 in a row between two marks, 1 ns apart.
    EXPECT_EQ(timing.time, Duration(10));
  }
  const auto loss_bytes = [&](DType format) {
    const auto found = std::ranges::find_if(timings, [&](const auto& timing) {
      return timing.kernel.kind == KernelKind::CrossEntropy && timing.kernel.dtype == format;
    });
    return found->kernel.bytes;
  };
  EXPECT_EQ(loss_bytes(DType::Fp32), Bytes(4 * 32 * 16));
  EXPECT_EQ(loss_bytes(DType::Bf16), Bytes(4 * 32 * 14));
}

}  // namespace
}  // namespace foresail::testing
