// Bytes on the links by algorithm, against the closed forms; and what NCCL's settings change.
#include "foresail/sim/collective_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "foresail/base/error.h"
#include "foresail/sim/network.h"
#include "test_clusters.h"

namespace foresail::sim {
namespace {

using test::first_devices;
using test::small_clos;
using topologies::Algorithm;
using topologies::Cluster;
using topologies::Generation;
using topologies::NetworkOptions;

constexpr double kSize = 1 << 30;

NetworkOptions forced(Algorithm algorithm) {
  NetworkOptions options;
  options.nccl.algorithm = algorithm;
  options.nccl.protocol = topologies::Protocol::Simple;
  return options;
}

Cluster hopper(int nodes) {
  Cluster::Options options = small_clos(nodes);
  options.device.nccl.generation = Generation::Hopper;
  options.device.nvlink = Bandwidth::gigabytes_per_second(450);
  options.node.nic_bandwidth = 400_Gbps;
  options.fabric.uplink_bandwidth = 400_Gbps;
  return Cluster(options);
}

// Runs a plan alone and says what every kind of link carried.
struct Carried {
  double seconds = 0;
  double nic_out_max = 0, nic_out_sum = 0, nic_in_max = 0;
  double nvlink_out_max = 0;
  double between_switches = 0;
};

Carried run(Network& network, const TransferPlan& plan) {
  FluidNetwork& fluid = network.fluid();
  for (std::size_t r = 0; r < plan.routes.size(); ++r) {
    const double amount = plan.amounts.empty() ? plan.amount : plan.amounts[r];
    fluid.start(plan.routes[r], amount, 0, SimTime{});
  }
  fluid.settle(SimTime{});
  SimTime now{};
  while (const std::optional<SimTime> next = fluid.next_finish()) {
    now = *next;
    fluid.finish_next();
    fluid.settle(now);
  }
  Carried carried;
  carried.seconds = to_seconds(now - SimTime{});
  for (std::uint32_t p = 0; p < fluid.pipe_count(); ++p) {
    const double bytes = fluid.carried(PipeId{p});
    const std::string name = network.paths().pipe_name(PipeId{p});
    if (network.paths().is_between_switches(PipeId{p})) carried.between_switches += bytes;
    const bool is_out = name.find("->leaf") != std::string::npos;
    const bool is_in = name.starts_with("leaf");
    const bool has_nic = name.find(".nic") != std::string::npos;
    if (has_nic && is_out) {
      carried.nic_out_max = std::max(carried.nic_out_max, bytes);
      carried.nic_out_sum += bytes;
    }
    if (has_nic && is_in) carried.nic_in_max = std::max(carried.nic_in_max, bytes);
    if (name.find("->") != std::string::npos && name.ends_with("nvswitch")) {
      carried.nvlink_out_max = std::max(carried.nvlink_out_max, bytes);
    }
  }
  return carried;
}

Carried collective(const Cluster& cluster, const NetworkOptions& options, Collective kind,
                   int ranks) {
  Network network(cluster, options, nccl_pace(cluster.device()), 1);
  return run(network,
             network.collective(kind, Bytes(std::int64_t{1} << 30), first_devices(ranks), 1));
}

void expect_bytes(double carried, double expected) {
  EXPECT_NEAR(carried / expected, 1, 1e-9);
}

TEST(CollectiveVolume, EachNicOfARingSendsItsShareOfTwoNMinusOneOverN) {
  const Cluster cluster(small_clos(4));
  const NetworkOptions ring = forced(Algorithm::Ring);
  const double part = 31.0 / 32;
  for (const auto& [kind, times] : {std::pair{Collective::AllReduce, 2 * part},
                                    {Collective::AllGather, part},
                                    {Collective::ReduceScatter, part},
                                    {Collective::Broadcast, 1.0}}) {
    const Carried carried = collective(cluster, ring, kind, 32);
    expect_bytes(carried.nic_out_max, times * kSize / 8);
    expect_bytes(carried.nic_in_max, times * kSize / 8);
    expect_bytes(carried.nic_out_sum, times * kSize * 4);  // four nodes
    EXPECT_EQ(carried.between_switches, 0);                // rails are kept
  }
}

TEST(CollectiveVolume, TreesMoveTheDataUpAndDownOnceOverEveryEdge) {
  // N - 1 edges, S/2 up and down each, two trees: 2 (N - 1) S over all NICs; no NIC more than 2
  // S/8.
  const Cluster cluster(small_clos(4));
  const Carried carried = collective(cluster, forced(Algorithm::Tree), Collective::AllReduce, 32);
  expect_bytes(carried.nic_out_sum, 2 * 3 * kSize);
  EXPECT_LE(carried.nic_out_max, 2 * kSize / 8 * (1 + 1e-9));
}

TEST(CollectiveVolume, TreesOfManySizesSpanTheNodesAndAreMostlyDisjointInside) {
  for (int nodes = 2; nodes <= 65; ++nodes) {
    std::vector<int> children(static_cast<std::size_t>(nodes), 0);
    int inside_both = 0;
    std::vector<std::vector<int>> counts;
    for (int tree = 0; tree < 2; ++tree) {
      const std::vector<int> parents = tree_parents(nodes, tree);
      EXPECT_EQ(std::ranges::count(parents, -1), 1);
      std::ranges::fill(children, 0);
      for (int node = 0; node < nodes; ++node) {
        int at = node;
        for (int steps = 0; parents[static_cast<std::size_t>(at)] >= 0; ++steps) {
          ASSERT_LT(steps, 8);
          at = parents[static_cast<std::size_t>(at)];
        }
        const int parent = parents[static_cast<std::size_t>(node)];
        if (parent >= 0) ++children[static_cast<std::size_t>(parent)];
      }
      EXPECT_LE(*std::ranges::max_element(children), 2);
      counts.push_back(children);
    }
    for (std::size_t node = 0; node < children.size(); ++node) {
      inside_both += counts[0][node] > 0 && counts[1][node] > 0 ? 1 : 0;
    }
    EXPECT_LE(inside_both, 1) << nodes;
  }
}

TEST(CollectiveVolume, NvlsCarriesOnePlusOneOverN) {
  const Cluster cluster = hopper(1);
  const NetworkOptions nvls = forced(Algorithm::Nvls);
  expect_bytes(collective(cluster, nvls, Collective::AllReduce, 8).nvlink_out_max,
               kSize * (1 + 1.0 / 8));
  expect_bytes(collective(cluster, nvls, Collective::ReduceScatter, 8).nvlink_out_max, kSize);
  expect_bytes(collective(cluster, nvls, Collective::AllGather, 8).nvlink_out_max, kSize / 8);
}

TEST(CollectiveVolume, NvlsTreeOfTwoNodesSendsEachHeadsEighthOnce) {
  // One tree has its root on each node: a head's S/16 goes up in one and down in the other.
  const Cluster cluster = hopper(2);
  const Carried carried =
      collective(cluster, forced(Algorithm::NvlsTree), Collective::AllReduce, 16);
  expect_bytes(carried.nic_out_max, kSize / 8);
  expect_bytes(carried.nvlink_out_max, kSize * (1 + 1.0 / 8));
}

TEST(CollectiveVolume, HierarchicalCrossesNodesWithAnEighth) {
  const Cluster cluster(small_clos(4));
  const Carried carried =
      collective(cluster, forced(Algorithm::Hierarchical), Collective::AllReduce, 32);
  expect_bytes(carried.nic_out_max, 2 * 3.0 / 4 * kSize / 8);
  expect_bytes(carried.nvlink_out_max, 2 * 7.0 / 8 * kSize);
}

TEST(CollectiveVolume, PatSendsEveryBlockOnce) {
  const Cluster cluster(small_clos(4));
  Network network(cluster, forced(Algorithm::Pat), nccl_pace(cluster.device()), 1);
  std::vector<DeviceId> devices;
  for (std::uint32_t node = 0; node < 4; ++node) devices.push_back(DeviceId{8 * node});
  const Carried carried =
      run(network, network.collective(Collective::AllGather, 1_GiB, devices, 1));
  expect_bytes(carried.nic_out_max, 3.0 / 4 * kSize);
}

TEST(CollectiveVolume, AllToAllSendsWhatOtherNodesGet) {
  const Cluster cluster(small_clos(4));
  NetworkOptions options;
  const Carried proxied = collective(cluster, options, Collective::AllToAll, 32);
  expect_bytes(proxied.nic_out_max, 24.0 / 32 * kSize);
  EXPECT_EQ(proxied.between_switches, 0);  // PXN: all by the destination's rail
  options.nccl.pxn = false;
  const Carried crossing = collective(cluster, options, Collective::AllToAll, 32);
  expect_bytes(crossing.nic_out_max, 24.0 / 32 * kSize);
  EXPECT_GT(crossing.between_switches, 0);
}

TEST(CollectiveVolume, AllToAllvSendsTheMatrix) {
  // Rank 0 sends 3 MB to rank 8 (its rail), 5 MB to rank 9 (the next rail) and 7 MB to rank 1.
  const Cluster cluster(small_clos(2));
  Network network(cluster, {}, nccl_pace(cluster.device()), 1);
  PairBytes bytes{16, std::vector<double>(256, 0.0)};
  bytes.bytes[8] = 3e6;
  bytes.bytes[9] = 5e6;
  bytes.bytes[1] = 7e6;
  const Carried carried = run(network, network.all_to_all(bytes, first_devices(16), 1));
  expect_bytes(carried.nic_out_sum, 8e6);
  expect_bytes(carried.nic_out_max, 5e6);      // by GPU 1's NIC
  expect_bytes(carried.nvlink_out_max, 12e6);  // 5 MB to the proxy, 7 MB to its neighbour
}

TEST(CollectiveVolume, LlSendsAFlagWithEveryWord) {
  const Cluster cluster(small_clos(4));
  NetworkOptions options = forced(Algorithm::Ring);
  const double simple = collective(cluster, options, Collective::AllGather, 32).nic_out_max;
  options.nccl.protocol = topologies::Protocol::Ll;
  expect_bytes(collective(cluster, options, Collective::AllGather, 32).nic_out_max, 2 * simple);
  options.nccl.protocol = topologies::Protocol::Ll128;
  expect_bytes(collective(cluster, options, Collective::AllGather, 32).nic_out_max,
               128.0 / 120 * simple);
}

TEST(NcclSettings, CrossNicOneCrossesRailsAndZeroAndTwoDoNot) {
  const Cluster cluster(small_clos(4));
  NetworkOptions options = forced(Algorithm::Ring);
  for (const int cross_nic : {0, 1, 2}) {
    options.nccl.cross_nic = cross_nic;
    const Carried carried = collective(cluster, options, Collective::AllReduce, 32);
    EXPECT_EQ(carried.between_switches > 0, cross_nic == 1) << cross_nic;
  }
}

TEST(NcclSettings, WithoutPxnARingThatReturnsToItsNicCrossesRails) {
  const Cluster cluster(small_clos(4));
  NetworkOptions options = forced(Algorithm::Ring);
  options.nccl.cross_nic = 0;
  options.nccl.pxn = false;
  EXPECT_GT(collective(cluster, options, Collective::AllReduce, 32).between_switches, 0);
}

TEST(NcclSettings, WithoutGpudirectNicsReachHalf) {
  const Cluster cluster(small_clos(4));
  NetworkOptions options = forced(Algorithm::Ring);
  const double direct = collective(cluster, options, Collective::AllReduce, 32).seconds;
  options.nccl.gpudirect = false;
  EXPECT_NEAR(collective(cluster, options, Collective::AllReduce, 32).seconds / direct, 2, 1e-6);
}

TEST(NcclSettings, HalfOfTheChannelsUseHalfOfTheNics) {
  const Cluster cluster(small_clos(4));
  NetworkOptions options = forced(Algorithm::Ring);
  const double eight = collective(cluster, options, Collective::AllReduce, 32).seconds;
  options.nccl.channels = 4;
  EXPECT_NEAR(collective(cluster, options, Collective::AllReduce, 32).seconds / eight, 2, 1e-6);
}

TEST(NcclSettings, AMissingNicIsNotUsed) {
  const Cluster cluster(small_clos(4));
  NetworkPace pace = nccl_pace(cluster.device());
  pace.missing_nics = {7};
  Network network(cluster, forced(Algorithm::Ring), pace, 1);
  const TransferPlan plan = network.collective(Collective::AllReduce, 1_GiB, first_devices(32), 1);
  const Carried carried = run(network, plan);
  EXPECT_GT(carried.nic_out_max, kSize * 2 * 31 / 32 / 8);
}

TEST(NcclSettings, ASlowNicHoldsUpItsRing) {
  const Cluster cluster(small_clos(4));
  const NetworkOptions options = forced(Algorithm::Ring);
  const double whole = collective(cluster, options, Collective::AllReduce, 32).seconds;
  NetworkPace pace = nccl_pace(cluster.device());
  const VertexId nic = cluster.nic_vertex(DeviceId{0});
  for (const LinkId link : cluster.out_links(nic)) pace.slow_links[link] = 0.25;
  Network network(cluster, options, pace, 1);
  const Carried carried =
      run(network, network.collective(Collective::AllReduce, 1_GiB, first_devices(32), 1));
  EXPECT_NEAR(carried.seconds / whole, 4, 1e-6);
}

TEST(NcclSettings, UserSetAlgorithmTakesEffectInTrainingStepsToo) {
  const Cluster cluster = hopper(1);
  Network free(cluster, {}, training_pace(cluster.device()), 1);
  EXPECT_EQ(free.collective(Collective::AllReduce, 1_GiB, first_devices(8), 1).algorithm,
            Algorithm::Ring);
  Network set(cluster, forced(Algorithm::Nvls), training_pace(cluster.device()), 1);
  EXPECT_EQ(set.collective(Collective::AllReduce, 1_GiB, first_devices(8), 1).algorithm,
            Algorithm::Nvls);
}

TEST(NcclSettings, AloneIsWhatTheFlowsTake) {
  for (const Algorithm algorithm :
       {Algorithm::Ring, Algorithm::Tree, Algorithm::NvlsTree, Algorithm::Hierarchical}) {
    const Cluster cluster = hopper(4);
    Network network(cluster, forced(algorithm), nccl_pace(cluster.device()), 1);
    const TransferPlan plan =
        network.collective(Collective::AllReduce, 1_GiB, first_devices(32), 1);
    EXPECT_NEAR(run(network, plan).seconds / plan.link_seconds, 1, 1e-6) << to_string(algorithm);
  }
}

// NCCL's log of an 8-NIC node counts twice the channels that its search found.
TEST(Ring, IsConnectedTwiceWhereQueuePairsAreHashed) {
  const Cluster cluster = hopper(8);
  const auto routes_of = [&](const NetworkOptions& options) {
    Network network(cluster, options, nccl_pace(cluster.device()), 1);
    const TransferPlan plan =
        network.collective(Collective::AllGather, 1_GiB, first_devices(64), 1);
    return std::pair(plan.routes.size(), static_cast<std::size_t>(plan.channels));
  };
  NetworkOptions options = forced(Algorithm::Ring);
  const auto [hashed, found] = routes_of(options);
  EXPECT_EQ(hashed, 2 * found);
  options.nccl.channels = 6;  // what a user counts are connections
  EXPECT_EQ(routes_of(options).first, 6u);
  options.nccl.channels = 0;
  options.routing = topologies::Routing::Spray;
  EXPECT_EQ(routes_of(options).first, found);
}

}  // namespace
}  // namespace foresail::sim
