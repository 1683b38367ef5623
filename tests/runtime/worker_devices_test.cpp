// foresail-worker and devices: what it sees, and what it refuses.
#include <gmock/gmock.h>

#include <filesystem>

#include "command_outcome.h"
#include "foresail/runtime/cuda_device.h"
#include "scratch_folder.h"
#include "thread_job.h"

namespace foresail::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(WorkerDevices, ShowsCudaAndNccl) {
  const Outcome outcome = run_command(FORESAIL_WORKER " devices");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.text, StartsWith("cuda: " + runtime::look_for_cuda().build + "; "));
  EXPECT_THAT(outcome.text, HasSubstr("\nnccl: "));
}

TEST(WorkerDevices, ARunOnCudaWithoutADeviceEndsWithOneMessage) {
  const runtime::CudaSight sight = runtime::look_for_cuda();
  if (sight.devices > 0) GTEST_SKIP() << "this host has CUDA devices";
  const auto folder = test::scratch_folder();
  planner::save_plan(make_plan({}), folder / "plan.yaml");
  const std::string plan = (folder / "plan.yaml").string() + " -o " + (folder / "out").string();
  const std::string expected =
      "foresail-worker: --device cuda: no CUDA device: " + sight.reason + "\n";
  for (const std::string& command : {" run " + plan, " launch " + plan + " --launch 1"}) {
    const Outcome outcome = run_command(FORESAIL_WORKER + command + " --device cuda");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.text, expected);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(WorkerDevices, ACalibrationOfCudaWithoutADeviceEndsWithOneMessage) {
  const runtime::CudaSight sight = runtime::look_for_cuda();
  if (sight.devices > 0) GTEST_SKIP() << "this host has CUDA devices";
  const auto profile = test::scratch_folder() / "profile.yaml";
  for (const char* command : {" calibrate", " calibrate-rank"}) {
    const Outcome outcome = run_command(std::string(FORESAIL_WORKER) + command + " -o " +
                                        profile.string() + " --device cuda");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.text,
              "foresail-worker: --device cuda: no CUDA device: " + sight.reason + "\n");
  }
  EXPECT_FALSE(std::filesystem::exists(profile));
}

TEST(WorkerDevices, AnUnknownDeviceIsRefusedByName) {
  const Outcome outcome = run_command(FORESAIL_WORKER " run no.yaml -o none --device tpu");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.text, "foresail-worker: --device: \"tpu\" is not one of cpu, cuda\n");
}

}  // namespace
}  // namespace foresail::testing
