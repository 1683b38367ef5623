// The search at the sizes of published jobs: plans priced per second and core, time to the proof,
// and the published layout beside what is found. One line of text per job; figures need an idle
// machine.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>

#include "foresail/base/error.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/search.h"

namespace foresail::scenarios {
namespace {

/// Configurations that Calculon prices per second and core: 190 to 210, measured on a machine with
/// two cores.
constexpr double kCalculonPlansPerSecond = 200;

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double wall_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double unfolded(const planner::Plan& plan) {
  SimulateOptions options;
  options.fold = sim::Fold::Off;
  const Answer answer = simulate(plan, options);
  return answer.result ? to_seconds(answer.result->iteration_time) : 0;
}

/// The step time of a published layout, under the cost of the search and unfolded.
std::string published(const planner::SearchProblem& problem, const planner::Candidate& best,
                      const Comparison& compared, const program::CostModel& cost) {
  planner::Candidate candidate;
  candidate.layout = compared.layout;
  candidate.placement = compared.placement;
  const planner::Plan plan = planner::plan_of(problem, candidate, cost);
  const planner::Feasibility feasibility = planner::check(plan);
  if (!feasibility.broken.empty()) return feasibility.broken.front().message;
  const double folded = to_seconds(cost.step(planner::lower(plan), plan.placement));
  return fmt::format("published {}: folded {:.4f} s ({:+.1f} %), unfolded {:.4f} s{}",
                     describe(compared.layout), folded, 100 * (folded / best.step_s - 1),
                     unfolded(plan), feasibility.is_feasible() ? "" : ", but does not fit");
}

void run(const std::filesystem::path& path, int threads) {
  const Scenario scenario = load_question(path);
  if (!scenario.search) throw Error(ErrorCode::InvalidInput, path.string() + ": has no search");
  const planner::SearchProblem& problem = scenario.search->problem;
  const topologies::Cluster cluster(problem.base.cluster);
  const auto cost = search_cost(problem.base, cluster);
  planner::SearchOptions options;
  options.threads = threads;
  options.simulated_min = 5;
  double cpu = cpu_seconds();
  double wall = wall_seconds();
  const planner::SearchOutcome outcome = planner::search(problem, options, *cost);
  cpu = cpu_seconds() - cpu;
  wall = wall_seconds() - wall;
  const double rate = static_cast<double>(outcome.bounded) / outcome.bound_cpu_s;
  fmt::print(
      "{}\n  {} layouts, {} bounded at {:.0f} a second and core ({:.0f} times Calculon's {})\n",
      path.filename().string(), outcome.enumerated, outcome.bounded, rate,
      rate / kCalculonPlansPerSecond, kCalculonPlansPerSecond);
  fmt::print("  {} simulated, {}: {:.1f} s of CPU, {:.1f} s on {} threads\n",
             outcome.simulated.size(), outcome.is_proved ? "proved" : "not proved", cpu, wall,
             threads);
  for (std::size_t i = 0; i < std::min<std::size_t>(5, outcome.simulated.size()); ++i) {
    const planner::Candidate& each = outcome.simulated[i];
    const double started = cpu_seconds();
    const double step = unfolded(planner::plan_of(problem, each, *cost));
    fmt::print("  {}: folded {:.4f} s, unfolded {:.4f} s ({:.1f} s of CPU)\n",
               describe(each.layout), each.step_s, step, cpu_seconds() - started);
  }
  for (const Comparison& each : scenario.search->compare) {
    if (outcome.simulated.empty()) break;
    fmt::print("  {}\n", published(problem, outcome.simulated.front(), each, *cost));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace foresail::scenarios

/// foresail-bench-search THREADS [SCENARIO...]; without scenarios those of the tree.
int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::stoi(argv[1]) : 1;
  const std::filesystem::path folder =
      std::filesystem::path(FORESAIL_SOURCE_DIR) / "scenarios" / "search";
  try {
    for (int at = 2; at < argc; ++at) foresail::scenarios::run(argv[at], threads);
    if (argc > 2) return 0;
    for (const char* name :
         {"175b_3072", "530b_2240", "1t_3072", "llama3_405b_16384", "175b_12288"}) {
      foresail::scenarios::run(folder / (std::string(name) + ".yaml"), threads);
    }
  } catch (const foresail::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
