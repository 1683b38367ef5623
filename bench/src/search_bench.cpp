// The search at the sizes of published jobs: plans priced per second and core, time to the proof,
// and the published layout beside what is found. One line of text per job; figures need an idle
// machine.
#include <fmt/format.h>

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

/// The step time of a published layout, under the cost of the search and unfolded.
std::string published(const SearchRequest& request, const SearchAnswer& answer,
                      const Comparison& compared) {
  const topologies::Cluster cluster(request.problem.base.cluster);
  const auto cost = search_cost(request.problem.base, cluster);
  planner::Candidate candidate;
  candidate.layout = compared.layout;
  candidate.placement = compared.placement;
  const planner::Plan plan = planner::plan_of(request.problem, candidate, *cost);
  const planner::Feasibility feasibility = planner::check(plan);
  if (!feasibility.broken.empty()) return feasibility.broken.front().message;
  const double folded = to_seconds(cost->step(planner::lower(plan), plan.placement));
  SimulateOptions unfolded;
  unfolded.fold = sim::Fold::Off;
  const Answer run = simulate(plan, unfolded);
  const double own = run.result ? to_seconds(run.result->iteration_time) : 0;
  const Finalist& best = answer.finalists[answer.best];
  return fmt::format("published {}: folded {:.4f} s ({:+.1f} %), unfolded {:.4f} s ({:+.1f} %){}",
                     describe(compared.layout), folded,
                     100 * (folded / answer.outcome.simulated.front().step_s - 1), own,
                     100 * (own / best.step_s - 1),
                     feasibility.out_of_memory.empty() ? "" : ", and does not fit");
}

void run(const std::filesystem::path& path, int threads) {
  const Scenario scenario = load_question(path);
  if (!scenario.search) throw Error(ErrorCode::InvalidInput, path.string() + ": has no search");
  const SearchRequest& request = *scenario.search;
  SearchRunOptions options;
  options.search.threads = threads;
  options.conditions = &scenario.conditions;
  const double cpu = cpu_seconds();
  const double wall = wall_seconds();
  const SearchAnswer answer = run_search(request, options);
  const planner::SearchOutcome& outcome = answer.outcome;
  const double cpu_used = cpu_seconds() - cpu;
  const double wall_used = wall_seconds() - wall;
  const double rate = static_cast<double>(outcome.bounded) / outcome.bound_cpu_s;
  fmt::print(
      "{}\n  {} layouts, {} bounded at {:.0f} a second and core ({:.0f} times Calculon's {})\n",
      path.string(), outcome.enumerated, outcome.bounded, rate, rate / kCalculonPlansPerSecond,
      kCalculonPlansPerSecond);
  fmt::print("  {} simulated, {}; with the unfolded runs {:.1f} s of CPU, {:.1f} s on {} threads\n",
             outcome.simulated.size(), outcome.is_proved ? "proved" : "not proved", cpu_used,
             wall_used, threads);
  if (answer.finalists.empty()) return;
  const Finalist& best = answer.finalists[answer.best];
  fmt::print("  found {}: folded {:.4f} s, unfolded {:.4f} s\n", describe(best.candidate.layout),
             best.candidate.step_s, best.step_s);
  for (const Comparison& each : request.compare) {
    fmt::print("  {}\n", published(request, answer, each));
  }
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
