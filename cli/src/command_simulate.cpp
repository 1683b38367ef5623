#include <fmt/format.h>

#include <optional>

#include "command.h"
#include "foresail/program/profile.h"
#include "foresail/report/result.h"
#include "foresail/scenarios/seeds.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string scenario, profile, links_file;
  int seeds = 1;
};

// One line per link, for a spreadsheet.
std::string links_text(const std::vector<sim::LinkLoad>& links) {
  std::string text = "link,carried_bytes,utilisation,sharers_max,limiting_s\n";
  for (const sim::LinkLoad& link : links) {
    text += fmt::format("{},{},{:.9g},{},{:.9g}\n", link.name, link.carried.count(),
                        link.utilisation, link.sharers_max, to_seconds(link.limiting));
  }
  return text;
}

int run(const Options& options) {
  keep_input(options.scenario,
             {options.links_file, options.common.trace_file, options.common.report_file});
  const scenarios::Scenario scenario = scenarios::load_scenario(options.scenario);
  if (scenario.changes > 0) {
    remark(options.common,
           fmt::format("its {} changes are left out; foresail explain plan shows them\n",
                       scenario.changes));
  }
  const std::optional<program::Profile> profile = optional_profile(options.profile);
  scenarios::SimulateOptions simulate =
      simulate_options(options.common, scenario, profile ? &*profile : nullptr);
  simulate.keeps_all_links = !options.links_file.empty();
  const auto ranks = static_cast<int>(scenario.plan.placement.device_of.size());
  simulate.trace_ranks = parse_trace_ranks(options.common.trace_ranks, ranks);
  const scenarios::Answer made = scenarios::simulate(scenario.plan, simulate);
  if (!made.failure.empty()) {
    answer(options.common, {{"feasible", true}, {"failure", made.failure}},
           "the job fails: " + made.failure + "\n");
    return kInfeasible;
  }
  if (!made.result) {
    Document document = {{"feasible", false}, {"reasons", Document::array()}};
    for (const planner::BrokenLaw& law : made.feasibility.broken) {
      document["reasons"].push_back({{"law", law.name}, {"message", law.message}});
    }
    answer(options.common, document, "infeasible\n" + scenarios::reasons(made.feasibility));
    return kInfeasible;
  }
  OutputFiles files;
  const std::string& trace_file = options.common.trace_file;
  if (!trace_file.empty()) files.add(trace_file, trace_text(trace_file, made.program, made.trace));
  if (!options.links_file.empty()) files.add(options.links_file, links_text(made.links));
  Document document = report::to_document(*made.result);
  std::string text = report::to_text(*made.result);
  if (options.seeds > 1) {
    const scenarios::SeedDistribution seeds =
        scenarios::simulate_seeds(scenario.plan, simulate, options.seeds, options.common.threads);
    document["seeds"] = scenarios::to_document(seeds);
    text += scenarios::to_text(seeds);
  }
  answer(options.common, document, text, std::move(files));
  return made.feasibility.is_feasible() ? kOk : kInfeasible;
}

}  // namespace

Command add_simulate(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("simulate", "predict one step of a scenario or a Plan");
  app->add_option("scenario", options->scenario, "scenario or Plan file")->required();
  app->add_option("--profile", options->profile, "measured costs (foresail calibrate)");
  app->add_option("--links", options->links_file, "write the load of every link (CSV)");
  app->add_option("--seeds", options->seeds,
                  "simulate this many seeds and show the distribution of the step time")
      ->check(whole_number(1, 100000));
  app->add_option("--threads", options->common.threads,
                  "threads for --seeds; results do not depend on it")
      ->check(whole_number(1, 1024));
  options->common.add_step_to(*app);
  options->common.add_trace_to(*app);
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
