#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "foresail/sim/network.h"
#include "foresail/sim/simulator.h"
#include "test_clusters.h"

namespace foresail::sim {
namespace {

using test::first_devices;
using test::small_clos;

double seconds(const topologies::Cluster& cluster, Collective kind, Bytes bytes, int ranks) {
  const Simulator simulator(cluster, {});
  return to_seconds(simulator.collective(kind, bytes, first_devices(ranks)));
}

TEST(Collective, RingVolumeIsNMinusOneOverNPerEdge) {
  // all_gather of 1 GiB on 4 GPUs of a node: base + 3 steps, then 3/4 GiB at nvlink efficiency.
  const topologies::Cluster cluster(small_clos(1));
  const auto& constants = cluster.device().constants;
  const double rate = cluster.device().nvlink.bytes_per_second() * constants.nvlink;
  const double expected = 1e-6 * (constants.collective_base_us + 3 * constants.collective_step_us) +
                          0.75 * static_cast<double>((1_GiB).count()) / rate;
  EXPECT_NEAR(seconds(cluster, Collective::AllGather, 1_GiB, 4), expected, 1e-9);
  EXPECT_NEAR(seconds(cluster, Collective::ReduceScatter, 1_GiB, 4), expected, 1e-9);
}

TEST(Collective, LargeAllReduceCostsTwoOfTheHalves) {
  const topologies::Cluster cluster(small_clos(1));
  const auto& constants = cluster.device().constants;
  const double half = seconds(cluster, Collective::AllGather, 1_GiB, 8);
  const double all = seconds(cluster, Collective::AllReduce, 1_GiB, 8);
  EXPECT_NEAR(all, 2 * half - constants.collective_base_us * 1e-6, 1e-9);
}

TEST(Collective, BusBandwidthOfAGroupIsItsNicsPerNode) {
  // Two nodes, 8 NICs each: the ring of 16 moves bytes * 15/16 over 8 NICs at nic efficiency.
  const topologies::Cluster cluster(small_clos(2));
  const auto& constants = cluster.device().constants;
  const double nic = cluster.node().nic_bandwidth.bytes_per_second() * constants.nic;
  const double time = seconds(cluster, Collective::AllGather, 4_GiB, 16);
  const double bus = static_cast<double>((4_GiB).count()) * 15 / 16 / time;
  EXPECT_LT(bus, 8 * nic);
  EXPECT_GT(bus, 0.98 * 8 * nic);  // latency is under 2 % at 4 GiB
}

TEST(Collective, SmallAllReduceOfManyNodesTakesTheTree) {
  // 16 nodes: the ring would take 2 * 15 network steps, the tree 2 * log2(16) = 8.
  const topologies::Cluster cluster(small_clos(16));
  const auto& constants = cluster.device().constants;
  const double ring_steps = 2 * 15 * constants.network_step_us * 1e-6;
  EXPECT_LT(seconds(cluster, Collective::AllReduce, 8_B, 128), ring_steps);
}

TEST(Collective, TimeGrowsWithBytesAndRanks) {
  const topologies::Cluster cluster(small_clos(16));
  EXPECT_LT(seconds(cluster, Collective::AllReduce, 1_MiB, 16),
            seconds(cluster, Collective::AllReduce, 64_MiB, 16));
  EXPECT_LT(seconds(cluster, Collective::AllGather, 64_MiB, 16),
            seconds(cluster, Collective::AllGather, 64_MiB, 128));
}

TEST(Collective, AllToAllIsLimitedByWhatLeavesTheNode) {
  // Two nodes of 8: each GPU sends 8 of 16 parts by its NIC; 15 peers are two batches of eight.
  const topologies::Cluster cluster(small_clos(2));
  const auto& constants = cluster.device().constants;
  const double nic = cluster.node().nic_bandwidth.bytes_per_second() * constants.nic;
  const double expected = 1e-6 * (constants.collective_base_us + 2 * constants.network_step_us) +
                          0.5 * static_cast<double>((1_GiB).count()) / nic;
  EXPECT_NEAR(seconds(cluster, Collective::AllToAll, 1_GiB, 16), expected, 1e-9);
}

TEST(Message, CrossesTheFabricAtNicSpeedAfterItsLatency) {
  const topologies::Cluster cluster(small_clos(16));
  const auto& constants = cluster.device().constants;
  const Simulator simulator(cluster, {});
  const double nic = cluster.node().nic_bandwidth.bytes_per_second() * constants.nic;
  // node 0 to node 15: another leaf group, 3 switches, so 4 links of 1 us each.
  const double expected =
      constants.network_step_us * 1e-6 + 4e-6 + static_cast<double>((64_MiB).count()) / nic;
  EXPECT_NEAR(to_seconds(simulator.message(64_MiB, DeviceId{0}, DeviceId{120})), expected, 1e-9);
}

}  // namespace
}  // namespace foresail::sim
