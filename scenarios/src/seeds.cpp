#include "foresail/scenarios/seeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/scenarios/predict.h"

namespace foresail::scenarios {
namespace {

constexpr std::array<double, 5> kQuantiles = {0.0, 0.05, 0.5, 0.95, 1.0};
constexpr std::array<const char*, 5> kQuantileNames = {"min", "p5", "median", "p95", "max"};

}  // namespace

Duration SeedDistribution::quantile(double share) const {
  std::vector<Duration> sorted;
  for (const SeedTime& each : times) sorted.push_back(each.iteration);
  std::ranges::sort(sorted);
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const auto high = static_cast<std::size_t>(std::ceil(at));
  const double part = at - std::floor(at);
  return duration_from_seconds(to_seconds(sorted[low]) * (1 - part) +
                               to_seconds(sorted[high]) * part);
}

Duration SeedDistribution::mean() const {
  double sum = 0;
  for (const SeedTime& each : times) sum += to_seconds(each.iteration);
  return duration_from_seconds(sum / static_cast<double>(times.size()));
}

SeedDistribution simulate_seeds(const planner::Plan& plan, const SimulateOptions& options,
                                int count, int threads) {
  FORESAIL_EXPECT(count >= 1);
  const program::Program program = lower_verified(plan);
  const topologies::Cluster cluster(plan.cluster);
  const sim::SimulatorOptions base = simulator_options(plan, options.prediction());
  SeedDistribution distribution;
  distribution.times.resize(static_cast<std::size_t>(count));
  std::atomic<int> next{0};
  std::mutex guard;
  std::exception_ptr problem;
  const auto work = [&] {
    try {
      for (int i = next++; i < count; i = next++) {
        sim::SimulatorOptions simulator = base;
        simulator.seed = options.seed.value_or(plan.seed) + static_cast<std::uint64_t>(i);
        const sim::StepOutcome outcome =
            simulate_jobs(plan, program, cluster, simulator, options.conditions);
        if (!outcome.failure.empty()) {
          throw Error(ErrorCode::Unsupported, fmt::format("the job fails with seed {}: {}",
                                                          simulator.seed, outcome.failure));
        }
        distribution.times[static_cast<std::size_t>(i)] = {simulator.seed, outcome.iteration};
      }
    } catch (...) {
      const std::scoped_lock lock(guard);
      problem = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int t = 1; t < std::min(threads, count); ++t) pool.emplace_back(work);
    work();
  }
  if (problem) std::rethrow_exception(problem);
  return distribution;
}

Document to_document(const SeedDistribution& distribution) {
  Document document = {{"count", distribution.times.size()},
                       {"mean_s", to_seconds(distribution.mean())}};
  for (std::size_t q = 0; q < kQuantiles.size(); ++q) {
    document[std::string(kQuantileNames[q]) + "_s"] =
        to_seconds(distribution.quantile(kQuantiles[q]));
  }
  Document times = Document::array();
  for (const SeedTime& each : distribution.times) {
    times.push_back({{"seed", each.seed}, {"iteration_time_s", to_seconds(each.iteration)}});
  }
  document["steps"] = std::move(times);
  return document;
}

std::string to_text(const SeedDistribution& distribution) {
  std::string text = fmt::format("\nstep time over {} seeds: mean {}", distribution.times.size(),
                                 foresail::to_text(distribution.mean()));
  for (std::size_t q = 0; q < kQuantiles.size(); ++q) {
    text += fmt::format(", {} {}", kQuantileNames[q],
                        foresail::to_text(distribution.quantile(kQuantiles[q])));
  }
  return text + "\n";
}

}  // namespace foresail::scenarios
