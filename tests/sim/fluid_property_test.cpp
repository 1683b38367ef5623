#include <gtest/gtest.h>

#include <chrono>
#include <tuple>

#include "fluid_history.h"

// What must hold of any history of starts, ends and changes of capacity.
namespace foresail::sim {
namespace {

using test::History;
using test::random_event;
using test::random_system;
using test::Unfairness;
using test::unfairness;

// In place; from scratch every time; from scratch without memory; mixed.
std::vector<FluidOptions> all_ways() {
  return {{0, 1, 0}, {0, 0, std::size_t{1} << 20}, {0, 0, 0}, {}};
}

TEST(FluidProperty, AnyHistoryHasTheRatesOfTheReferenceSolver) {
  RandomStream random = Rng(11).stream("histories");
  const std::vector<FluidOptions> ways = all_ways();
  for (std::size_t round = 0; round < 10000; ++round) {
    History history(random_system(random), ways[round % ways.size()]);
    for (int event = 0; event < 8; ++event) {
      random_event(history, random);
      const std::vector<double> expected = history.expected();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(history.rates()[i], expected[i], 1e-6 * expected[i] + 1e-12)
            << "round " << round << " event " << event;
      }
    }
  }
}

// Two rings over most of 150 pipes among short flows: equal bottlenecks, and rings that push one
// flow after the other.
TEST(FluidProperty, RingsOfManyPipesHaveTheRatesOfTheReferenceSolver) {
  RandomStream random = Rng(19).stream("rings");
  const std::vector<FluidOptions> ways = all_ways();
  for (std::size_t round = 0; round < 80; ++round) {
    MaxMinSystem system;
    for (int p = 0; p < 150; ++p) {
      system.capacity.push_back(1 + static_cast<double>(random.below(round % 2 == 0 ? 2 : 9)));
    }
    system.variables.resize(2);
    for (std::uint32_t p = 0; p < 150; ++p) {
      for (std::size_t ring = 0; ring < 2; ++ring) {
        if (random.below(8) > 0) system.variables[ring].push_back({p, 1});
      }
    }
    for (int v = 0; v < 120; ++v) {
      const auto first = static_cast<std::uint32_t>(random.below(148));
      system.variables.push_back({{first, 1}});
      if (random.below(2) == 0) system.variables.back().push_back({first + 2, 1});
    }
    History history(system, ways[round / 2 % ways.size()]);
    history.start(0, 1000);
    history.start(1, 1000);
    for (std::size_t v = 2; v < 90; ++v) history.start(v, 1 + random.uniform());
    history.settle();
    for (int event = 0; event < 60; ++event) {
      random_event(history, random);
      const std::vector<double> expected = history.expected();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(history.rates()[i], expected[i], 1e-6 * expected[i] + 1e-12)
            << "round " << round << " event " << event;
      }
    }
  }
}

TEST(FluidProperty, EveryFlowMeetsItsCapOrAFullPipeAndNoPipeIsOverloaded) {
  RandomStream random = Rng(12).stream("histories");
  const std::vector<FluidOptions> ways = all_ways();
  for (std::size_t round = 0; round < 2000; ++round) {
    History history(random_system(random), ways[round % ways.size()]);
    for (int event = 0; event < 20; ++event) {
      random_event(history, random);
      const Unfairness found = unfairness(history);
      ASSERT_LE(found.overload, 1e-8) << "round " << round << " event " << event;
      ASSERT_LE(found.unjustified, 1e-8) << "round " << round << " event " << event;
    }
  }
}

