#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/sim/network.h"
#include "foresail/sim/simulator.h"
#include "test_clusters.h"
#include "test_plans.h"

// Sharing pfc where steps and collectives meet it: in a Network.
namespace foresail::sim {
namespace {

using test::first_devices;
using test::make_plan;
using test::small_clos;
using topologies::Cluster;
using topologies::Sharing;

topologies::NetworkOptions with(Sharing sharing) {
  topologies::NetworkOptions options;
  options.routing = topologies::Routing::DModK;
  options.sharing = sharing;
  return options;
}

struct Message {
  std::uint32_t from, to;
  std::int64_t bytes = 1'000'000'000;
};

/// Times until each message's last byte is sent, all started at 0.
std::vector<double> run_messages(const Cluster& cluster, Sharing sharing,
                                 const std::vector<Message>& messages) {
  Network network(cluster, with(sharing), nccl_pace(cluster.device()), 1);
  FluidNetwork& fluid = network.fluid();
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const TransferPlan plan = network.message(DeviceId{messages[m].from}, DeviceId{messages[m].to},
                                              Bytes(messages[m].bytes));
    fluid.start(plan.routes.front(), plan.amount, m, SimTime{});
  }
  std::vector<double> ends(messages.size());
  fluid.settle(SimTime{});
  while (const std::optional<SimTime> now = fluid.next_finish()) {
    while (fluid.next_finish() == now) ends[fluid.finish_next()] = to_seconds(*now - SimTime{});
    fluid.settle(*now);
  }
  return ends;
}

// Nodes of 8 GPUs; GPU g of node n is device 8 n + g and sits on rail g. Into GPU 0 of node 4 send
// GPU 0 of nodes 0 to 3, which share a leaf and its four uplinks; D-mod-k sends all that goes to
// one destination up the same link.
const std::vector<Message> kIncast = {{0, 32}, {8, 32}, {16, 32}, {24, 32}};

TEST(PfcNetwork, AMessageAloneRunsAtItsFullRateExactly) {
  const Cluster cluster(small_clos(8));
  const std::vector<Message> apart = {{0, 32}, {9, 41}};
  EXPECT_EQ(run_messages(cluster, Sharing::Pfc, apart),
            run_messages(cluster, Sharing::MaxMin, apart));
}

TEST(PfcNetwork, AnIncastTakesAsLongAsByMaxMin) {
  const Cluster cluster(small_clos(8));
  const std::vector<double> by_flow = run_messages(cluster, Sharing::MaxMin, kIncast);
  const std::vector<double> by_ingress = run_messages(cluster, Sharing::Pfc, kIncast);
  for (std::size_t m = 0; m < kIncast.size(); ++m) {
    EXPECT_NEAR(by_ingress[m], by_flow[m], 1e-6 * by_flow[m]);
  }
}

TEST(PfcNetwork, AVictimOfTheIncastIsHeldUp) {
  // The victim leaves GPU 0 of node 0 as one of the incast does, for an idle NIC over an idle
  // uplink. Max-min gives it the three quarters of its NIC that the incast leaves; paused for the
  // incast, its NIC sends both alike, so the victim gets a quarter while the incast lasts.
  Cluster::Options options = small_clos(12);
  options.fabric.leaf_uplinks = 3;  // NIC 32 is reached over uplink 32 mod 3, NIC 40 by another
  const Cluster cluster(options);
  std::vector<Message> messages = kIncast;
  messages.push_back({0, 40});
  const std::vector<double> by_flow = run_messages(cluster, Sharing::MaxMin, messages);
  const std::vector<double> by_ingress = run_messages(cluster, Sharing::Pfc, messages);
  const double nic =
      cluster.node().nic_bandwidth.bytes_per_second() * nccl_pace(cluster.device()).efficiency.nic;
  EXPECT_NEAR(by_flow[4], 1e9 / (0.75 * nic), 1e-3);
  EXPECT_GT(by_ingress[4], 2.5 * by_flow[4]);
  for (std::size_t m = 0; m < messages.size(); ++m) {
    EXPECT_GE(by_ingress[m], by_flow[m] * (1 - 1e-3)) << m;  // the passes circle around
  }
  EXPECT_GE(std::ranges::max(by_ingress), std::ranges::max(by_flow) * (1 - 1e-6));
}

TEST(PfcNetwork, ACoupledRingMovesAtThePaceOfItsSlowestLeg) {
  // A ring over GPU 0 of six nodes, and an incast of four on one of its NICs: five share that NIC.
  const Cluster cluster(small_clos(12));
  const auto ring_time = [&](Sharing sharing) {
    Network network(cluster, with(sharing), training_pace(cluster.device()), 1);
    std::vector<DeviceId> ring;
    for (const std::uint32_t node : {3u, 4u, 5u, 6u, 7u, 8u}) ring.push_back(DeviceId{8 * node});
    const TransferPlan plan = network.collective(Collective::AllGather, 1_GiB, ring, 1);
    network.fluid().start(plan.routes.front(), plan.amount, 0, SimTime{});
    for (const std::uint32_t node : {0u, 1u, 2u, 11u}) {
      const TransferPlan message =
          network.message(DeviceId{8 * node}, DeviceId{8 * 4}, Bytes(std::int64_t{1} << 40));
      network.fluid().start(message.routes.front(), message.amount, 1, SimTime{});
    }
    network.fluid().settle(SimTime{});
    return to_seconds(*network.fluid().next_finish() - SimTime{}) / plan.link_seconds;
  };
  // By flow a fifth of the NIC. Over the leaf come two ingresses: uplinks that node 4's leaf hears
  // from; the ring's is shared with messages, so it gets no more than by flow.
  EXPECT_NEAR(ring_time(Sharing::MaxMin), 5, 1e-6);
  EXPECT_GE(ring_time(Sharing::Pfc), 5 * (1 - 1e-6));
  EXPECT_LT(ring_time(Sharing::Pfc), 12);
}

SimulatorOptions hashed(Sharing sharing, std::uint64_t seed) {
  SimulatorOptions options;
  options.network.sharing = sharing;
  options.seed = seed;
  return options;
}

TEST(PfcNetwork, AStepWithoutContentionIsTheSameBitByBit) {
  // Gradients of four replicas below one set of leaves, ring after ring: nothing meets.
  const planner::Plan plan = make_plan(4, 1, 1);
  const StepOutcome by_flow = test::run(plan, hashed(Sharing::MaxMin, 1));
  const StepOutcome by_ingress = test::run(plan, hashed(Sharing::Pfc, 1));
  EXPECT_EQ(by_flow.collided_links, 0);
  EXPECT_EQ(by_ingress.iteration, by_flow.iteration);
}

TEST(PfcNetwork, ACongestedStepIsSlowerAndRepeatsExactly) {
  planner::Plan plan = make_plan(32, 2, 2);
  plan.cluster.fabric.leaf_uplinks = 2;  // 2:1
  Duration by_flow{};
  Duration by_ingress{};
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    by_flow += test::run(plan, hashed(Sharing::MaxMin, seed)).iteration;
    const StepOutcome once = test::run(plan, hashed(Sharing::Pfc, seed));
    by_ingress += once.iteration;
    EXPECT_GT(once.collided_links, 0);
    EXPECT_EQ(test::run(plan, hashed(Sharing::Pfc, seed)).iteration, once.iteration);
  }
  EXPECT_GT(by_ingress, by_flow);
}

TEST(PfcNetwork, RefusesRoutesOverManyPaths) {
  const Cluster cluster(small_clos(8));
  topologies::NetworkOptions options = with(Sharing::Pfc);
  options.routing = topologies::Routing::Spray;
  EXPECT_THAT([&] { Network(cluster, options, nccl_pace(cluster.device()), 1); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("network.sharing: pfc needs")));
}

TEST(PfcNetwork, RefusesBuffersThatWaitForEachOtherInACircle) {
  // A ring of switches: every node sends two hops on, so each cable waits for the next.
  Cluster::Options options = small_clos(6);
  options.node.nics = 1;
  options.fabric = {};
  options.fabric.kind = topologies::FabricKind::Torus;
  options.fabric.torus = {{6}, 100_Gbps};
  const Cluster cluster(options);
  std::vector<Message> messages;
  for (std::uint32_t n = 0; n < 6; ++n) messages.push_back({8 * n, 8 * ((n + 2) % 6)});
  EXPECT_THAT([&] { run_messages(cluster, Sharing::Pfc, messages); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("deadlock")));
}

}  // namespace
}  // namespace foresail::sim
