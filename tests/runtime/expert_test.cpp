// Experts that are spread over ranks train the same model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "expert_routing.h"

#include "observed_step.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using planner::ScheduleKind;

constexpr int kSteps = 3;

struct Degrees {
  int tp = 1, cp = 1, dp = 1, pp = 1, ep = 1, etp = 1;
};

Layout layout_of(const Degrees& degrees) {
  Layout layout;
  layout.tp = degrees.tp;
  layout.sequence_parallel = degrees.tp > 1;
  layout.cp = degrees.cp;
  layout.dp = degrees.dp;
  layout.pp = degrees.pp;
  layout.ep = degrees.ep;
  layout.etp = degrees.etp;
  return layout;
}

Layout with_zero(Layout layout, int zero_stage, bool overlaps) {
  layout.zero_stage = zero_stage;
  layout.overlap.dp = overlaps;
  return layout;
}

Layout with_schedule(Layout layout, ScheduleKind kind, int v) {
  layout.schedule = kind;
  layout.v = v;
  return layout;
}

std::vector<Layout> layouts() {
  Layout recomputed = layout_of({.dp = 2, .ep = 2});
  recomputed.recompute = models::Recompute::Full;
  return {
      layout_of({.dp = 2, .ep = 2}),
      layout_of({.dp = 4, .ep = 4}),
      layout_of({.tp = 2, .ep = 2}),
      layout_of({.tp = 2, .etp = 2}),
      layout_of({.tp = 2, .dp = 2, .ep = 2, .etp = 2}),
      layout_of({.tp = 2, .dp = 2, .ep = 2}),
      layout_of({.dp = 2, .etp = 2}),
      layout_of({.cp = 2, .dp = 2, .ep = 4}),
      layout_of({.dp = 2, .pp = 2, .ep = 2}),
      with_zero(layout_of({.dp = 2}), 1, false),
      with_zero(layout_of({.dp = 4, .ep = 2}), 2, true),
      with_zero(layout_of({.dp = 4, .ep = 2}), 3, true),
      with_zero(layout_of({.tp = 2}), 3, false),
      with_schedule(layout_of({.dp = 2, .pp = 2, .ep = 2}), ScheduleKind::ZbH1, 1),
      with_schedule(layout_of({.pp = 2}), ScheduleKind::DualPipe, 2),
      recomputed,
  };
}

void use_balanced_experts(planner::Plan& plan) {
  use_shared_experts(plan);
  plan.model.experts.balance_loss = 0.5;
  plan.layout.overlap.ep = plan.layout.dp == 2;
}

/// Enough for every copy, so that nothing is dropped.
void use_capacity(planner::Plan& plan) {
  use_experts(plan);
  plan.model.experts.capacity_factor = 2;
}

TEST(Experts, EverySpreadEqualsOneProcess) {
  const std::vector<std::function<void(planner::Plan&)>> changes{use_experts, use_balanced_experts,
                                                                 use_capacity};
  std::vector<Curve> truths;
  for (const auto& change : changes) {
    truths.push_back(train({.layout = {}, .change = change}, kSteps));
  }
  const std::vector<Layout> all = layouts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::size_t at : {i % changes.size(), (i + 1) % changes.size()}) {
      SCOPED_TRACE(std::to_string(at) + ": " + describe(all[i]));
      expect_equal(train({.layout = all[i], .change = changes[at]}, kSteps), truths[at]);
    }
  }
}

TEST(Experts, WithACapacityGemmsAreThoseOfTheProgramAndTooManyTokensAreDropped) {
  const auto change = [](planner::Plan& plan) {
    use_balanced_experts(plan);
    plan.model.experts.capacity_factor = 0.5;
  };
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    expect_step_of_program(cli::make_job(make_plan({.layout = layout, .change = change})));
  }
}

TEST(Experts, TheBalanceLossChangesTheGradient) {
  const auto with_loss = [](double alpha) {
    return [alpha](planner::Plan& plan) {
      use_experts(plan);
      plan.model.experts.balance_loss = alpha;
    };
  };
  const Curve none = train({.layout = {}, .change = with_loss(0)}, 1);
  const Curve some = train({.layout = {}, .change = with_loss(1)}, 1);
  EXPECT_EQ(none.front().loss, some.front().loss);
  EXPECT_GT(std::abs(some.front().gradient_norm / none.front().gradient_norm - 1), 1e-4);
}

