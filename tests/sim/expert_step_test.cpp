// Experts and kinds of context parallelism in simulated steps: exchanges against closed forms.
#include <gtest/gtest.h>

#include "foresail/sim/network.h"
#include "test_plans.h"

namespace foresail::sim {
namespace {

using planner::Plan;
using program::Axis;

// 16 layers with 8 experts each on `nodes` nodes: every GPU a replica, ep 8 within a node.
Plan mixture_plan(int nodes) {
  Plan plan = test::make_plan(nodes, 1, 1);
  plan.model.layers = 4;
  plan.model.experts = {.count = 8, .per_token = 2, .ffn = 4096};
  plan.layout.tp = 1;
  plan.layout.dp = 8 * nodes;
  plan.layout.ep = 8;
  plan.layout.sequence_parallel = false;
  plan.training.global_batch_size = 2 * plan.layout.dp;
  return plan;
}

/// Copies of an expert lie side by side, so that those who exchange tokens are 8 / nodes apart.
Plan spread_plan(int nodes) {
  Plan plan = mixture_plan(nodes);
  plan.layout.rank_order = {Axis::Tp, Axis::Cp, Axis::Dp, Axis::Ep, Axis::Pp};
  return plan;
}

SimulatorOptions spray() {
  SimulatorOptions options;
  options.network.routing = topologies::Routing::Spray;
  return options;
}

double seconds(const Plan& plan, const SimulatorOptions& options) {
  EXPECT_TRUE(planner::check(plan).broken.empty()) << planner::check(plan).broken.front().message;
  return to_seconds(test::run(plan, options).iteration);
}

// Time of a kernel of the first forward pass.
double kernel_seconds(const Plan& plan, const SimulatorOptions& options, const std::string& name) {
  const topologies::Cluster cluster(plan.cluster);
  const program::Program program = planner::lower(plan);
  const StepOutcome outcome = Simulator(cluster, options).run(program, plan.placement);
  const std::vector<Kernel>& kernels = program.kernel_lists.front().kernels;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i].name != name) continue;
    const StepOutcome::OpTime& time = outcome.kernel_times.front()[i];
    return to_seconds(time.end - time.start);
  }
  ADD_FAILURE() << name;
  return 0;
}

TEST(ExpertStep, FoldedEqualsUnfolded) {
  for (const Plan& plan : {mixture_plan(4), spread_plan(4)}) {
    SimulatorOptions options = spray();
    const double folded = seconds(plan, options);
    options.fold = Fold::Off;
    EXPECT_EQ(folded, seconds(plan, options));
  }
}

// Four copies of each expert: in two groups two ranks share one, in four groups each keeps its own.
TEST(ExpertStep, FoldedEqualsUnfoldedInGroupsThatShard) {
  for (Plan plan : {mixture_plan(4), spread_plan(4)}) {
    plan.training.optimizer = program::Optimizer::Lamb;
    for (const int shard_size : {8, 16}) {
      for (const int zero : {1, 3}) {
        plan.layout.shard_size = shard_size;
        plan.layout.zero_stage = zero;
        SimulatorOptions options = spray();
        const double folded = seconds(plan, options);
        options.fold = Fold::Off;
        EXPECT_EQ(folded, seconds(plan, options)) << shard_size << " " << zero;
      }
    }
  }
}

// Every rank sends 7/8 of its rows over its own NVLink port.
TEST(ExpertStep, AnExchangeWithinANodeTakesItsBytesOverNvlink) {
  const Plan plan = mixture_plan(2);
  const topologies::CostConstants& constants = plan.cluster.device.constants;
  const double bytes = 2048.0 * 2 * 4096 * 2 * 7 / 8;
  const double link = plan.cluster.device.nvlink.bytes_per_second() * constants.nvlink;
  const double latency = 1e-6 * (constants.collective_base_us + constants.collective_step_us);
  EXPECT_NEAR(kernel_seconds(plan, spray(), "ep.dispatch"), bytes / link + latency, 1e-8);
}

// 8 nodes, the 8 ranks of an exchange on one node each: all 8 groups share nothing but fabric, and
// 7/8 of the rows cross each GPU's own NIC.
TEST(ExpertStep, AnExchangeAcrossNodesLoadsTheNics) {
  const Plan plan = spread_plan(8);
  const topologies::CostConstants& constants = plan.cluster.device.constants;
  const double bytes = 2048.0 * 2 * 4096 * 2 * 7 / 8;
  const double nic = plan.cluster.node.nic_bandwidth.bytes_per_second() * constants.nic;
  const double latency = 1e-6 * (constants.collective_base_us + constants.network_step_us);
  const double alone = bytes / nic + latency;
  EXPECT_NEAR(kernel_seconds(plan, spray(), "ep.dispatch"), alone, 0.01 * alone);
  EXPECT_GT(seconds(plan, spray()), seconds(mixture_plan(8), spray()));
}

// With one NIC for 8 GPUs the groups of a node share it: 8 times as long, but alone as long as
// ever.
TEST(ExpertStep, GroupsOfOneStageShareTheNetwork) {
  Plan plan = spread_plan(8);
  plan.cluster.node.nics = 1;
  plan.cluster.fabric.rails = 1;
  const double shared = kernel_seconds(plan, spray(), "ep.dispatch");
  SimulatorOptions analytic = spray();
  analytic.fidelity = Fidelity::Analytic;
  const double alone = kernel_seconds(plan, analytic, "ep.dispatch");
  const topologies::CostConstants& constants = plan.cluster.device.constants;
  const double latency = 1e-6 * (constants.collective_base_us + constants.network_step_us);
  EXPECT_NEAR((shared - latency) / (alone - latency), 8, 0.01);
}

