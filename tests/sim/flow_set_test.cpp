#include "foresail/sim/flow_set.h"

#include <gtest/gtest.h>

#include <chrono>

#include "fat_tree.h"
#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

using namespace std::chrono_literals;
using test::FatTree;
using topologies::Sharing;

TEST(FlowSet, ALoneFlowTakesItsBytesAtLineRateAndThePathOfItsLastPacket) {
  // 489 packets of 4,096 bytes at 12.5 GB/s: 160.23552 us; 6 links of 0.5 us, and 5 times the
  // 0.32768 us of a packet.
  const FatTree tree(4, Bandwidth::gbps(100), 500ns);
  const FlowSet set{tree.links(), {{tree.path(0, 15, 0, 0), Bytes(489 * 4096)}}};
  EXPECT_EQ(complete(set).completion[0], Duration(160'235'520) + 3us + Duration(5 * 327'680));
  FlowSetOptions pfc;
  pfc.sharing = Sharing::Pfc;
  EXPECT_EQ(complete(set, pfc).completion[0], Duration(160'235'520) + 3us + Duration(5 * 327'680));
}

TEST(FlowSet, HeadersTravelWithEachPacketAndAcksTravelBack) {
  // 3 packets of at most 1,000 bytes with 50 of header: 2,650 bytes at 1 byte/ns.
  FlowSet set{{{Bandwidth::gbps(8), 1us}, {Bandwidth::gbps(8), 1us}}, {{{0, 1}, Bytes(2500)}}};
  FlowSetOptions options;
  options.packet = Bytes(1000);
  options.header = Bytes(50);
  options.ack = Bytes(64);
  EXPECT_EQ(complete(set, options).completion[0], 2650ns + 2us + 1050ns);
  options.completion = Completion::LastAckReceived;
  EXPECT_EQ(complete(set, options).completion[0], 2650ns + 2us + 1050ns + 2us + 128ns);
  options.completion = Completion::LastByteSent;
  EXPECT_EQ(complete(set, options).completion[0], 2650ns);
}

TEST(FlowSet, StaggeredFlowsShareWhileBothRunUnderEitherSharing) {
  // 20 MB from 0 and 10 MB from 400 us on one link of 12.5 GB/s: 2,400 us and 1,600 us.
  const FlowSet set{{{Bandwidth::gbps(100), {}}},
                    {{{0}, Bytes(20'000'000)}, {{0}, Bytes(10'000'000), SimTime{} + 400us}}};
  FlowSetOptions options;
  options.completion = Completion::LastByteSent;
  for (const Sharing sharing : {Sharing::MaxMin, Sharing::Pfc}) {
    options.sharing = sharing;
    const FlowSetSummary summary = complete(set, options);
    EXPECT_NEAR(to_seconds(summary.completion[0]), 2400e-6, 1e-9);
    EXPECT_NEAR(to_seconds(summary.completion[1]), 1600e-6, 1e-9);
  }
}

TEST(FlowSet, AFlowThatIsAloneMayReachLessThanTheLinkAndTogetherFillIt) {
  // 1 MB at 1 GB/s: alone at 95 %; two together at half the link each.
  FlowSet set{{{Bandwidth::gbps(8), {}}}, {{{0}, Bytes(1'000'000)}}};
  FlowSetOptions options;
  options.lone_efficiency = 0.95;
  EXPECT_NEAR(to_seconds(complete(set, options).makespan()), 1e-3 / 0.95, 1e-9);
  set.flows.push_back(set.flows[0]);
  EXPECT_NEAR(to_seconds(complete(set, options).makespan()), 2e-3, 1e-9);
}

TEST(FlowSet, EqualInputsGiveEqualBytesUnderEitherSharing) {
  const FatTree tree(8, Bandwidth::gbps(100), 1us);
  for (const Sharing sharing : {Sharing::MaxMin, Sharing::Pfc}) {
    FlowSetOptions options;
    options.sharing = sharing;
    RandomStream random = Rng(31).stream("permutation");
    const std::vector<std::uint32_t> to = test::derangement(tree.hosts(), random);
    const FlowSet set = test::permutation(tree, to, Bytes(1'000'000), random);
    EXPECT_EQ(complete(set, options).completion, complete(set, options).completion);
  }
}

TEST(FlowSet, NamesWhatIsWrong) {
  const std::vector<FlowLink> links = {{Bandwidth::gbps(8), {}}};
  const auto message = [](const FlowSet& set) -> std::string {
    try {
      complete(set);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({links, {{{}, Bytes(1)}}}), "flows[0]: no links");
  EXPECT_EQ(message({links, {{{0}, Bytes(0)}}}), "flows[0]: no bytes");
  EXPECT_EQ(message({links, {{{1}, Bytes(1)}}}), "flows[0]: link 1 of 1");
  EXPECT_EQ(message({{{}}, {{{0}, Bytes(1)}}}), "links[0]: no bandwidth");
}

TEST(FlowSet, SummarisesTimesByRank) {
  FlowSetSummary summary;
  summary.completion = {4us, 1us, 3us, 2us};
  EXPECT_EQ(summary.quantile(0.5), Duration(2us));
  EXPECT_EQ(summary.quantile(0.51), Duration(3us));
  EXPECT_EQ(summary.quantile(1), Duration(4us));
  EXPECT_EQ(summary.mean(), Duration(2500ns));
  EXPECT_EQ(summary.to_string(), "4 flows: mean 2.50 us, p50 2.00, p99 4.00, max 4.00");
}

}  // namespace
}  // namespace foresail::sim
