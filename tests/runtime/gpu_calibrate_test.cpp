// Measuring a CUDA device. Without one, every test skips and says why.
#include <gtest/gtest.h>

#include <chrono>

#include "calibration.h"
#include "foresail/runtime/cuda_device.h"
#include "foresail/runtime/store.h"
#include "profile_checks.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using runtime::CudaDevice;
using std::chrono::milliseconds;

class GpuCalibrate : public ::testing::Test {
 protected:
  void SetUp() override {
    const runtime::CudaSight sight = runtime::look_for_cuda();
    if (sight.devices == 0) GTEST_SKIP() << "no CUDA device: " << sight.reason;
    device_ = std::make_unique<CudaDevice>(0);
  }
  program::Profile measure(const runtime::Job* job) {
    runtime::MemoryStore store{std::chrono::seconds(60)};
    runtime::CalibrateOptions options;
    options.job = job;
    options.store = &store;
    options.device = device_.get();
    options.device_name = device_->description();
    options.device_blas = "cuBLAS";
    options.budget = milliseconds(2000);
    return runtime::calibrate(options);
  }
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(GpuCalibrate, CoversEveryKernelOfThePlan) {
  for (const DType format : {DType::Fp32, DType::Bf16}) {
    const runtime::Job job = cli::make_job(make_plan(
        {.layout = {}, .change = [&](planner::Plan& plan) { plan.training.precision = format; }}));
    const program::Profile profile = measure(&job);
    expect_every_kernel(job.program, profile);
    EXPECT_TRUE(profile.transfers.empty());
    EXPECT_EQ(profile.device, device_->description());
  }
}

/// Time of the largest product of this format that was measured.
Duration largest(const program::Profile& profile, DType format) {
  const program::KernelTiming* found = nullptr;
  for (const program::KernelTiming& timing : profile.kernels) {
    if (timing.kernel.kind != KernelKind::Gemm || timing.kernel.dtype != format) continue;
    if (found == nullptr || timing.kernel.flops > found->kernel.flops) found = &timing;
  }
  return found == nullptr ? Duration(0) : found->time;
}

TEST_F(GpuCalibrate, ASweepFindsRatesThatADeviceCanHave) {
  const program::Profile profile = measure(nullptr);
  EXPECT_GT(profile.launch_overhead, std::chrono::nanoseconds(200));
  EXPECT_LT(profile.launch_overhead, std::chrono::milliseconds(1));
  const Duration slow = largest(profile, DType::Fp32);
  const Duration fast = largest(profile, DType::Bf16);
  // 2 * 8192^3 operations: 10^12 to 10^16 of them a second.
  EXPECT_GT(slow, std::chrono::microseconds(110));
  EXPECT_LT(slow, std::chrono::milliseconds(1100));
  if (fast > Duration(0)) {
    EXPECT_LE(fast, slow);
  }
  for (const program::KernelTiming& timing : profile.kernels) {
    EXPECT_GT(timing.time, Duration(0)) << to_string(timing.kernel.kind);
  }
}

}  // namespace
}  // namespace foresail::testing
