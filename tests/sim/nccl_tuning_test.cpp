#include "foresail/sim/nccl_tuning.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

using topologies::Algorithm;
using topologies::CpuVendor;
using topologies::Generation;
using topologies::Protocol;

// H100 nodes of 8 with 8 NICs of 400 Gb/s, as NCCL's graph counts them.
NcclShape hopper(int nodes, int per_node = 8) {
  NcclShape shape;
  shape.generation = Generation::Hopper;
  shape.ranks = nodes * per_node;
  shape.nodes = nodes;
  shape.nics = nodes > 1 ? per_node : 0;
  shape.nvlink = 370.8;
  shape.nic = 48;
  return shape;
}

NcclCost cost(Collective kind, Algorithm algorithm, Protocol protocol, Bytes bytes,
              const NcclShape& shape) {
  const std::optional<NcclCost> found = nccl_cost(kind, algorithm, protocol, bytes, shape);
  EXPECT_TRUE(found.has_value());
  return found.value_or(NcclCost{});
}

TEST(NcclTuning, RingOfSixtyFourNodesTakesItsStepsTimesThePlateau) {
  // 2 (512 - 1) = 1022 steps, 126 of them between nodes: 8.4 + 896 * 3.4 + 126 * 14 = 4.8 ms; x 1.4
  // once every channel and rank has 64 bytes.
  const NcclShape shape = hopper(64);
  const double steps = 8.4 + 896 * 3.4 + 126 * 14;
  EXPECT_NEAR(steps, 4800, 50);
  EXPECT_NEAR(
      cost(Collective::AllReduce, Algorithm::Ring, Protocol::Simple, 1_KiB, shape).latency_us,
      steps, 1e-6);
  EXPECT_NEAR(
      cost(Collective::AllReduce, Algorithm::Ring, Protocol::Simple, 1_GiB, shape).latency_us,
      1.4 * steps, 1e-6);
}

TEST(NcclTuning, OneRankPerNodeExposesTheTreesNetworkLatency) {
  // DP = 192: ring 8.4 + 382 * 14 = 5.4 ms (x 1.4 = 7.5 ms), tree 8.4 + 2 * 7 * 14 = 204 us.
  const NcclShape shape = hopper(192, 1);
  EXPECT_NEAR(
      cost(Collective::AllReduce, Algorithm::Ring, Protocol::Simple, 1_GiB, shape).latency_us,
      1.4 * (8.4 + 382 * 14), 1e-6);
  EXPECT_NEAR(
      cost(Collective::AllReduce, Algorithm::Tree, Protocol::Simple, 1_GiB, shape).latency_us,
      204.4, 1e-6);
}

TEST(NcclTuning, NetworkOverheadOfTheHostFloorsTheStepsInsideNodes) {
  // LL: 0.6 us on NVLink, but the proxy of an Intel host takes 1 us and of an AMD host 2 us.
  NcclShape shape = hopper(2);
  const auto ring_ll = [&] {
    return cost(Collective::AllGather, Algorithm::Ring, Protocol::Ll, 8_B, shape).latency_us;
  };
  EXPECT_NEAR(ring_ll(), 6.6 + 14 * 1.0 + 2.7, 1e-9);
  shape.cpu = CpuVendor::Amd;
  EXPECT_NEAR(ring_ll(), 6.6 + 14 * 2.0 + 2.7, 1e-9);
}

TEST(NcclTuning, ALatentNicCostsSimpleTwiceForItsFlush) {
  NcclShape shape = hopper(2);
  const auto tree = [&](Protocol protocol) {
    return cost(Collective::AllReduce, Algorithm::Tree, protocol, 8_B, shape).latency_us;
  };
  const double ll = tree(Protocol::Ll);
  const double simple = tree(Protocol::Simple);
  shape.nic_latency_us = 10;
  EXPECT_NEAR(tree(Protocol::Ll) - ll, 2 * 10, 1e-9);
  EXPECT_NEAR(tree(Protocol::Simple) - simple, 2 * 20, 1e-9);
}