/// The formula of DeepSeek-V3 (2024), section 2.1.2, through torch's own derivatives.
TEST(Experts, TheGradientOfTheBalanceLossIsThatOfItsFormula) {
  models::Experts experts{.count = 4, .per_token = 2, .balance_loss = 0.3};
  const std::int64_t samples = 2;
  const std::int64_t length = 8;
  const at::Tensor logits = at::linspace(-3, 5, samples * length * experts.count)
                                .view({samples * length, experts.count})
                                .mul(1.7)
                                .sin();
  const runtime::Routing routing = runtime::route(experts, logits);
  const at::Tensor counts = runtime::count_by_sample(routing, samples);
  EXPECT_EQ(counts.sum().item<double>(), samples * length * experts.per_token);
  const at::Tensor leaf = routing.probabilities.detach().clone().requires_grad_();
  const at::Tensor mean = leaf.view({length, samples, experts.count}).mean(0);
  const at::Tensor fraction = counts * experts.count / (experts.per_token * length);
  const at::Tensor loss = (fraction * mean).sum(1).mean() * experts.balance_loss;
  torch::autograd::backward({loss}, {});
  const at::Tensor gradient = runtime::balance_gradient(
      {.experts = &experts, .sequence_length = length, .global_batch_size = samples}, counts,
      samples * length);
  EXPECT_TRUE(at::allclose(gradient, leaf.grad(), 1e-5, 1e-8));
}

/// GEMMs of `from` that are not in `others`; both sorted.
std::vector<GemmShape> without(const std::vector<GemmShape>& from,
                               const std::vector<GemmShape>& others) {
  std::vector<GemmShape> rest;
  std::ranges::set_difference(from, others, std::back_inserter(rest));
  return rest;
}

bool is_of_routed_experts(const Kernel& kernel) {
  return kernel.kind == KernelKind::Gemm && kernel.name.starts_with("experts.");
}

TEST(Experts, WithoutACapacityAllElseIsThatOfTheProgramAndEveryCopyIsComputed) {
  for (const Layout& layout : layouts()) {
    if (layout.recompute == models::Recompute::Full) continue;
    SCOPED_TRACE(describe(layout));
    const runtime::Job job = cli::make_job(make_plan({.layout = layout, .change = use_experts}));
    std::vector<GemmShape> routed;
    std::int64_t rows = 0;
    for (const auto& [rank, observed] : observe_step(job)) {
      const Observed expected = expected_of(job, rank);
      EXPECT_EQ(observed.executed, expected.executed);
      EXPECT_EQ(observed.digest, expected.digest);
      std::vector<GemmShape> fixed;
      for (const program::Op& op : job.program.of(rank).ops) {
        if (op.kind != program::OpKind::Compute) continue;
        for (const Kernel& kernel : job.program.kernel_lists[op.kernels.value].kernels) {
          if (kernel.kind != KernelKind::Gemm || is_of_routed_experts(kernel)) continue;
          fixed.emplace_back(kernel.batch, kernel.m, kernel.n, kernel.k);
        }
      }
      std::ranges::sort(fixed);
      EXPECT_TRUE(std::ranges::includes(observed.gemms, fixed));
      // What is left is the experts': forward, input and weight gradients of two matrices.
      const std::int64_t width = job.model.experts.ffn / job.split.expert_tp;
      for (const auto& [batch, m, n, k] : without(observed.gemms, fixed)) {
        EXPECT_EQ(batch, 1);
        if (n == width && k == job.model.hidden) rows += m;  // fc1, and the gradient behind fc2
      }
    }
    // Every rank of expert tensor parallelism computes a slice of each.
    const std::int64_t copies = job.training.global_batch_size * job.training.sequence_length *
                                job.model.experts.per_token * job.model.layers;
    EXPECT_EQ(rows, 2 * copies * job.split.expert_tp);
  }
}

}  // namespace
}  // namespace foresail::testing