TEST(FluidProperty, AToleranceBoundsTheUnfairnessAndNeverOverloads) {
  RandomStream random = Rng(13).stream("histories");
  double worst = 0;
  for (const double tolerance : {1e-3, 1e-1}) {
    for (std::size_t round = 0; round < 1000; ++round) {
      FluidOptions options;
      options.tolerance = tolerance;
      options.full_fill_share = 1;
      History history(random_system(random), options);
      for (int event = 0; event < 20; ++event) {
        random_event(history, random);
        const Unfairness found = unfairness(history);
        worst = std::max(worst, found.unjustified);
        ASSERT_LE(found.overload, 1e-8) << "round " << round << " event " << event;
        ASSERT_LE(found.unjustified, tolerance * (1 + 1e-6))
            << "round " << round << " event " << event;
      }
    }
  }
  EXPECT_GT(worst, 1e-3);  // the tolerance is used
}

TEST(FluidProperty, PipesCarryWhatFlowsSend) {
  RandomStream random = Rng(14).stream("histories");
  for (std::size_t round = 0; round < 500; ++round) {
    History history(random_system(random));
    std::vector<double> started(history.system().capacity.size(), 0);
    for (int event = 0; event < 20; ++event) {
      const std::size_t route = random.below(history.system().variables.size());
      const double amount = 1.0 + static_cast<double>(random.below(100));
      history.start(route, amount);
      for (const MaxMinEntry& entry : history.system().variables[route]) {
        started[entry.constraint] += entry.weight * amount;
      }
      history.settle();
      const std::optional<SimTime> end = history.network.next_finish();
      const SimTime middle = history.now + (*end - history.now) / 2;
      history.advance(middle);
      for (std::uint32_t p = 0; p < started.size(); ++p) {
        ASSERT_NEAR(history.network.carried(PipeId{p}, middle), history.sent(p),
                    1e-9 * (1 + history.sent(p)));
      }
      if (event % 2 == 1) history.finish();
    }
    while (history.finish()) continue;
    for (std::uint32_t p = 0; p < started.size(); ++p) {
      ASSERT_NEAR(history.network.carried(PipeId{p}), started[p], 1e-9 * (1 + started[p]));
      ASSERT_NEAR(history.sent(p), started[p], 1e-9 * (1 + started[p])) << "round " << round;
    }
  }
}

// Theorem F1 with shares: sizes in proportion to shares, common start, no caps. When the fastest
// leave, each flow that stays has a bottleneck that none of them crossed.
TEST(FluidProperty, SizesInProportionToSharesKeepTheirRatesToTheEnd) {
  RandomStream random = Rng(15).stream("systems");
  for (std::size_t round = 0; round < 500; ++round) {
    MaxMinSystem system = random_system(random);
    system.cap.assign(system.cap.size(), 1e6);
    History history(system);
    for (std::size_t v = 0; v < system.variables.size(); ++v) {
      history.start(v, 100 * system.share[v]);
    }
    history.settle();
    std::vector<double> expected;
    for (std::size_t i = 0; i < history.active.size(); ++i) {
      expected.push_back(history.active[i].amount / history.rates()[i]);
    }
    while (const auto when = history.network.next_finish()) {
      const std::uint64_t route = history.network.finish_next();
      history.network.settle(*when);
      const double taken = to_seconds(*when - SimTime{});
      ASSERT_NEAR(taken, expected[route], 1e-9 * expected[route]) << "round " << round;
    }
  }
}

// Theorem F2: a pipelined ring is one variable that loads every link it crosses, and runs as fast
// as the slowest of its edges, each beside its own link's other traffic.
TEST(FluidProperty, ACoupledRingRunsAtThePaceOfItsSlowestEdge) {
  RandomStream random = Rng(16).stream("rings");
  for (std::size_t round = 0; round < 500; ++round) {
    const auto edges = static_cast<std::uint32_t>(2 + random.below(30));
    FluidNetwork coupled;
    FluidNetwork apart;
    std::vector<RouteEntry> ring;
    std::vector<FlowId> edge_flows;
    for (std::uint32_t e = 0; e < edges; ++e) {
      const double capacity = 1 + static_cast<double>(random.below(20));
      ring.push_back({coupled.add_pipe(capacity), 1});
      apart.add_pipe(capacity);
      const std::vector<RouteEntry> alone = {{PipeId{e}, 1}};
      edge_flows.push_back(apart.start(apart.add_route(alone), 1, 0, SimTime{}));
      for (std::uint64_t others = random.below(4); others > 0; --others) {
        coupled.start(coupled.add_route(alone), 1, 0, SimTime{});
        apart.start(apart.add_route(alone), 1, 0, SimTime{});
      }
    }
    const FlowId ring_flow = coupled.start(coupled.add_route(ring), 1, 0, SimTime{});
    coupled.settle(SimTime{});
    apart.settle(SimTime{});
    double slowest = 1e9;
    for (const FlowId edge : edge_flows) slowest = std::min(slowest, apart.rate(edge));
    ASSERT_NEAR(coupled.rate(ring_flow), slowest, 1e-9 * slowest) << "round " << round;
  }
}

