#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "foresail/base/error.h"
#include "foresail/sim/fluid_network.h"

// Links that change under way, and what a network says about who slowed whom.
namespace foresail::sim {
namespace {

using testing::ElementsAre;

SimTime at_seconds(int seconds) {
  return SimTime{} + std::chrono::seconds(seconds);
}

RouteId over(FluidNetwork& network, std::initializer_list<PipeId> pipes) {
  std::vector<RouteEntry> entries;
  for (const PipeId pipe : pipes) entries.push_back({pipe, 1});
  return network.add_route(entries);
}

TEST(FluidFaults, AFlowWaitsWhileItsLinkIsDown) {
  // 100 units at 10/s; down from 4 s to 7 s: ends at 13 s.
  FluidNetwork network;
  const PipeId link = network.add_pipe(10);
  const FlowId flow = network.start(over(network, {link}), 100, 1, SimTime{});
  network.settle(SimTime{});
  network.set_capacity(link, 0, at_seconds(4));
  network.settle(at_seconds(4));
  EXPECT_EQ(network.rate(flow), 0);
  EXPECT_EQ(network.next_finish(), std::nullopt);
  EXPECT_EQ(network.carried(link, at_seconds(6)), 40);
  network.set_capacity(link, 10, at_seconds(7));
  network.settle(at_seconds(7));
  EXPECT_EQ(*network.next_finish(), at_seconds(13));
  EXPECT_EQ(network.finish_next(), 1u);
  EXPECT_EQ(network.epoch(), 2u);
  EXPECT_EQ(network.limiting_time(link, at_seconds(13)), std::chrono::seconds(3));
}

TEST(FluidFaults, AFlowThatStartsOnADeadLinkWaitsForItsReturn) {
  FluidNetwork network;
  const PipeId link = network.add_pipe(10);
  const RouteId route = over(network, {link});
  network.set_capacity(link, 0, SimTime{});
  const std::vector<RouteId> routes = {route, route};
  network.start_together(routes, 10, 5, SimTime{});
  network.settle(SimTime{});
  EXPECT_EQ(network.next_finish(), std::nullopt);
  network.set_capacity(link, 10, at_seconds(3));
  network.settle(at_seconds(3));
  EXPECT_EQ(*network.next_finish(), at_seconds(5));  // 5/s each
}

TEST(FluidFaults, ADegradedLinkReleasesWhatItsFlowsHeldElsewhere) {
  // Flows a and b share link 0 of 10; a goes on over link 1. When link 1 drops to 2, b gets 8.
  FluidNetwork network;
  const PipeId shared = network.add_pipe(10);
  const PipeId far = network.add_pipe(10);
  const FlowId a = network.start(over(network, {shared, far}), 1000, 1, SimTime{});
  const FlowId b = network.start(over(network, {shared}), 1000, 2, SimTime{});
  network.settle(SimTime{});
  EXPECT_EQ(network.rate(a), 5);
  network.set_capacity(far, 2, at_seconds(1));
  network.settle(at_seconds(1));
  EXPECT_DOUBLE_EQ(network.rate(a), 2);
  EXPECT_DOUBLE_EQ(network.rate(b), 8);
  network.set_capacity(far, 10, at_seconds(2));
  network.settle(at_seconds(2));
  EXPECT_DOUBLE_EQ(network.rate(a), 5);
  EXPECT_DOUBLE_EQ(network.rate(b), 5);
}

TEST(FluidFaults, AFlowMayEndAtTheMomentItsLinkChanges) {
  FluidNetwork network;
  const PipeId link = network.add_pipe(10);
  const RouteId route = over(network, {link});
  network.start(route, 10, 1, SimTime{});
  const FlowId longer = network.start(route, 30, 2, SimTime{});
  network.settle(SimTime{});
  EXPECT_EQ(*network.next_finish(), at_seconds(2));
  network.set_capacity(link, 5, at_seconds(2));
  EXPECT_EQ(network.finish_next(), 1u);
  network.settle(at_seconds(2));
  EXPECT_EQ(network.rate(longer), 5);
  EXPECT_EQ(*network.next_finish(), at_seconds(6));  // 20 left
}

TEST(FluidFaults, SharesDivideABottleneckInProportion) {
  FluidNetwork network;
  const PipeId link = network.add_pipe(12);
  const std::vector<RouteEntry> entries = {{link, 1}};
  RouteOptions heavy;
  heavy.share = 3;
  const FlowId light = network.start(network.add_route(entries), 30, 1, SimTime{});
  const FlowId triple = network.start(network.add_route(entries, heavy), 30, 2, SimTime{});
  network.settle(SimTime{});
  EXPECT_DOUBLE_EQ(network.rate(light), 3);
  EXPECT_DOUBLE_EQ(network.rate(triple), 9);
}

TEST(FluidFaults, TheWorstMomentNamesWhoCollided) {
  // Tags 7 and 8 share the link from 0 s; 9 joins at 1 s: three at most. All end by 4 s, and the
  // link slowed someone until two were left at most one: 20 + 20 + 5 units at 10/s.
  FluidNetwork network;
  const PipeId link = network.add_pipe(10);
  const PipeId idle = network.add_pipe(10);
  const RouteId first = over(network, {link, idle});
  const RouteId second = over(network, {link});
  network.start(first, 20, 8, SimTime{});
  network.start(second, 20, 7, SimTime{});
  network.settle(SimTime{});
  network.start(second, 5, 9, at_seconds(1));
  network.settle(at_seconds(1));
  const Contention& worst = network.worst_moment(link);
  EXPECT_EQ(worst.sharers, 3);
  EXPECT_EQ(worst.when, at_seconds(1));
  EXPECT_THAT(worst.tags, ElementsAre(7u, 8u, 9u));
  EXPECT_THAT(worst.routes, ElementsAre(second, first, second));
  EXPECT_EQ(network.worst_moment(idle).sharers, 0);
  while (const auto when = network.next_finish()) {
    network.finish_next();
    network.settle(*when);
  }
  EXPECT_NEAR(to_seconds(network.limiting_time(link, at_seconds(9))), 4.5, 1e-9);
  EXPECT_EQ(network.limiting_time(idle, at_seconds(9)), Duration{});
  EXPECT_EQ(network.sharers_max(link), 3);
}

TEST(FluidFaults, RefusesWhatCannotBe) {
  FluidNetwork network;
  const PipeId link = network.add_pipe(10);
  EXPECT_THROW(network.set_capacity(link, -1, SimTime{}), ContractViolation);
  RouteOptions none;
  none.share = 0;
  const std::vector<RouteEntry> entries = {{link, 1}};
  EXPECT_THROW(network.add_route(entries, none), ContractViolation);
}

}  // namespace
}  // namespace foresail::sim