TEST(ExpertStep, HotExpertsSetThePace) {
  Plan plan = mixture_plan(2);
  const double even = seconds(plan, spray());
  plan.training.expert_load = {{0.5, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05}};
  // The first rank gets 4 times its share of rows: its all-to-all and GEMMs take as much longer.
  EXPECT_GT(seconds(plan, spray()), 1.5 * even);
  EXPECT_GT(kernel_seconds(plan, spray(), "experts.activation"),
            3 * kernel_seconds(mixture_plan(2), spray(), "experts.activation"));
}

TEST(ExpertStep, SharedExpertsHideExchanges) {
  Plan plan = spread_plan(8);
  plan.model.experts.shared = 1;
  plan.model.experts.shared_ffn = 4096;
  const double behind = seconds(plan, spray());
  plan.layout.overlap.ep = true;
  EXPECT_LT(seconds(plan, spray()), behind);
}

// Attention alone on 4 nodes' ranks: `cp` 4 of one GPU each.
Plan context_plan(models::ContextParallel kind, double overlap_slowdown) {
  Plan plan = test::make_plan(4, 1, 1);
  plan.model.layers = 1;
  plan.model.vocab = 128;
  plan.layout.tp = 8;
  plan.layout.cp = 4;
  plan.layout.dp = 1;
  plan.layout.cp_kind = kind;
  plan.training.sequence_length = 16384;
  plan.training.global_batch_size = 1;
  plan.cluster.device.constants.overlap_slowdown = overlap_slowdown;
  plan.cluster.device.constants.overlap_inefficiency = 0;
  return plan;
}

// From the start of the first attention kernel to the end of the last, against the sum of what is
// computed: what exchanges expose.
double exposed_in_ring(const Plan& plan, double& block, double& exchange) {
  const topologies::Cluster cluster(plan.cluster);
  const program::Program program = planner::lower(plan);
  const StepOutcome outcome = Simulator(cluster, spray()).run(program, plan.placement);
  const std::vector<Kernel>& kernels = program.kernel_lists.front().kernels;
  double first = -1;
  double last = 0;
  double computed = 0;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const StepOutcome::OpTime& time = outcome.kernel_times.front()[i];
    const double span = to_seconds(time.end - time.start);
    if (kernels[i].name.starts_with("cp.exchange_kv")) exchange = span;
    if (kernels[i].kind != KernelKind::Attention) continue;
    if (first < 0) first = to_seconds(time.start - SimTime{});
    last = to_seconds(time.end - SimTime{});
    computed += span;
    block = span;
  }
  return last - first - computed;
}

// (c - 1) max(0, x - a) of blocks of a and exchanges of x.
TEST(ContextParallelStep, ARingExposesWhatBlocksDoNotHide) {
  double block = 0;
  double exchange = 0;
  Plan plan = context_plan(models::ContextParallel::Ring, 1);
  const double exposed = exposed_in_ring(plan, block, exchange);
  EXPECT_GT(exchange, block);
  EXPECT_NEAR(exposed, 3 * (exchange - block), 1e-9);
  // Blocks grow with the square of the sequence, exchanges in proportion.
  plan.training.sequence_length *= 8;
  EXPECT_NEAR(exposed_in_ring(plan, block, exchange), 0, 1e-9);
  EXPECT_LT(exchange, block);
}

// Both all-to-alls of a forward pass are exposed, each 3/4 of its bytes over a NIC.
TEST(ContextParallelStep, AllToAllExposesItsExchanges) {
  const Plan plan = context_plan(models::ContextParallel::AllToAll, 1);
  const topologies::CostConstants& constants = plan.cluster.device.constants;
  const double nic = plan.cluster.node.nic_bandwidth.bytes_per_second() * constants.nic;
  const double latency = 1e-6 * (constants.collective_base_us + constants.network_step_us);
  const double tokens = 16384.0 / 4;
  const double widths = 3 * 4096 / 8.0;
  EXPECT_NEAR(kernel_seconds(plan, spray(), "cp.scatter_heads"),
              tokens * widths * 2 * 3 / 4 / nic + latency, 1e-8);
}

TEST(SendRecv, TakesOneMessageOfLatencyAndItsBytes) {
  const topologies::Cluster cluster(test::small_clos(4));
  Network network(cluster, spray().network, training_pace(cluster.device()), 1);
  std::vector<DeviceId> devices;
  for (const std::uint32_t d : {0u, 8u, 16u, 24u}) devices.push_back(DeviceId{d});
  const Bytes bytes(1 << 24);
  const double time =
      to_seconds(network.alone(network.collective(Collective::SendRecv, bytes, devices, 1)));
  const topologies::CostConstants& constants = cluster.device().constants;
  const double nic = cluster.node().nic_bandwidth.bytes_per_second() * constants.nic;
  const double latency = 1e-6 * (constants.collective_base_us + constants.network_step_us);
  EXPECT_NEAR(time, static_cast<double>(bytes.count()) / nic + latency, 1e-8);
}

}  // namespace
}  // namespace foresail::sim
