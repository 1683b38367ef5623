// Training on a device that is not the CPU: where tensors are, what the host reads, in which order
// lanes work. FarDevice stands for the GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "far_device.h"
#include "foresail/runtime/local.h"
#include "foresail/runtime/weights.h"
#include "scratch_folder.h"
#include "staged_network.h"
#include "thread_job.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using models::ContextParallel;
using planner::Layout;

struct Case {
  std::string name;
  Layout layout;
  std::string model = "gpt_tiny";
  std::function<void(planner::Plan&)> change = [](planner::Plan&) {};
};

Layout layout_of(int tp, int pp, int dp) {
  Layout layout;
  layout.tp = tp;
  layout.pp = pp;
  layout.dp = dp;
  layout.sequence_parallel = tp > 1;
  layout.microbatch_size = 2;
  return layout;
}

void use_wide_experts(planner::Plan& plan) {
  plan.model.experts = {.count = 4, .per_token = 2, .ffn = 128, .shared = 1, .shared_ffn = 128};
}

std::vector<Case> cases() {
  return {
      {"one rank", layout_of(1, 1, 1)},
      {"tensor, pipeline and data parallel", layout_of(2, 2, 2)},
      {"Llama's parts, interleaved, recomputed",
       changed(layout_of(2, 2, 1),
               [](Layout& layout) {
                 layout.v = 2;
                 layout.overlap.pp = true;
                 layout.schedule = planner::ScheduleKind::Interleaved;
                 layout.recompute = models::Recompute::Full;
               }),
       "gpt_tiny", use_llama_parts},
      {"ZeRO-3, overlapped, tied",
       changed(layout_of(1, 1, 4),
               [](Layout& layout) {
                 layout.zero_stage = 3;
                 layout.overlap.dp = true;
               }),
       "gpt_tiny_tied"},
      {"ring", changed(layout_of(1, 1, 1),
                       [](Layout& layout) {
                         layout.cp = 4;
                         layout.cp_kind = ContextParallel::Ring;
                       })},
      {"split backward passes, parallel block",
       changed(layout_of(2, 2, 1),
               [](Layout& layout) { layout.schedule = planner::ScheduleKind::ZbH1; }),
       "gpt_tiny", [](planner::Plan& plan) { plan.model.block = models::Block::Parallel; }},
      {"experts by data", changed(layout_of(1, 1, 2), [](Layout& layout) { layout.ep = 2; }),
       "gpt_tiny", use_wide_experts},
      {"experts of a capacity", changed(layout_of(1, 1, 2), [](Layout& layout) { layout.ep = 2; }),
       "gpt_tiny",
       [](planner::Plan& plan) {
         use_wide_experts(plan);
         plan.model.experts.capacity_factor = 1;
       }},
      {"fused attention, gathered keys",
       changed(layout_of(1, 1, 1),
               [](Layout& layout) {
                 layout.cp = 2;
                 layout.cp_kind = ContextParallel::AllGather;
               }),
       "gpt_tiny",
       [](planner::Plan& plan) {
         use_llama_parts(plan);
         plan.stack.flash_attention = true;
       }},
      {"dropout, gathered keys",
       changed(layout_of(2, 1, 1),
               [](Layout& layout) {
                 layout.cp = 2;
                 layout.cp_kind = ContextParallel::AllGather;
                 layout.recompute = models::Recompute::Selective;
               }),
       "gpt_tiny", [](planner::Plan& plan) { plan.model.dropout = true; }},
      {"dropout in fused attention", layout_of(1, 1, 2), "gpt_tiny",
       [](planner::Plan& plan) {
         plan.model.dropout = true;
         plan.stack.flash_attention = true;
       }},
      {"bf16 and LAMB", changed(layout_of(2, 1, 2), [](Layout& layout) { layout.zero_stage = 1; }),
       "gpt_tiny",
       [](planner::Plan& plan) {
         plan.training.precision = DType::Bf16;
         plan.training.optimizer = program::Optimizer::Lamb;
       }},
  };
}

runtime::Job job_of(const Case& each) {
  return cli::make_job(
      make_plan({.layout = each.layout, .model = each.model, .change = each.change}));
}

/// The ranks' devices, and a network through host memory.
class FarJob {
 public:
  explicit FarJob(const runtime::Job& job) : job_(job) {
    for (int rank = 0; rank < job.program.grid.world_size(); ++rank) {
      devices_.push_back(std::make_unique<FarDevice>(rank));
    }
  }
  FarDevice& device(std::size_t rank) { return *devices_.at(rank); }

  std::vector<RankResult> run(int steps, const JobHooks& more = {}) {
    JobHooks hooks = more;
    hooks.endpoint = [this](RankId) { return make_staged_endpoint(network_.endpoint()); };
    hooks.device = [this](RankId rank) { return devices_.at(rank.value).get(); };
    hooks.before = [&](runtime::Trainer& trainer, RankId rank) {
      trainer.run_on_compute_lane([&] { device(rank.value).serve_autograd(); });
      if (more.before) more.before(trainer, rank);
    };
    return run_job(job_, steps, hooks);
  }

 private:
  const runtime::Job& job_;
  runtime::LocalNetwork network_;
  std::vector<std::unique_ptr<FarDevice>> devices_;
};

std::vector<RankResult> run_on_cpu(const runtime::Job& job, int steps) {
  runtime::LocalNetwork network;
  JobHooks hooks;
  hooks.endpoint = [&](RankId) { return network.endpoint(); };
  return run_job(job, steps, hooks);
}

