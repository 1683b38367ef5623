#include <fmt/format.h>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/program/program.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string scenario, output, program_file;
  int top = 1;
};

Document memory_document(const planner::Feasibility& answer) {
  Document stages = Document::array();
  for (const program::MemoryNeed& need : answer.memory) {
    stages.push_back({{"parameters", need.parameters.count()},
                      {"gradients", need.gradients.count()},
                      {"optimizer", need.optimizer.count()},
                      {"activations", need.activations.count()},
                      {"buffers", need.buffers.count()},
                      {"peak", need.peak().count()}});
  }
  return stages;
}

std::string memory_table(const planner::Feasibility& answer) {
  std::string text =
      fmt::format("{:<6} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "stage", "parameters",
                  "gradients", "optimizer", "activations", "buffers", "peak");
  for (std::size_t s = 0; s < answer.memory.size(); ++s) {
    const program::MemoryNeed& need = answer.memory[s];
    text += fmt::format("{:<6} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}\n", s,
                        to_text(need.parameters), to_text(need.gradients), to_text(need.optimizer),
                        to_text(need.activations), to_text(need.buffers), to_text(need.peak()));
  }
  return text + fmt::format("limit of one device: {}\n", to_text(answer.memory_limit));
}

int run(const Options& options) {
  if (options.top != 1) {
    throw Error(ErrorCode::Unsupported,
                "--top: a fixed layout gives one plan; the search is not part of this version");
  }
  keep_input(options.scenario, {options.output, options.program_file, options.common.report_file});
  const scenarios::Scenario scenario = scenarios::load_scenario(options.scenario);
  const planner::Plan& plan = scenario.plan;
  const planner::Feasibility feasibility = planner::check(plan);
  Document document = {{"feasible", feasibility.is_feasible()},
                       {"memory_bytes", memory_document(feasibility)},
                       {"memory_limit_bytes", feasibility.memory_limit.count()},
                       {"reasons", Document::array()}};
  for (const planner::BrokenLaw& law : feasibility.broken) {
    document["reasons"].push_back({{"law", law.name}, {"message", law.message}});
  }
  if (!feasibility.out_of_memory.empty()) {
    document["reasons"].push_back({{"law", "memory"}, {"message", feasibility.out_of_memory}});
  }
  if (!feasibility.is_feasible()) {
    std::string text = "infeasible\n" + scenarios::reasons(feasibility);
    if (!feasibility.memory.empty()) text += memory_table(feasibility);
    answer(options.common, document, text);
    return kInfeasible;
  }
  const program::Program program = scenarios::lower_verified(plan);
  const std::string program_text = program::to_text(program);
  OutputFiles files;
  if (!options.program_file.empty()) files.add(options.program_file, program_text);
  files.add(options.output, to_yaml(planner::to_document(plan)));
  const scenarios::Conditions& met = scenario.conditions;
  if (met.jitter.sigma > 0 || !met.faults.empty() || !met.traffic.empty() || !met.jobs.empty()) {
    remark(options.common, "jitter, faults, traffic and other jobs are no part of a Plan");
  }
  document["plan"] = options.output;
  document["plan_digest"] = plan.digest();
  document["program_digest"] = program::program_digest(program);
  answer(options.common, document,
         fmt::format("{}plan {}\nplan digest    {}\nprogram digest {}\n", memory_table(feasibility),
                     options.output, plan.digest(), program::program_digest(program)),
         std::move(files));
  return kOk;
}

}  // namespace

Command add_plan(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("plan", "check a layout, show its memory, write the Plan");
  app->add_option("scenario", options->scenario, "scenario file")->required();
  app->add_option("-o,--output", options->output, "the Plan to write")->required();
  app->add_option("--program", options->program_file, "also write the Program's text form");
  app->add_option("--top", options->top, "plans to show (1: the layout is given)");
  options->common.add_to(*app);
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
