// Loads a scenario, asks whether its layout is possible, and predicts one step.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "foresail/planner/plan.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/scenario.h"

namespace {

using namespace foresail;

int show(const char* path) {
  const scenarios::Scenario scenario = scenarios::load_scenario(path);
  const planner::Feasibility answer = planner::check(scenario.plan);
  for (const planner::BrokenLaw& law : answer.broken) std::printf("%s\n", law.message.c_str());
  if (!answer.is_feasible()) {
    std::printf("%s\n", answer.out_of_memory.c_str());
    return 3;
  }
  Bytes peak;
  for (const program::MemoryNeed& need : answer.memory) peak = std::max(peak, need.peak());
  const scenarios::Prediction prediction = scenarios::predict(scenario.plan, {});
  std::printf("plan    %s\n", scenario.plan.digest().c_str());
  std::printf("memory  %.1f GB\n", static_cast<double>(peak.count()) * 1e-9);
  std::printf("step    %.3f s\n", to_seconds(prediction.outcome.iteration));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_01_first_plan SCENARIO\n");
    return 2;
  }
  try {
    return show(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
