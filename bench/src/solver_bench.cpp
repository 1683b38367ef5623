#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fat_tree.h"
#include "foresail/base/rng.h"
#include "foresail/sim/flow_set.h"
#include "foresail/sim/fluid_network.h"

// The flow solver alone: what a water-fill, a wave, a permutation and an asynchronous event cost.
namespace foresail::sim {
namespace {

using test::FatTree;

/// `flows` flows of 6 links each: up and down through random switches of a three-tier fabric of
/// `flows` NICs, 4 links per NIC (facts 1.4: 12,288 NICs, 49,152 links).
class Fabric {
 public:
  Fabric(std::uint32_t nics, const FluidOptions& options) : network(options) {
    for (std::uint32_t p = 0; p < 6 * nics; ++p) network.add_pipe(25e9);
    RandomStream random = Rng(71).stream("fabric");
    const std::vector<std::uint32_t> to = test::derangement(nics, random);
    for (std::uint32_t from = 0; from < nics; ++from) {
      std::vector<RouteEntry> entries = {{PipeId{from}, 1}, {PipeId{nics + to[from]}, 1}};
      for (std::uint32_t tier = 2; tier < 6; ++tier) {
        const auto link = static_cast<std::uint32_t>(random.below(nics));
        entries.push_back({PipeId{tier * nics + link}, 1});
      }
      routes.push_back(network.add_route(entries));
    }
  }
  FluidNetwork network;
  std::vector<RouteId> routes;
};

void drain(FluidNetwork& network) {
  while (const std::optional<SimTime> when = network.next_finish()) {
    while (network.next_finish() == when) network.finish_next();
    network.settle(*when);
  }
}

// Equal flows on hashed paths that start together: one fill from scratch.
void water_fill(benchmark::State& state) {
  FluidOptions options;
  options.remembered_rates = 0;
  const auto flows = static_cast<std::uint32_t>(state.range(0));
  Fabric fabric(flows, options);
  SimTime now{};
  for (auto unused : state) {
    state.PauseTiming();
    drain(fabric.network);
    now += Duration(1'000'000'000'000);
    fabric.network.start_together(fabric.routes, 1e9, 0, now);
    state.ResumeTiming();
    fabric.network.settle(now);
  }
  state.counters["flows"] = static_cast<double>(flows);
  state.SetComplexityN(state.range(0));
}

// The same with starts and ends: what one wave of a collective costs in all, a fill each time or
// one that is remembered.
void wave(benchmark::State& state, std::size_t remembered_rates) {
  FluidOptions options;
  options.remembered_rates = remembered_rates;
  Fabric fabric(static_cast<std::uint32_t>(state.range(0)), options);
  SimTime now{};
  for (auto unused : state) {
    fabric.network.start_together(fabric.routes, 1e9, 0, now);
    fabric.network.settle(now);
    drain(fabric.network);
    now += Duration(1'000'000'000'000);
  }
  state.counters["flows/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * state.range(0)), benchmark::Counter::kIsRate);
  state.counters["fills"] = static_cast<double>(fabric.network.full_fills());
}

// SimGrid's case: every host sends to another, D-mod-k routes; set-up included, as there.
void permutation(benchmark::State& state) {
  const FatTree tree(static_cast<int>(state.range(0)), Bandwidth::gbps(100), Duration(1'000'000));
  RandomStream random = Rng(72).stream("permutation");
  const std::vector<std::uint32_t> to = test::derangement(tree.hosts(), random);
  for (auto unused : state) {
    FlowSet set{tree.links(), {}};
    for (std::uint32_t i = 0; i < tree.hosts(); ++i) {
      set.flows.push_back({tree.dmodk_path(i, to[i]), Bytes(10'000'000)});
    }
    benchmark::DoNotOptimize(complete(set));
  }
  state.counters["hosts"] = static_cast<double>(tree.hosts());
}

std::vector<RouteId> ring_edges(const FatTree& tree, FluidNetwork& network) {
  for (const FlowLink& link : tree.links()) network.add_pipe(link.bandwidth.bytes_per_second());
  std::vector<RouteId> edges;
  for (std::uint32_t i = 0; i < tree.hosts(); ++i) {
    std::vector<RouteEntry> entries;
    for (const std::uint32_t link : tree.dmodk_path(i, (i + 1) % tree.hosts())) {
      entries.push_back({PipeId{link}, 1});
    }
    edges.push_back(network.add_route(entries));
  }
  return edges;
}

// Ring all-reduce of 1,024 hosts step by step, every message a flow: 2 (n - 1) waves of n.
void ring_by_steps(benchmark::State& state) {
  const FatTree tree(16, Bandwidth::gbps(100), Duration(1'000'000));
  const std::uint32_t n = tree.hosts();
  std::uint64_t flows = 0;
  for (auto unused : state) {
    FluidNetwork network;
    const std::vector<RouteId> edges = ring_edges(tree, network);
    SimTime now{};
    for (std::uint32_t step = 0; step < 2 * (n - 1); ++step) {
      for (const RouteId edge : edges) network.start(edge, 1e6, step, now);
      network.settle(now);
      while (const std::optional<SimTime> when = network.next_finish()) {
        now = *when;
        while (network.next_finish() == when) network.finish_next();
        network.settle(now);
      }
      flows += n;
    }
  }
  state.counters["flows/s"] =
      benchmark::Counter(static_cast<double>(flows), benchmark::Counter::kIsRate);
}

// The same as one coupled variable that loads each link as often as the ring crosses it (F2).
void ring_coupled(benchmark::State& state) {
  const FatTree tree(16, Bandwidth::gbps(100), Duration(1'000'000));
  const std::uint32_t n = tree.hosts();
  for (auto unused : state) {
    FluidNetwork network;
    for (const FlowLink& link : tree.links()) network.add_pipe(link.bandwidth.bytes_per_second());
    std::vector<double> load(tree.links().size(), 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      for (const std::uint32_t link : tree.dmodk_path(i, (i + 1) % n)) load[link] += 1;
    }
    std::vector<RouteEntry> entries;
    for (std::uint32_t link = 0; link < load.size(); ++link) {
      if (load[link] > 0) entries.push_back({PipeId{link}, load[link]});
    }
    network.start(network.add_route(entries), 2 * (n - 1) * 1e6, 0, SimTime{});
    network.settle(SimTime{});
    drain(network);
  }
}

// Flows of random sizes on random paths, each end followed by a new start: `range(0)` active on a
// fat tree of 1,024 hosts. An event is a start or an end.
void asynchronous(benchmark::State& state, double tolerance) {
  const FatTree tree(16, Bandwidth::gbps(100), Duration(1'000'000));
  FluidOptions options;
  options.tolerance = tolerance;
  FluidNetwork network(options);
  for (const FlowLink& link : tree.links()) network.add_pipe(link.bandwidth.bytes_per_second());
  RandomStream random = Rng(73).stream("arrivals");
  std::vector<RouteId> routes;
  for (int r = 0; r < 65536; ++r) {
    const auto from = static_cast<std::uint32_t>(random.below(tree.hosts()));
    const auto hop = static_cast<std::uint32_t>(1 + random.below(tree.hosts() - 1));
    std::vector<RouteEntry> entries;
    for (const std::uint32_t link : tree.random_path(from, (from + hop) % tree.hosts(), random)) {
      entries.push_back({PipeId{link}, 1});
    }
    routes.push_back(network.add_route(entries));
  }
  const auto start = [&](SimTime now) {
    network.start(routes[random.below(routes.size())], 1e5 + 1e7 * random.uniform(), 0, now);
  };
  for (std::int64_t i = 0; i < state.range(0); ++i) start(SimTime{});
  network.settle(SimTime{});
  const std::uint64_t before = network.solved_flows();
  for (auto unused : state) {
    const SimTime now = *network.next_finish();
    network.finish_next();
    start(now);
    network.settle(now);
  }
  state.counters["events/s"] = benchmark::Counter(2.0 * static_cast<double>(state.iterations()),
                                                  benchmark::Counter::kIsRate);
  state.counters["solved/event"] = static_cast<double>(network.solved_flows() - before) /
                                   (2.0 * static_cast<double>(state.iterations()));
}

}  // namespace
}  // namespace foresail::sim

int main(int argc, char** argv) {
  using namespace foresail::sim;
  constexpr auto kMilli = benchmark::kMillisecond;
  for (const int flows : {1024, 4096, 12288, 49152, 98304}) {
    benchmark::RegisterBenchmark("water-fill, 6 links a flow", water_fill)
        ->Arg(flows)
        ->Unit(kMilli);
  }
  for (const int flows : {1024, 12288, 98304}) {
    benchmark::RegisterBenchmark("wave, filled anew", wave, std::size_t{0})
        ->Arg(flows)
        ->Unit(kMilli);
    benchmark::RegisterBenchmark("wave, remembered", wave, std::size_t{1} << 22u)
        ->Arg(flows)
        ->Unit(kMilli);
  }
  for (const int k : {8, 16, 32}) {
    benchmark::RegisterBenchmark("permutation on a fat tree of k", permutation)
        ->Arg(k)
        ->Unit(kMilli);
  }
  benchmark::RegisterBenchmark("ring all-reduce, 1,024 hosts, by steps", ring_by_steps)
      ->Unit(kMilli);
  benchmark::RegisterBenchmark("ring all-reduce, 1,024 hosts, coupled", ring_coupled)->Unit(kMilli);
  for (const int flows : {512, 1024, 4096}) {
    benchmark::RegisterBenchmark("asynchronous, exact", asynchronous, 0.0)->Arg(flows);
    benchmark::RegisterBenchmark("asynchronous, tolerance 1e-3", asynchronous, 1e-3)->Arg(flows);
    benchmark::RegisterBenchmark("asynchronous, tolerance 1e-2", asynchronous, 1e-2)->Arg(flows);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
