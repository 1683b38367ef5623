#include "foresail/sim/disturbance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "foresail/base/error.h"
#include "test_plans.h"

namespace foresail::sim {
namespace {

using planner::Plan;
using test::make_plan;
using test::run;
using topologies::Routing;

constexpr Duration kMilli = std::chrono::milliseconds(1);

SimulatorOptions spray(Fold fold = Fold::Auto) {
  SimulatorOptions options;
  options.network.routing = Routing::Spray;
  options.fold = fold;
  return options;
}

SimulatorOptions with(const Fault& fault, SimulatorOptions options = spray()) {
  options.faults = {fault};
  return options;
}

Fault down(const std::string& target, Duration at, Duration lasts) {
  return {FaultKind::LinkDown, at, lasts, target, 0.5, {}};
}

Duration retry(int exponent) {
  return std::chrono::nanoseconds(4096) * (std::int64_t{1} << exponent);
}

TEST(GpuSlow, PassesOfItsUnitTakeLongerAndTheRestStaysFolded) {
  const Plan plan = make_plan(16, 2, 1);
  const StepOutcome healthy = run(plan, spray());
  const StepOutcome slow = run(plan, with({FaultKind::GpuSlow, {}, {}, "node2.gpu5", 0.5, {}}));
  EXPECT_GT(slow.iteration, healthy.iteration * 3 / 2);
  EXPECT_LT(slow.units.size(), 16u);
  EXPECT_THAT(slow.fold_note, ::testing::HasSubstr("replica 2 stands alone: node2.gpu5 is slow"));
  const StepOutcome unfolded =
      run(plan, with({FaultKind::GpuSlow, {}, {}, "node2.gpu5", 0.5, {}}, spray(Fold::Off)));
  EXPECT_EQ(slow.iteration, unfolded.iteration);
}

TEST(GpuSlow, AfterTheStepItCostsNothing) {
  const Plan plan = make_plan(4, 2, 1);
  const StepOutcome healthy = run(plan, spray());
  const Fault late{FaultKind::GpuSlow, healthy.iteration, {}, "node0.gpu0", 0.1, {}};
  EXPECT_EQ(run(plan, with(late)).iteration, healthy.iteration);
}

TEST(GpuSlow, WorkIsConservedAcrossTheChange) {
  // One node, one stage: the step is that node's own work. Half speed for a while costs half of it.
  Plan plan = make_plan(1, 1, 1);
  const Duration healthy = run(plan, spray()).iteration;
  const Duration lasts = healthy / 4;
  const Fault fault{FaultKind::GpuSlow, healthy / 4, lasts, "node0.gpu3", 0.5, {}};
  const Duration slow = run(plan, with(fault)).iteration;
  EXPECT_NEAR(to_seconds(slow - healthy), to_seconds(lasts) / 2, 0.02 * to_seconds(lasts));
}

TEST(LinkDown, FlowsWaitForTheFirstRetryAfterTheLinkIsBack) {
  Plan plan = make_plan(2, 2, 1);
  SimulatorOptions options = spray();
  options.network.nccl.ib_timeout = 14;  // 67 ms
  const StepOutcome healthy = run(plan, options);
  const Duration lasts = 100 * kMilli;
  const StepOutcome hurt =
      run(plan, with(down("node0.nic0", healthy.iteration / 3, lasts), options));
  EXPECT_GE(hurt.stalls, 1);
  EXPECT_EQ(hurt.longest_stall, 2 * retry(14));
  EXPECT_GT(hurt.iteration, healthy.iteration + 50 * kMilli);
  EXPECT_TRUE(hurt.failure.empty());
}

TEST(LinkDown, LongerThanAllRetriesTheJobFails) {
  Plan plan = make_plan(2, 2, 1);
  SimulatorOptions options = spray();
  options.network.nccl.ib_timeout = 10;
  options.network.nccl.ib_retry_count = 3;
  const StepOutcome failed = run(plan, with(down("node0.nic0", {}, {}), options));
  EXPECT_THAT(failed.failure, ::testing::HasSubstr("3 retries (ib_timeout 10): NCCL aborts"));
  EXPECT_THAT(failed.failure, ::testing::HasSubstr("node0.nic0"));
}

TEST(LinkDown, AdaptiveRetransmissionResumesEarlier) {
  Plan plan = make_plan(2, 2, 1);
  SimulatorOptions plain = spray();
  SimulatorOptions adaptive = plain;
  adaptive.network.nccl.adaptive_retransmission = true;
  const Fault fault = down("node0.nic0", run(plan, plain).iteration / 3, 10 * kMilli);
  const StepOutcome slow = run(plan, with(fault, plain));
  const StepOutcome quick = run(plan, with(fault, adaptive));
  EXPECT_GE(slow.longest_stall, retry(20));
  EXPECT_LT(quick.longest_stall, 20 * kMilli);
  EXPECT_LT(quick.iteration, slow.iteration);
}

TEST(LinkDown, HashedFlowsTakeAnotherUplink) {
  // All uplinks of a leaf but one die: whoever was on them stalls once and then shares the last.
  Plan plan = make_plan(16, 4, 1);
  plan.layout.overlap.pp = false;
  SimulatorOptions options;
  options.network.nccl.ib_timeout = 10;
  const StepOutcome healthy = run(plan, options);
  for (int spine = 0; spine < 3; ++spine) {
    options.faults.push_back(down("leaf0->spine" + std::to_string(spine), {}, {}));
  }
  const StepOutcome hurt = run(plan, options);
  EXPECT_TRUE(hurt.failure.empty()) << hurt.failure;
  EXPECT_GE(hurt.iteration, healthy.iteration);
  const auto last = std::ranges::find(hurt.links, "leaf0->spine3", &LinkLoad::name);
  ASSERT_NE(last, hurt.links.end());
  EXPECT_EQ(last->sharers_max, 4);
  for (const LinkLoad& load : hurt.links) {
    EXPECT_THAT(load.name, ::testing::Not(::testing::AnyOf("leaf0->spine0", "leaf0->spine1",
                                                           "leaf0->spine2")));
  }
}

TEST(LinkDown, EveryRoutingWaitsForALinkWithoutOtherWay) {
  Plan plan = make_plan(2, 2, 1);
  for (const Routing routing : {Routing::Ecmp, Routing::Spray, Routing::Adaptive, Routing::DModK}) {
    for (const bool is_wired : {false, true}) {  // with a change of wiring nothing is bundled
      if (is_wired) {
        plan.cluster.wiring = {{topologies::WiringAction::Cable, "leaf0->node1.nic0", {}, {}, {}}};
        plan.cluster.wiring[0].latency = std::chrono::microseconds(2);
      }
      SimulatorOptions options;
      options.network.routing = routing;
      options.network.nccl.ib_timeout = 14;
      const StepOutcome hurt =
          run(plan, with(down("node0.nic0", std::chrono::milliseconds(3), 200 * kMilli), options));
      EXPECT_TRUE(hurt.failure.empty()) << hurt.failure;
      EXPECT_GE(hurt.stalls, 1) << to_string(routing) << is_wired;
    }
  }
}

TEST(LinkFlap, StallsEveryTimeItGoesDown) {
  Plan plan = make_plan(2, 2, 1);
  SimulatorOptions options = spray();
  options.network.nccl.adaptive_retransmission = true;
  const Duration healthy = run(plan, options).iteration;
  const Fault flap{FaultKind::LinkFlap, {}, {}, "node0.nic0", 0.5, healthy / 20};
  EXPECT_GT(run(plan, with(flap, options)).stalls, 1);
}

TEST(NicSlow, CostsAtMostItsShare) {
  Plan plan = make_plan(16, 1, 1);
  const Duration healthy = run(plan, spray(Fold::Off)).iteration;
  const Duration half =
      run(plan, with({FaultKind::NicSlow, {}, {}, "node3.nic2", 0.5, {}})).iteration;
  const Duration tenth =
      run(plan, with({FaultKind::NicSlow, {}, {}, "node3.nic2", 0.1, {}})).iteration;
  EXPECT_GT(half, healthy);
  EXPECT_GT(tenth, half);
  EXPECT_LT(half, 2 * healthy);
}

TEST(Faults, TargetsThatAreNotThereAreRefused) {
  const topologies::Cluster cluster(test::small_clos(4));
  for (const char* target : {"node9.gpu0", "node0.nic0", "leaf0->spine0", "gpu0", ""}) {
    const Fault fault{FaultKind::GpuSlow, {}, {}, target, 0.5, {}};
    EXPECT_THROW(check_fault(cluster, fault), Error) << target;
  }
  for (const char* target : {"node0.gpu0", "leaf0->spine99", "node0.nic8", "leaf0"}) {
    EXPECT_THROW(check_fault(cluster, down(target, {}, {})), Error) << target;
  }
}

TEST(Jitter, MeanIsOneAndSigmaIsSigma) {
  // run() is deterministic, so a wide tolerance hides nothing: 1 % of 4,096 passes has s.e. 1.6e-4.
  Plan plan = make_plan(4, 1, 1);
  SimulatorOptions options = spray();
  options.jitter.sigma = 0.01;
  const Duration healthy = run(plan, spray()).iteration;
  const StepOutcome shaken = run(plan, options);
  EXPECT_THAT(shaken.fold_note, ::testing::HasSubstr("jitter"));
  EXPECT_NE(shaken.iteration, healthy);
  EXPECT_NEAR(to_seconds(shaken.iteration) / to_seconds(healthy), 1.0, 0.03);
  options.seed = 2;
  EXPECT_NE(run(plan, options).iteration, shaken.iteration);
  options.seed = 1;
  EXPECT_EQ(run(plan, options).iteration, shaken.iteration);
}

TEST(Jitter, MoreReplicasWaitLonger) {
  SimulatorOptions options = spray();
  options.jitter.sigma = 0.05;
  Plan one = make_plan(1, 1, 1);
  Plan many = make_plan(16, 1, 1);
  const double alone =
      to_seconds(run(one, options).iteration) / to_seconds(run(one, spray()).iteration);
  const double all =
      to_seconds(run(many, options).iteration) / to_seconds(run(many, spray()).iteration);
  EXPECT_GT(all, alone);
}

TEST(Traffic, SlowsTheStepThatSharesItsLinks) {
  Plan plan = make_plan(8, 1, 1);
  SimulatorOptions options;
  const Duration alone = run(plan, options).iteration;
  Traffic traffic;
  traffic.pattern = TrafficPattern::Ring;
  for (std::uint32_t d = 0; d < 64; d += 8) traffic.devices.push_back(DeviceId{d});
  traffic.bytes = 64_MiB;
  options.traffic = {traffic};
  EXPECT_GT(run(plan, options).iteration, alone);
}

TEST(Jobs, TwoHalvesOfAClusterShareOnlyTheFabric) {
  Plan first = make_plan(16, 1, 1);
  first.layout.dp = 8;
  first.training.global_batch_size = 64;
  Plan second = first;
  first.placement.device_of = {};
  second.placement.device_of = {};
  for (std::uint32_t r = 0; r < 64; ++r) {  // even and odd nodes
    first.placement.device_of.push_back(DeviceId{r / 8 * 16 + r % 8});
    second.placement.device_of.push_back(DeviceId{r / 8 * 16 + 8 + r % 8});
  }
  const topologies::Cluster cluster(first.cluster);
  const program::Program program = planner::lower(first);
  SimulatorOptions options;
  options.fold = Fold::Off;
  const Simulator simulator(cluster, options);
  const Job mine{&program, &first.placement, {}, false};
  const StepOutcome alone = simulator.run(std::span(&mine, 1));
  const std::vector<Job> both = {mine, {&program, &second.placement, {}, true}};
  const StepOutcome shared = simulator.run(both);
  EXPECT_GE(shared.iteration, alone.iteration);
  ASSERT_EQ(shared.rounds.size(), 1u);
  EXPECT_LE(shared.rounds[0], 1);
  const std::vector<Job> late = {mine, {&program, &second.placement, 2 * alone.iteration, true}};
  EXPECT_EQ(simulator.run(late).iteration, alone.iteration);
}

}  // namespace
}  // namespace foresail::sim
