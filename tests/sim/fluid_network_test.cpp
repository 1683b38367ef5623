#include "foresail/sim/fluid_network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "foresail/base/rng.h"
#include "foresail/sim/max_min.h"

namespace foresail::sim {
namespace {

TEST(MaxMin, EqualFlowsShareALinkEqually) {
  // 2 flows, 1 link of 400: 200 each.
  EXPECT_EQ(solve_max_min({{400}, {{{0, 1}}, {{0, 1}}}}), (std::vector<double>{200, 200}));
}

TEST(MaxMin, ParkingLotGivesTheLongFlowItsFairShare) {
  // Links 10 and 6. Flow 0 crosses both, 1 the first, 2 the second: second link fills first at 3.
  EXPECT_EQ(solve_max_min({{10, 6}, {{{0, 1}, {1, 1}}, {{0, 1}}, {{1, 1}}}}),
            (std::vector<double>{3, 7, 3}));
}

TEST(MaxMin, ARingThatCrossesALinkTwiceTakesTwoShares) {
  // Ring loads the link twice, beside one flow: 3 shares of 9.
  EXPECT_EQ(solve_max_min({{9}, {{{0, 2}}, {{0, 1}}}}), (std::vector<double>{3, 3}));
}

struct RandomCase {
  MaxMinSystem system;
  FluidNetwork network;
  std::vector<RouteId> routes;
};

RandomCase random_case(RandomStream& random) {
  RandomCase made;
  const std::size_t pipes = 2 + random.below(14);
  for (std::size_t p = 0; p < pipes; ++p) {
    made.system.capacity.push_back(1.0 + static_cast<double>(random.below(9)));
    made.network.add_pipe(made.system.capacity.back());
  }
  const std::size_t routes = 1 + random.below(25);
  for (std::size_t r = 0; r < routes; ++r) {
    std::map<std::uint32_t, double> chosen;
    for (std::uint64_t hops = 1 + random.below(5); hops > 0; --hops) {
      chosen[static_cast<std::uint32_t>(random.below(pipes))] =
          random.below(4) == 0 ? 0.5 * static_cast<double>(1 + random.below(5)) : 1.0;
    }
    std::vector<RouteEntry> entries;
    for (const auto& [pipe, weight] : chosen) entries.push_back({PipeId{pipe}, weight});
    made.routes.push_back(made.network.add_route(entries));
    made.system.variables.emplace_back();
    for (const auto& [pipe, weight] : chosen)
      made.system.variables.back().push_back({pipe, weight});
  }
  return made;
}

TEST(FluidNetwork, RatesEqualTheReferenceSolverOnTenThousandSystems) {
  RandomStream random = Rng(5).stream("systems");
  for (int round = 0; round < 10000; ++round) {
    RandomCase made = random_case(random);
    std::vector<FlowId> flows;
    for (const RouteId route : made.routes) {
      flows.push_back(made.network.start(route, 1e6, 0, SimTime{}));
      if (random.below(2) == 0) made.network.settle(SimTime{});  // incremental and together
    }
    made.network.settle(SimTime{});
    const std::vector<double> expected = solve_max_min(made.system);
    for (std::size_t f = 0; f < flows.size(); ++f) {
      ASSERT_NEAR(made.network.rate(flows[f]), expected[f], 1e-6 * expected[f])
          << "round " << round;
    }
  }
}

TEST(FluidNetwork, RatesAfterDeparturesEqualASolveFromScratch) {
  RandomStream random = Rng(6).stream("departures");
  for (int round = 0; round < 1000; ++round) {
    RandomCase made = random_case(random);
    std::vector<FlowId> flows;
    for (std::size_t f = 0; f < made.routes.size(); ++f) {
      const double amount = 1.0 + static_cast<double>(random.below(1000));
      flows.push_back(made.network.start(made.routes[f], amount, f, SimTime{}));
    }
    made.network.settle(SimTime{});
    std::vector<bool> left(flows.size(), false);
    while (const auto when = made.network.next_finish()) {
      left[made.network.finish_next()] = true;
      made.network.settle(*when);
      MaxMinSystem rest{made.system.capacity, {}};
      std::vector<std::size_t> who;
      for (std::size_t f = 0; f < flows.size(); ++f) {
        if (left[f]) continue;
        rest.variables.push_back(made.system.variables[f]);
        who.push_back(f);
      }
      const std::vector<double> expected = solve_max_min(rest);
      for (std::size_t i = 0; i < who.size(); ++i) {
        ASSERT_NEAR(made.network.rate(flows[who[i]]), expected[i], 1e-6 * expected[i])
            << "round " << round;
      }
    }
    ASSERT_TRUE(std::ranges::all_of(left, [](bool gone) { return gone; }));
  }
}

TEST(FluidNetwork, EqualFlowsThatStartTogetherKeepTheirRates) {
  // Theorem F1: FCT = size / rate of the one water-fill.
  RandomStream random = Rng(7).stream("equal");
  for (int round = 0; round < 300; ++round) {
    RandomCase made = random_case(random);
    std::vector<double> expected;
    for (std::size_t f = 0; f < made.routes.size(); ++f) {
      made.network.start(made.routes[f], 1000, f, SimTime{});
    }
    made.network.settle(SimTime{});
    const std::vector<double> rates = solve_max_min(made.system);
    while (const auto when = made.network.next_finish()) {
      const std::size_t f = made.network.finish_next();
      made.network.settle(*when);
      ASSERT_NEAR(to_seconds(*when - SimTime{}), 1000 / rates[f], 1e-6 * 1000 / rates[f]);
    }
  }
}

TEST(FluidNetwork, StaggeredFlowsShareOnlyWhileBothRun) {
  // The oracle case stagger2: 20 MB from 0 and 10 MB from 400 us on one 100 Gb/s link
  // (12.5 GB/s). Alone until 400 us: 5 MB sent; then 6.25 GB/s each: the second ends at 2000 us,
  // the first has 5 MB left and ends at 2400 us.
  FluidNetwork network;
  const PipeId link = network.add_pipe(12.5e9);
  const std::vector<RouteEntry> entries = {{link, 1}};
  const RouteId route = network.add_route(entries);
  network.start(route, 20e6, 1, SimTime{});
  network.settle(SimTime{});
  const SimTime second = SimTime{} + std::chrono::microseconds(400);
  network.start(route, 10e6, 2, second);
  network.settle(second);
  EXPECT_EQ(*network.next_finish(), SimTime{} + std::chrono::microseconds(2000));
  EXPECT_EQ(network.finish_next(), 2u);
  network.settle(SimTime{} + std::chrono::microseconds(2000));
  EXPECT_EQ(*network.next_finish(), SimTime{} + std::chrono::microseconds(2400));
  EXPECT_EQ(network.finish_next(), 1u);
  EXPECT_EQ(network.carried(link), 30e6);
}

// 70 routes over one pipe, more than are searched for active flows, one made while others run.
TEST(FluidNetwork, APipeOfManyRoutesKnowsItsFlowsHoweverLateARouteIsMade) {
  FluidNetwork network;
  const PipeId link = network.add_pipe(120);
  const std::vector<RouteEntry> entries = {{link, 1}};
  std::vector<RouteId> routes;
  std::vector<FlowId> flows;
  for (std::uint64_t i = 0; i < 70; ++i) {
    routes.push_back(network.add_route(entries));
    if (i % 10 == 3) flows.push_back(network.start(routes.back(), 1000, i, SimTime{}));
  }
  network.settle(SimTime{});
  EXPECT_EQ(network.flows_on(link), flows);
  // 7 flows: 120 / 7 each.
  for (const FlowId flow : flows) EXPECT_NEAR(network.rate(flow), 120.0 / 7, 1e-9);
  network.stop(flows[2], SimTime{});
  network.settle(SimTime{});
  EXPECT_NEAR(network.rate(flows[0]), 20, 1e-9);
  EXPECT_EQ(network.flows_on(link).size(), 6u);
}

// A pipe that one flow leaves idle, then two contend for, then one has alone, counts them all.
TEST(FluidNetwork, APipeCountsWhatPassesWhetherContendedOrNot) {
  FluidNetwork network;
  const PipeId link = network.add_pipe(10);
  const std::vector<RouteEntry> entries = {{link, 1}};
  const RouteId slow = network.add_route(entries, {1, 4});
  const RouteId fast = network.add_route(entries);
  network.start(slow, 8, 1, SimTime{});  // at 4 until 2 s
  network.settle(SimTime{});
  EXPECT_EQ(network.flows_on(link).size(), 1u);
  const SimTime second = SimTime{} + std::chrono::seconds(1);
  const FlowId other = network.start(fast, 10, 2, second);
  network.settle(second);
  EXPECT_NEAR(network.rate(other), 6, 1e-9);
  EXPECT_EQ(network.flows_on(link).size(), 2u);
  EXPECT_NEAR(network.carried(link, second), 4, 1e-9);
  EXPECT_EQ(network.finish_next(), 1u);
  const SimTime third = SimTime{} + std::chrono::seconds(2);
  network.settle(third);
  EXPECT_EQ(network.flows_on(link), std::vector<FlowId>{other});
  EXPECT_NEAR(network.rate(other), 10, 1e-9);
  EXPECT_NEAR(network.carried(link, third), 14, 1e-9);  // 8 and 6
  EXPECT_EQ(network.finish_next(), 2u);
  EXPECT_EQ(network.carried(link), 18);
  EXPECT_TRUE(network.flows_on(link).empty());
}

}  // namespace
}  // namespace foresail::sim
