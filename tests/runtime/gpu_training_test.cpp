// Training on a CUDA device against the CPU. Without one, every test skips and says why.
#include <gtest/gtest.h>

#include <map>

#include "foresail/planner/memory_bound.h"
#include "foresail/runtime/cuda_device.h"
#include "foresail/runtime/local.h"
#include "staged_network.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using runtime::CudaDevice;

class GpuTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    const runtime::CudaSight sight = runtime::look_for_cuda();
    if (sight.devices == 0) GTEST_SKIP() << "no CUDA device: " << sight.reason;
  }
};

/// All ranks on one device, over a network through host memory: NCCL wants a device for each. One
/// thread of autograd serves a device, so no rank may wait for another inside a backward pass.
std::vector<RankResult> run_on_gpu(const runtime::Job& job, int steps) {
  std::vector<std::unique_ptr<CudaDevice>> devices;
  for (int rank = 0; rank < job.program.grid.world_size(); ++rank) {
    devices.push_back(std::make_unique<CudaDevice>(0));
  }
  runtime::LocalNetwork network;
  JobHooks hooks;
  hooks.endpoint = [&](RankId) { return make_staged_endpoint(network.endpoint()); };
  hooks.device = [&](RankId rank) { return devices[rank.value].get(); };
  return run_job(job, steps, hooks);
}

std::vector<Layout> layouts() {
  Layout alone;
  Layout replicas;
  replicas.dp = 2;
  replicas.zero_stage = 1;
  Layout pipeline;
  pipeline.pp = 2;
  pipeline.v = 2;
  pipeline.overlap.pp = true;
  pipeline.schedule = planner::ScheduleKind::Interleaved;
  return {alone, replicas, pipeline};
}

void use_flash(planner::Plan& plan) {
  plan.stack.flash_attention = true;
}

void use_dropout(planner::Plan& plan) {
  plan.model.dropout = true;
}

void expect_steps_of_the_cpu(
    DType precision, double bound,
    const std::function<void(planner::Plan&)>& change = [](planner::Plan&) {}) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    const runtime::Job job =
        cli::make_job(make_plan({.layout = layout, .change = [&](planner::Plan& plan) {
                                   plan.training.precision = precision;
                                   change(plan);
                                 }}));
    const auto near = run_job(job, 3);
    const auto far = run_on_gpu(job, 3);
    for (std::size_t step = 0; step < 3; ++step) {
      const auto& truth = near[0].steps[step];
      EXPECT_NEAR(far[0].steps[step].loss, truth.loss, bound * truth.loss);
      EXPECT_NEAR(far[0].steps[step].gradient_norm, truth.gradient_norm,
                  10 * bound * truth.gradient_norm);
      EXPECT_EQ(far[0].steps[step].executed_digest, truth.executed_digest);
    }
  }
}

TEST_F(GpuTraining, StepsAreThoseOfTheCpuWithinRounding) {
  expect_steps_of_the_cpu(DType::Fp32, 1e-4);
}

TEST_F(GpuTraining, StepsInBf16AreThoseOfTheCpuWithinRounding) {
  expect_steps_of_the_cpu(DType::Bf16, 1e-2);
}

TEST_F(GpuTraining, SoTheyAreWithFusedAttention) {
  expect_steps_of_the_cpu(DType::Fp32, 1e-4, use_flash);
  expect_steps_of_the_cpu(DType::Bf16, 1e-2, use_flash);
}

TEST_F(GpuTraining, SoTheyAreWithDropoutWhoseMasksAreTheSame) {
  expect_steps_of_the_cpu(DType::Fp32, 1e-4, use_dropout);
  expect_steps_of_the_cpu(DType::Bf16, 1e-2, [](planner::Plan& plan) {
    use_dropout(plan);
    use_flash(plan);
  });
}

TEST_F(GpuTraining, SpansAreInTheOrderOfTheProgram) {
  constexpr std::int64_t kTickNs = 2000;  // twice what CUDA's events resolve
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    const runtime::Job job = cli::make_job(make_plan({.layout = layout}));
    const auto results = run_on_gpu(job, 2);
    for (std::uint32_t rank = 0; rank < results.size(); ++rank) {
      std::map<std::pair<std::int32_t, std::uint32_t>, runtime::MeasuredSpan> ops;
      for (const auto& span : results[rank].spans) {
        EXPECT_LE(span.start_ns, span.end_ns);
        if (span.kernel < 0) ops[{span.step, span.op}] = span;
      }
      for (const auto& [key, span] : ops) {
        for (const auto before :
             job.program.of(RankId{rank}).ops[program::OpId{key.second}].after) {
          EXPECT_GE(span.start_ns + kTickNs, ops.at({key.first, before.value}).end_ns);
        }
        const auto& step = results[rank].steps[static_cast<std::size_t>(key.first)];
        EXPECT_GE(span.start_ns + kTickNs, step.start_ns);
        EXPECT_LE(span.end_ns, step.end_ns + kTickNs);
      }
    }
  }
}

/// Large enough that workspaces of cuBLAS, which no plan knows, count little.
TEST_F(GpuTraining, ThePeakIsThePlannedOne) {
  constexpr std::int64_t kWorkspaces = std::int64_t{64} << 20;
  const planner::Plan plan = make_plan({.layout = {}, .change = [](planner::Plan& made) {
                                          made.model.hidden = 1024;
                                          made.model.heads = 16;
                                          made.model.kv_heads = 16;
                                          made.model.head_size = 64;
                                          made.model.ffn = 4096;
                                          made.model.max_positions = 1024;
                                          made.training.sequence_length = 1024;
                                          made.training.global_batch_size = 2;
                                        }});
  const runtime::Job job = cli::make_job(plan);
  const auto result = run_on_gpu(job, 2);
  const planner::MemoryBound bound = planner::memory_bound(plan, job.program, 0);
  const std::int64_t measured = result[0].steps[1].peak_bytes;
  const std::int64_t point = bound.point.peak().count();
  EXPECT_LE(measured, bound.upper().count() + kWorkspaces);
  EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(point),
              0.1 * static_cast<double>(point) + static_cast<double>(kWorkspaces));
}

}  // namespace
}  // namespace foresail::testing
