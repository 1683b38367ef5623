#include "observed_step.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

namespace foresail::testing {
namespace {

/// What torch ran in this thread.
thread_local std::vector<GemmShape> recorded;
thread_local double attention_flops = 0;
thread_local int attention_depth = 0;

constexpr const char* kAttention = "foresail::attention";

std::unique_ptr<at::ObserverContext> record(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name == kAttention) ++attention_depth;
  const bool has_summand = name == "aten::addmm" || name == "aten::baddbmm_";
  if (name != "aten::mm" && name != "aten::bmm" && !has_summand) return nullptr;
  const std::size_t first = has_summand ? 1 : 0;
  const at::Tensor a = function.inputs()[first].toTensor();
  const at::Tensor b = function.inputs()[first + 1].toTensor();
  const GemmShape shape(a.dim() == 3 ? a.size(0) : 1, a.size(-2), b.size(-1), a.size(-1));
  if (attention_depth == 0) {
    recorded.push_back(shape);
    return nullptr;
  }
  const auto [batch, m, n, k] = shape;
  attention_flops += 2 * static_cast<double>(batch * m) * static_cast<double>(n * k);
  return nullptr;
}

void end(const at::RecordFunction& function, at::ObserverContext*) {
  if (std::string(function.name()) == kAttention) --attention_depth;
}

std::vector<GemmShape> sorted(std::vector<GemmShape> shapes) {
  std::ranges::sort(shapes);
  return shapes;
}

/// FLOPs of the Program's fused attention.
double attention_of_program(const runtime::Job& job, RankId rank) {
  double flops = 0;
  for (const program::Op& op : job.program.of(rank).ops) {
    if (op.kind != program::OpKind::Compute) continue;
    for (const Kernel& kernel : job.program.kernel_lists[op.kernels.value].kernels) {
      if (kernel.kind == KernelKind::Attention) flops += kernel.flops.count();
    }
  }
  return flops;
}

std::vector<GemmShape> gemms_of_program(const runtime::Job& job, RankId rank) {
  std::vector<GemmShape> shapes;
  for (const program::Op& op : job.program.of(rank).ops) {
    if (op.kind != program::OpKind::Compute) continue;
    for (const Kernel& kernel : job.program.kernel_lists[op.kernels.value].kernels) {
      if (kernel.kind != KernelKind::Gemm) continue;
      shapes.emplace_back(kernel.batch, kernel.m, kernel.n, kernel.k);
    }
  }
  return sorted(shapes);
}

}  // namespace

std::map<RankId, Observed> observe_step(const runtime::Job& job) {
  JobHooks hooks;
  hooks.before = [](runtime::Trainer& trainer, RankId) {
    trainer.run_on_compute_lane([] {
      recorded.clear();
      attention_flops = 0;
      at::addThreadLocalCallback(at::RecordFunctionCallback(record, end).needsInputs(true));
    });
  };
  std::mutex mutex;
  std::map<RankId, Observed> by_rank;
  hooks.after = [&](runtime::Trainer& trainer, RankId rank) {
    trainer.run_on_compute_lane([&] {
      const std::scoped_lock lock(mutex);
      by_rank[rank].gemms = sorted(recorded);
      by_rank[rank].attention_flops = attention_flops;
      by_rank[rank].executed = trainer.executed();
    });
  };
  const std::vector<RankResult> results = run_job(job, 1, hooks);
  for (auto& [rank, observed] : by_rank) {
    observed.digest = results[rank.value].steps.front().executed_digest;
  }
  return by_rank;
}

Observed expected_of(const runtime::Job& job, RankId rank) {
  Observed expected;
  expected.gemms = gemms_of_program(job, rank);
  expected.attention_flops = attention_of_program(job, rank);
  program::ProgramDigest digest;
  const auto& ops = job.program.of(rank).ops;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    expected.executed[ops[program::OpId{i}].lane].push_back(program::OpId{i});
    digest.add(job.program, rank, program::OpId{i});
  }
  expected.digest = digest.hex();
  return expected;
}

void expect_step_of_program(const runtime::Job& job) {
  const std::map<RankId, Observed> ranks = observe_step(job);
  EXPECT_EQ(static_cast<int>(ranks.size()), job.program.grid.world_size());
  for (const auto& [rank, observed] : ranks) {
    SCOPED_TRACE(rank.value);
    const Observed expected = expected_of(job, rank);
    EXPECT_FALSE(observed.gemms.empty());
    EXPECT_EQ(observed.gemms, expected.gemms);
    // Tiles that are seen in part are computed whole.
    EXPECT_GE(observed.attention_flops, expected.attention_flops);
    EXPECT_EQ(observed.attention_flops > 0, expected.attention_flops > 0);
    EXPECT_EQ(observed.executed, expected.executed);
    EXPECT_EQ(observed.digest, expected.digest);
  }
}

}  // namespace foresail::testing