// When each flow of a history ends, by its size.
std::map<double, double> completions(History& history) {
  std::map<double, double> ends;
  while (const auto when = history.network.next_finish()) {
    const double size = history.active[history.network.finish_next()].amount;
    history.network.settle(*when);
    ends[size] = to_seconds(*when - SimTime{});
  }
  return ends;
}

// The same flows, with pipes, routes and starts in another order.
TEST(FluidProperty, TheOrderOfConstructionDoesNotMatter) {
  RandomStream random = Rng(17).stream("orders");
  for (std::size_t round = 0; round < 500; ++round) {
    const MaxMinSystem system = random_system(random);
    const auto pipes = static_cast<std::uint32_t>(system.capacity.size());
    const auto routes = static_cast<std::uint32_t>(system.variables.size());
    MaxMinSystem mirrored;
    mirrored.capacity.assign(system.capacity.rbegin(), system.capacity.rend());
    for (std::uint32_t v = routes; v-- > 0;) {
      mirrored.share.push_back(system.share[v]);
      mirrored.cap.push_back(system.cap[v]);
      std::vector<MaxMinEntry> entries;
      for (const MaxMinEntry& entry : system.variables[v]) {
        entries.insert(entries.begin(), {pipes - 1 - entry.constraint, entry.weight});
      }
      mirrored.variables.push_back(entries);
    }
    History one(system);
    History other(mirrored);
    for (std::uint32_t v = 0; v < routes; ++v) {
      one.start(v, 10.0 + v);
      other.start(v, 10.0 + (routes - 1 - v));
    }
    one.settle();
    other.settle();
    const std::map<double, double> ends = completions(one);
    const std::map<double, double> other_ends = completions(other);
    for (const auto& [size, end] : ends) {
      ASSERT_NEAR(other_ends.at(size), end, 1e-9 * end) << "round " << round << " size " << size;
    }
  }
}

// Waves of the same routes: the second and later ones come from memory, to the bit.
TEST(FluidProperty, ARememberedPatternAnswersBitByBitAsAFreshFill) {
  RandomStream random = Rng(18).stream("patterns");
  std::uint64_t remembered = 0;
  for (std::size_t round = 0; round < 300; ++round) {
    const MaxMinSystem system = random_system(random);
    History with(system, {0, 0, 1000});
    History without(system, {0, 0, 0});
    for (int event = 0; event < 30; ++event) {
      const std::uint64_t kind = random.below(20);
      for (History* history : {&with, &without}) {
        if (kind == 0) {
          history->set_capacity(0, history->system().capacity[0] == 1 ? 2 : 1);
        } else if (history->active.empty()) {
          const std::size_t routes = 1 + kind % system.variables.size();
          for (std::size_t v = 0; v < routes; ++v) history->start(v, 100);
        } else {
          history->finish();
        }
        history->settle();
      }
      ASSERT_EQ(with.rates(), without.rates()) << "round " << round << " event " << event;
      ASSERT_EQ(with.now, without.now);
    }
    remembered += with.network.remembered_fills();
    ASSERT_EQ(without.network.remembered_fills(), 0u);
  }
  EXPECT_GT(remembered, 100u);
}

}  // namespace
}  // namespace foresail::sim
