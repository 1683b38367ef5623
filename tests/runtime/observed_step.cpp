#include "observed_step.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

namespace foresail::testing {
namespace {

/// GEMMs that torch ran in this thread.
thread_local std::vector<GemmShape> recorded;

std::unique_ptr<at::ObserverContext> record(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name != "aten::mm" && name != "aten::addmm" && name != "aten::bmm") return nullptr;
  // addmm has the summand in front.
  const std::size_t first = name == "aten::addmm" ? 1 : 0;
  const at::Tensor a = function.inputs()[first].toTensor();
  const at::Tensor b = function.inputs()[first + 1].toTensor();
  const bool is_batched = name == "aten::bmm";
  recorded.emplace_back(is_batched ? a.size(0) : 1, a.size(-2), b.size(-1), a.size(-1));
  return nullptr;
}

std::vector<GemmShape> sorted(std::vector<GemmShape> shapes) {
  std::ranges::sort(shapes);
  return shapes;
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
      at::addThreadLocalCallback(at::RecordFunctionCallback(record).needsInputs(true));
    });
  };
  std::mutex mutex;
  std::map<RankId, Observed> by_rank;
  hooks.after = [&](runtime::Trainer& trainer, RankId rank) {
    trainer.run_on_compute_lane([&] {
      const std::scoped_lock lock(mutex);
      by_rank[rank].gemms = sorted(recorded);
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
    EXPECT_EQ(observed.executed, expected.executed);
    EXPECT_EQ(observed.digest, expected.digest);
  }
}

}  // namespace foresail::testing
