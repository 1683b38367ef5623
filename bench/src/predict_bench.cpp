#include <benchmark/benchmark.h>

#include <filesystem>
#include <string>

#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

Scenario load(const std::string& file) {
  return load_scenario(std::filesystem::path(FORESAIL_SOURCE_DIR) / "scenarios" / file);
}

void lower_and_verify(benchmark::State& state, const std::string& file) {
  const Scenario scenario = load(file);
  for (auto unused : state) benchmark::DoNotOptimize(lower_verified(scenario.plan));
}

void predict_step(benchmark::State& state, const std::string& file, sim::Fold fold) {
  const Scenario scenario = load(file);
  PredictOptions options;
  options.fold = fold;
  std::uint64_t events = 0;
  for (auto unused : state) events = predict(scenario.plan, options).outcome.events;
  state.counters["events"] = static_cast<double>(events);
}

}  // namespace
}  // namespace foresail::scenarios

int main(int argc, char** argv) {
  using foresail::scenarios::lower_and_verify;
  using foresail::scenarios::predict_step;
  using foresail::sim::Fold;
  const std::string routed = "megascale_175b_12288/scenario.yaml";
  const std::string symmetric = "megascale_175b_12288/symmetric.yaml";
  benchmark::RegisterBenchmark("lower and verify, 12,288 GPUs", lower_and_verify, routed)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("step, 12,288 GPUs, hashed routes", predict_step, routed, Fold::Auto)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("step, 12,288 GPUs, folded", predict_step, symmetric, Fold::Auto)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("step, 12,288 GPUs, unfolded", predict_step, symmetric, Fold::Off)
      ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