TEST(NcclTuning, FindsTheChannelsThatNcclReports) {
  NcclShape a100;
  a100.ranks = 8;
  a100.nvlink = 240;
  EXPECT_EQ(find_channels(a100).channels, 12);  // 6 of 40 GB/s, doubled
  EXPECT_DOUBLE_EQ(find_channels(a100).bus(), 240);
  EXPECT_EQ(find_channels(hopper(2)).channels, 8);  // one per NIC, 45 GB/s each
  EXPECT_DOUBLE_EQ(find_channels(hopper(2)).bus(), 360);
  NcclShape four = hopper(2);
  four.channels = 4;  // half of the eight: half of their bandwidth
  EXPECT_DOUBLE_EQ(find_channels(four).bus(), 180);
}

TEST(NcclTuning, ChoosesLlThenNvlsOnOneH100Node) {
  // The published H200 table: ring LL up to 1 MiB, NVLS Simple from 2 MiB.
  const NcclCost small = choose(Collective::AllReduce, 64_KiB, hopper(1), {});
  EXPECT_EQ(small.algorithm, Algorithm::Ring);
  EXPECT_EQ(small.protocol, Protocol::Ll);
  const NcclCost large = choose(Collective::AllReduce, 64_MiB, hopper(1), {});
  EXPECT_EQ(large.algorithm, Algorithm::Nvls);
  EXPECT_EQ(large.protocol, Protocol::Simple);
}

TEST(NcclTuning, ChoiceIsTheLeastTimeOfWhatIsOffered) {
  for (const int nodes : {1, 2, 3, 16, 100}) {
    for (std::int64_t bytes = 8; bytes <= (std::int64_t{1} << 34); bytes *= 4) {
      const NcclShape shape = hopper(nodes);
      const NcclCost best = choose(Collective::AllReduce, Bytes(bytes), shape, {});
      for (const Algorithm algorithm :
           {Algorithm::Ring, Algorithm::Tree, Algorithm::Nvls, Algorithm::NvlsTree}) {
        for (const Protocol protocol : {Protocol::Ll, Protocol::Ll128, Protocol::Simple}) {
          const auto other =
              nccl_cost(Collective::AllReduce, algorithm, protocol, Bytes(bytes), shape);
          if (other) {
            EXPECT_LE(best.time_us(Bytes(bytes)), other->time_us(Bytes(bytes)));
          }
        }
      }
    }
  }
}

TEST(NcclTuning, OffersWhatNcclOffers) {
  const auto offers = [](Collective kind, Algorithm algorithm, Protocol protocol,
                         const NcclShape& shape) {
    return nccl_cost(kind, algorithm, protocol, 1_MiB, shape).has_value();
  };
  EXPECT_FALSE(offers(Collective::AllReduce, Algorithm::Nvls, Protocol::Simple, hopper(2)));
  EXPECT_FALSE(offers(Collective::AllReduce, Algorithm::NvlsTree, Protocol::Simple, hopper(1)));
  EXPECT_FALSE(offers(Collective::AllReduce, Algorithm::Nvls, Protocol::Ll, hopper(1)));
  EXPECT_FALSE(offers(Collective::AllGather, Algorithm::Tree, Protocol::Simple, hopper(2)));
  EXPECT_TRUE(offers(Collective::AllGather, Algorithm::Pat, Protocol::Simple, hopper(4, 1)));
  EXPECT_FALSE(offers(Collective::AllGather, Algorithm::Pat, Protocol::Simple, hopper(4)));
  NcclShape ampere = hopper(1);
  ampere.generation = Generation::Ampere;
  EXPECT_FALSE(offers(Collective::AllReduce, Algorithm::Nvls, Protocol::Simple, ampere));
  NcclShape bounced = hopper(2);
  bounced.gpudirect = false;
  EXPECT_FALSE(offers(Collective::AllReduce, Algorithm::Ring, Protocol::Ll128, bounced));
}

