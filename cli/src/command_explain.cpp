#include <optional>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/program/profile.h"
#include "foresail/scenarios/explain.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/what_if.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string scenario, profile, other;
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

int run_plan(const Options& options) {
  const scenarios::Scenario scenario = scenarios::load_scenario(options.scenario);
  std::vector<scenarios::Change> changes = scenarios::load_changes(options.scenario);
  if (!options.other.empty()) {
    changes.push_back({options.other, std::nullopt, scenarios::load_scenario(options.other)});
  }
  const std::optional<program::Profile> profile = optional_profile(options.profile);
  const scenarios::SimulateOptions simulate =
      simulate_options(options.common, scenario, profile ? &*profile : nullptr);
  const scenarios::WhatIf found = scenarios::what_if(scenario, changes, simulate);
  answer(options.common, scenarios::to_document(found), scenarios::to_text(found));
  return found.variants.front().reasons.empty() ? kOk : kInfeasible;
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
  CLI::App* plan =
      app->add_subcommand("plan", "where the step's time goes, and what changes change");
  plan->add_option("scenario", options->scenario, "scenario or Plan file")->required();
  plan->add_option("--with", options->other, "another scenario or Plan to compare with");
  plan->add_option("--profile", options->profile, "measured costs (foresail calibrate)");
  options->common.add_step_to(*plan);
  return {app, [options, plan] { return plan->parsed() ? run_plan(*options) : run(*options); }};
}

}  // namespace foresail::cli
