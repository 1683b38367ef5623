#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <filesystem>

#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/scenario.h"

// How one unfolded step with hashed routes grows with the number of GPUs: more replicas of the same
// model, a global batch in proportion.
namespace foresail::scenarios {
namespace {

planner::Plan plan_of(int gpus) {
  const std::filesystem::path folder = std::filesystem::path(FORESAIL_SOURCE_DIR) / "scenarios";
  planner::Plan plan = load_scenario(folder / "megascale_175b_12288" / "scenario.yaml").plan;
  const int per_replica = plan.layout.tp * plan.layout.pp;
  plan.training.global_batch_size /= plan.layout.dp;
  plan.layout.dp = gpus / per_replica;
  plan.training.global_batch_size *= plan.layout.dp;
  plan.cluster.nodes = gpus / plan.cluster.node.devices;
  plan.placement = program::Placement::identity(gpus);
  return plan;
}

double peak_mebibytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void step(benchmark::State& state) {
  const auto gpus = static_cast<int>(state.range(0));
  const planner::Plan plan = plan_of(gpus);
  double events = 0;
  sim::StepOutcome outcome;
  for (auto unused : state) {
    outcome = predict(plan, {}).outcome;
    events += static_cast<double>(outcome.events);
  }
  state.counters["events/s"] = benchmark::Counter(events, benchmark::Counter::kIsRate);
  state.counters["solved/event"] =
      static_cast<double>(outcome.solved_flows) / static_cast<double>(outcome.events);
  // Of the process so far, so of this size as long as sizes only grow.
  state.counters["peak_MiB"] = peak_mebibytes();
  state.counters["us/GPU"] =
      benchmark::Counter(1e-6 * gpus * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetComplexityN(gpus);
}

}  // namespace
}  // namespace foresail::scenarios

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("step, hashed routes, unfolded", foresail::scenarios::step)
      ->Arg(1024)
      ->Arg(12288)
      ->Arg(24576)
      ->Arg(49152)
      ->Arg(98304)
      ->Unit(benchmark::kMillisecond)
      ->Complexity();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