TEST(NcclTuning, ARefusalSaysTheRule) {
  const auto complaint = [](Collective kind, Algorithm algorithm, Protocol protocol,
                            const NcclShape& shape) {
    topologies::NcclOptions options;
    options.algorithm = algorithm;
    options.protocol = protocol;
    try {
      choose(kind, 1_MiB, shape, options);
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return std::string("offered");
  };
  NcclShape bounced = hopper(2);
  bounced.gpudirect = false;
  NcclShape ampere = hopper(1);
  ampere.generation = Generation::Ampere;
  using Case = std::tuple<Collective, Algorithm, Protocol, NcclShape, const char*>;
  for (const auto& [kind, algorithm, protocol, shape, rule] : {
           Case{Collective::AllGather, Algorithm::Pat, Protocol::Auto, hopper(4),
                "PAT needs one GPU per node"},
           Case{Collective::AllReduce, Algorithm::Pat, Protocol::Auto, hopper(4, 1),
                "PAT is for all_gather and reduce_scatter"},
           Case{Collective::AllReduce, Algorithm::Nvls, Protocol::Auto, hopper(4),
                "NVLS is for one node alone"},
           Case{Collective::AllReduce, Algorithm::Nvls, Protocol::Auto, ampere, "Hopper or later"},
           Case{Collective::AllReduce, Algorithm::Nvls, Protocol::Ll, hopper(1), "Simple alone"},
           Case{Collective::AllGather, Algorithm::Tree, Protocol::Auto, hopper(4),
                "trees are for all_reduce"},
           Case{Collective::AllReduce, Algorithm::Auto, Protocol::Ll128, bounced, "GPUDirect"},
           Case{Collective::AllToAll, Algorithm::Ring, Protocol::Auto, hopper(4), "is pairwise"},
       }) {
    EXPECT_NE(complaint(kind, algorithm, protocol, shape).find(rule), std::string::npos)
        << complaint(kind, algorithm, protocol, shape);
  }
}

TEST(NcclTuning, UserSetAlgorithmAndProtocolOverride) {
  topologies::NcclOptions options;
  options.algorithm = Algorithm::Ring;
  options.protocol = Protocol::Ll128;
  const NcclCost set = choose(Collective::AllReduce, 1_GiB, hopper(4), options);
  EXPECT_EQ(set.algorithm, Algorithm::Ring);
  EXPECT_EQ(set.protocol, Protocol::Ll128);
  options.algorithm = Algorithm::Nvls;
  EXPECT_THROW(choose(Collective::AllReduce, 1_GiB, hopper(4), options), Error);
  options = {};
  options.nvls = false;
  EXPECT_NE(choose(Collective::AllReduce, 1_GiB, hopper(1), options).algorithm, Algorithm::Nvls);
}

// What a plugin tells NCCL of its NIC sways the choice; the time is that of the NIC itself.
TEST(NcclTuning, ToldLatencyChangesTheChoiceAlone) {
  const NcclShape shape = hopper(4);
  NcclShape told = shape;
  told.told_latency_us = 75;
  const Bytes size = 16_MiB;
  const NcclCost usual = choose(Collective::AllReduce, size, shape, {});
  const NcclCost swayed = choose(Collective::AllReduce, size, told, {});
  EXPECT_NE(std::pair(usual.algorithm, usual.protocol),
            std::pair(swayed.algorithm, swayed.protocol));
  EXPECT_EQ(swayed.latency_us,
            cost(Collective::AllReduce, swayed.algorithm, swayed.protocol, size, shape).latency_us);
  told.told_latency_us = 0;
  EXPECT_EQ(choose(Collective::AllReduce, size, told, {}).algorithm, usual.algorithm);
}

TEST(NcclTuning, TreeBandwidthFollowsTheCorrectionTable) {
  // 64 KiB: log2(65536 / 64) = 10, so LL128 reaches 0.6 of what it reaches at 64 B.
  const NcclShape shape = hopper(4);
  const auto at = [&](Bytes bytes) {
    return cost(Collective::AllReduce, Algorithm::Tree, Protocol::Ll128, bytes, shape).bandwidth;
  };
  EXPECT_NEAR(at(64_KiB) / at(64_B), 0.6, 1e-9);
}

}  // namespace
}  // namespace foresail::sim
