#include <fmt/format.h>

#include <optional>

#include "command.h"
#include "command_explain_init.h"
#include "foresail/base/error.h"
#include "foresail/program/profile.h"
#include "foresail/report/memory_curve.h"
#include "foresail/scenarios/explain.h"
#include "foresail/scenarios/explain_memory.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/what_if.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

constexpr int kOwnersShown = 20;
constexpr int kOwnersMax = 1'000'000;

struct Options {
  Common common;
  std::string scenario, profile, other;
  std::string curve_file;
  std::optional<int> rank, stage;
  int top = kOwnersShown;
};

/// Answers, and says so, if the plan breaks laws.
bool is_refused(const Options& options, const planner::Plan& plan) {
  const planner::Feasibility feasibility = planner::check(plan);
  if (feasibility.broken.empty()) return false;
  const std::string reasons = scenarios::reasons(feasibility);
  answer(options.common, {{"feasible", false}, {"reasons", reasons}}, "infeasible\n" + reasons);
  return true;
}

int run(const Options& options) {
  const scenarios::Scenario scenario = scenarios::load_scenario(options.scenario);
  if (is_refused(options, scenario.plan)) return kInfeasible;
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

/// The rank that --rank or --stage names; nothing if neither is given.
std::optional<RankId> chosen_rank(const Options& options, const planner::Layout& layout) {
  if (options.rank && options.stage) {
    throw Error(ErrorCode::InvalidInput, "--rank and --stage: give one of them");
  }
  if (options.rank) {
    if (*options.rank >= layout.world_size()) {
      throw Error(ErrorCode::InvalidInput, fmt::format("--rank: {} is not below {} ranks",
                                                       *options.rank, layout.world_size()));
    }
    return RankId{static_cast<std::uint32_t>(*options.rank)};
  }
  if (!options.stage) return std::nullopt;
  if (*options.stage >= layout.pp) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--stage: {} is not below pp {}", *options.stage, layout.pp));
  }
  program::Coordinates at{};
  at[static_cast<std::size_t>(program::Axis::Pp)] = *options.stage;
  return layout.grid().rank(at);
}

int run_memory(const Options& options) {
  keep_input(options.scenario, {options.curve_file, options.common.report_file});
  const scenarios::Scenario scenario = scenarios::load_scenario(options.scenario);
  if (is_refused(options, scenario.plan)) return kInfeasible;
  const std::optional<program::Profile> profile = optional_profile(options.profile);
  const scenarios::SimulateOptions simulate =
      simulate_options(options.common, scenario, profile ? &*profile : nullptr);
  const scenarios::MemoryExplanation made = scenarios::explain_memory(
      scenario.plan, simulate, chosen_rank(options, scenario.plan.layout));
  OutputFiles files;
  if (!options.curve_file.empty() && made.failure.empty()) {
    files.add(options.curve_file, report::to_csv(made.curve));
  }
  answer(options.common, scenarios::to_document(made, options.top),
         scenarios::to_text(made, options.top), std::move(files));
  return made.failure.empty() ? kOk : kInfeasible;
}

}  // namespace

Command add_explain(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("explain", "why a step or a start takes what it does");
  app->require_subcommand(1);
  CLI::App* step = app->add_subcommand("step", "what costs time in a step, and who is to blame");
  CLI::App* memory =
      app->add_subcommand("memory", "what a rank holds at its fullest moment, and over the step");
  CLI::App* plan =
      app->add_subcommand("plan", "where the step's time goes, and what changes change");
  for (CLI::App* each : {step, memory, plan}) {
    each->add_option("scenario", options->scenario, "scenario or Plan file")->required();
    each->add_option("--profile", options->profile, "measured costs (foresail calibrate)");
    options->common.add_step_to(*each);
  }
  memory->add_option("--rank", options->rank, "instead of the first rank of the fullest stage")
      ->check(whole_number(0));
  memory->add_option("--stage", options->stage, "its first rank")->check(whole_number(0));
  memory->add_option("--top", options->top, "how many owners to list")
      ->check(whole_number(1, kOwnersMax));
  memory->add_option("--curve", options->curve_file, "write the bytes over time (CSV)");
  plan->add_option("--with", options->other, "another scenario or Plan to compare with");
  auto init_options = std::make_shared<InitOptions>();  // shared with the runner below
  CLI::App* init = add_explain_init(*app, *init_options);
  return {app, [options, init_options, memory, plan, init] {
            if (init->parsed()) return run_explain_init(*init_options);
            if (memory->parsed()) return run_memory(*options);
            return plan->parsed() ? run_plan(*options) : run(*options);
          }};
}

}  // namespace foresail::cli
