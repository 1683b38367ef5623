#include <optional>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/program/profile.h"
#include "foresail/scenarios/explain.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string scenario, profile;
};

int run(const Options& options) {
  const scenarios::Scenario scenario = scenarios::load_scenario(options.scenario);
  const planner::Feasibility feasibility = planner::check(scenario.plan);
  if (!feasibility.broken.empty()) {
    const std::string reasons = scenarios::reasons(feasibility);
    answer(options.common, {{"feasible", false}, {"reasons", reasons}}, "infeasible\n" + reasons);
    return kInfeasible;
  }
  const std::optional<program::Profile> profile = optional_profile(options.profile);
  const scenarios::SimulateOptions simulate =
      simulate_options(options.common, scenario, profile ? &*profile : nullptr);
  const scenarios::Explanation explanation = scenarios::explain_step(scenario.plan, simulate);
  answer(options.common, scenarios::to_document(explanation), scenarios::to_text(explanation));
  return explanation.failure.empty() ? kOk : kInfeasible;
}

}  // namespace

Command add_explain(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("explain", "why a step takes as long as it does");
  app->require_subcommand(1);
  CLI::App* step = app->add_subcommand("step", "what costs time in a step, and who is to blame");
  step->add_option("scenario", options->scenario, "scenario or Plan file")->required();
  step->add_option("--profile", options->profile, "measured costs (foresail calibrate)");
  options->common.add_step_to(*step);
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