/// Kernels are the CPU's in both, but for what torch puts together of others where a backend has
/// none (layer norm), the squares of norms and the optimizer, which round otherwise.
TEST(Device, StepsAreThoseOfTheCpu) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    const runtime::Job job = job_of(each);
    const auto near = run_on_cpu(job, 3);
    const auto far = FarJob(job).run(3);
    ASSERT_EQ(near.size(), far.size());
    EXPECT_FLOAT_EQ(static_cast<float>(far[0].steps[0].loss),
                    static_cast<float>(near[0].steps[0].loss));
    for (std::size_t step = 0; step < 3; ++step) {
      const auto& truth = near[0].steps[step];
      const double bound = job.training.precision == DType::Fp32 ? 1e-5 : 1e-3;
      EXPECT_NEAR(far[0].steps[step].loss, truth.loss, bound * truth.loss);
      EXPECT_NEAR(far[0].steps[step].gradient_norm, truth.gradient_norm,
                  10 * bound * truth.gradient_norm);
      EXPECT_EQ(far[0].steps[step].executed_digest, truth.executed_digest);
    }
  }
}

/// One rank has no network, so that all reads are the runtime's: losses and norms, once a step.
TEST(Device, TheHostReadsTwoThingsAStep) {
  const runtime::Job job = job_of(cases().front());
  FarJob far(job);
  std::int64_t before = 0;
  JobHooks hooks;
  hooks.before = [&](runtime::Trainer&, RankId) { before = far_reads(); };
  far.run(3, hooks);
  EXPECT_EQ(far_reads() - before, 3 * 2);
}

/// Where an op follows another, its stream waits for the other's; and an op ends behind all
/// kernels of the lanes that it uses.
void expect_order(FarDevice& device, const runtime::Job& job, RankId rank,
                  const RankResult& result) {
  std::map<std::pair<std::int32_t, std::uint32_t>, const runtime::MeasuredSpan*> ops;
  for (const auto& span : result.spans) {
    if (span.kernel < 0) ops[{span.step, span.op}] = &span;
  }
  std::size_t across = 0;
  for (const auto& span : result.spans) {
    const runtime::MeasuredSpan& op = *ops.at({span.step, span.op});
    if (span.kernel >= 0) {
      EXPECT_TRUE(device.is_behind(span.start_ns, op.start_ns));
      EXPECT_TRUE(device.is_behind(op.end_ns, span.end_ns));
      continue;
    }
    for (const program::OpId before : job.program.of(rank).ops[program::OpId{span.op}].after) {
      const runtime::MeasuredSpan& other = *ops.at({span.step, before.value});
      across += other.lane != span.lane ? 1 : 0;
      EXPECT_TRUE(device.is_behind(span.start_ns, other.end_ns));
    }
  }
  if (job.program.grid.world_size() > 1) {
    EXPECT_GT(across, 0U);
  }
}

TEST(Device, LanesWaitForEachOther) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    const runtime::Job job = job_of(each);
    FarJob far(job);
    const auto results = far.run(1);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      SCOPED_TRACE(rank);
      expect_order(far.device(rank), job, RankId{static_cast<std::uint32_t>(rank)}, results[rank]);
    }
  }
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Initial weights, and the same read from the file on the device and written again.
TEST(Device, WeightsAreBitwiseThoseOfTheCpu) {
  const Case each{"bf16", layout_of(2, 1, 2), "gpt_tiny", [](planner::Plan& plan) {
                    plan.layout.zero_stage = 1;
                    plan.training.precision = DType::Bf16;
                  }};
  const runtime::Job job = job_of(each);
  const auto folder = test::scratch_folder();
  for (const char* name : {"near", "far", "again"}) {
    runtime::create_weights(folder / name, job.model, job.training.sequence_length);
  }
  const auto writes = [&](const char* name) {
    return
        [path = folder / name](runtime::Trainer& trainer, RankId) { trainer.write_weights(path); };
  };
  runtime::LocalNetwork network;
  JobHooks near;
  near.endpoint = [&](RankId) { return network.endpoint(); };
  near.after = writes("near");
  run_job(job, 0, near);
  JobHooks far;
  far.after = writes("far");
  FarJob(job).run(0, far);
  JobHooks again;
  again.before = [&](runtime::Trainer& trainer, RankId) { trainer.read_weights(folder / "near"); };
  again.after = writes("again");
  FarJob(job).run(0, again);
  const std::string truth = bytes_of(folder / "near");
  EXPECT_GT(truth.size(), 1000U);
  EXPECT_TRUE(bytes_of(folder / "far") == truth);
  EXPECT_TRUE(bytes_of(folder / "again") == truth);
}

/// The stand-in keeps what it promises.
TEST(FarDeviceDeathTest, RefusesWhatACudaDeviceWould) {
  const at::TensorOptions options = at::device(FarDevice(0).place()).dtype(at::kFloat);
  const at::Tensor far = at::ones({4}, options);
  EXPECT_THROW(far + at::ones({4}), c10::Error);
  EXPECT_THROW(far + at::ones({4}, at::device(FarDevice(1).place())), c10::Error);
  EXPECT_THROW(far[0].item<float>(), c10::Error);
  EXPECT_DEATH(far.data_ptr<float>()[0] = 2, "");
  EXPECT_TRUE(at::equal((far.narrow(0, 1, 2) * 2).cpu(), at::full({2}, 2.0)));
}

}  // namespace
}  // namespace foresail::testing
