#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "fat_tree.h"
#include "foresail/base/error.h"
#include "foresail/sim/pfc.h"

namespace foresail::sim {
namespace {

using test::FatTree;

std::vector<double> rates(std::vector<double> capacity,
                          std::vector<std::vector<std::uint32_t>> paths,
                          const PfcOptions& options = {}) {
  const auto flows = static_cast<std::uint32_t>(paths.size());
  IngressFairRates network(std::move(capacity), std::move(paths), options);
  for (std::uint32_t f = 0; f < flows; ++f) network.start(f);
  const std::span<const double> solved = network.solve();
  return {solved.begin(), solved.end()};
}

TEST(Pfc, AnEgressIsSharedByIngressNotByFlow) {
  // Links 0 and 1 lead into link 2 of 12. Three flows come over link 0 and one over link 1: by
  // flow 3 each, by ingress 2 + 2 + 2 and 6.
  const std::vector<double> solved = rates({12, 12, 12}, {{0, 2}, {0, 2}, {0, 2}, {1, 2}});
  EXPECT_NEAR(solved[0], 2, 0.1);
  EXPECT_NEAR(solved[3], 6, 0.3);
}

TEST(Pfc, AVictimBehindAPausedPortIsHeldUp) {
  // Flow 0 and the victim 1 enter over link 0; flow 0 goes on to link 1, into which link 2 also
  // leads. Max-min: 6 for the incast, 6 for the victim; the victim's egress, link 3, has room for
  // more, but link 0 is paused half of the time, and its own share of link 0 is all it gets.
  const std::vector<double> solved = rates({12, 12, 12, 12}, {{0, 1}, {0, 3}, {2, 1}});
  EXPECT_NEAR(solved[0], 6, 0.4);
  EXPECT_NEAR(solved[1], 6, 0.4);
  // With three flows into link 1 from elsewhere, flow 0 gets 3, and so does the victim, whereas
  // max-min would leave it 9.
  const std::vector<double> worse =
      rates({12, 12, 12, 12, 12, 12}, {{0, 1}, {0, 3}, {2, 1}, {4, 1}, {5, 1}});
  EXPECT_NEAR(worse[0], 3, 0.3);
  EXPECT_NEAR(worse[1], 3, 0.3);
}

TEST(Pfc, NoLinkIsOverloadedAndLoneFlowsRunAtLineRate) {
  const FatTree tree(8, Bandwidth::gbps(100), std::chrono::microseconds(1));
  for (std::uint64_t round = 0; round < 20; ++round) {
    RandomStream random = Rng(21).stream("permutation", round);
    const std::vector<std::uint32_t> to = test::derangement(tree.hosts(), random);
    const FlowSet set = test::permutation(tree, to, Bytes(1), random);
    std::vector<std::vector<std::uint32_t>> paths;
    std::vector<double> users(tree.links().size(), 0);
    for (const PointToPointFlow& flow : set.flows) {
      paths.push_back(flow.links);
      for (const std::uint32_t link : flow.links) users[link] += 1;
    }
    const std::vector<double> solved = rates(std::vector<double>(tree.links().size(), 100), paths);
    std::vector<double> load(tree.links().size(), 0);
    for (std::size_t f = 0; f < paths.size(); ++f) {
      bool is_alone = true;
      for (const std::uint32_t link : paths[f]) {
        load[link] += solved[f];
        is_alone = is_alone && users[link] == 1;
      }
      EXPECT_TRUE(!is_alone || std::abs(solved[f] - 100) < 1e-9) << "round " << round;
    }
    for (const double each : load) ASSERT_LE(each, 100 * (1 + 1e-9)) << "round " << round;
  }
}

// The mean over the last half of the passes: near what many passes give, on average over flows.
TEST(Pfc, FortyPassesAreEnough) {
  const FatTree tree(8, Bandwidth::gbps(100), std::chrono::microseconds(1));
  RandomStream random = Rng(22).stream("permutation");
  const std::vector<std::uint32_t> to = test::derangement(tree.hosts(), random);
  const FlowSet set = test::permutation(tree, to, Bytes(1), random);
  std::vector<std::vector<std::uint32_t>> paths;
  for (const PointToPointFlow& flow : set.flows) paths.push_back(flow.links);
  const std::vector<double> capacity(tree.links().size(), 100);
  PfcOptions many;
  many.passes_cold = 2000;
  double sum = 0;
  double sum_many = 0;
  for (const double rate : rates(capacity, paths)) sum += rate;
  for (const double rate : rates(capacity, paths, many)) sum_many += rate;
  EXPECT_NEAR(sum / sum_many, 1, 0.01);
}

TEST(Pfc, RefusesPathsThatCanDeadlock) {
  // Three links in a circle, each flow crosses two.
  try {
    IngressFairRates({1, 1, 1}, {{0, 1}, {1, 2}, {2, 0}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    EXPECT_NE(std::string(error.what()).find("deadlock"), std::string::npos);
  }
}

}  // namespace
}  // namespace foresail::sim
