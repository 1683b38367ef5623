#include <fmt/format.h>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "foresail/scenarios/import.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/topologies/cluster.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  scenarios::ImportOptions import;
  std::string file, format, output;
  std::vector<std::string> variables;
};

scenarios::ImportOptions import_options(const Options& options) {
  scenarios::ImportOptions import = options.import;
  if (!options.format.empty()) import.format = from_string<scenarios::JobFormat>(options.format);
  for (const std::string& each : options.variables) {
    const std::size_t equal = each.find('=');
    if (equal == std::string::npos || equal == 0) {
      throw Error(ErrorCode::InvalidInput, fmt::format("--set {}: expected NAME=VALUE", each));
    }
    import.variables[each.substr(0, equal)] = each.substr(equal + 1);
  }
  return import;
}

/// As anyone would read it, under the name that it will have.
scenarios::Scenario read_back(const std::string& text, const Options& options) {
  try {
    return scenarios::read_scenario(Yaml::parse(text, options.output));
  } catch (const Error& refusal) {
    throw Error(refusal.code(), fmt::format("{}: the scenario made of it, not written, is refused: "
                                            "{}",
                                            options.file, refusal.what()));
  }
}

int run(const Options& options) {
  keep_input(options.file, {options.output, options.common.report_file});
  // Complains of the option, not of a file that is not written yet.
  const Yaml cluster = Yaml::parse(
      fmt::format("--cluster: {}\n", Document(options.import.cluster).dump()), "option");
  topologies::resolve_cluster(cluster.at("--cluster"), scenarios::data_folders().topologies);
  const scenarios::ImportedJob job = scenarios::import_job(options.file, import_options(options));
  const std::string text = scenarios::to_yaml(job, options.file);
  const scenarios::Scenario scenario = read_back(text, options);
  const planner::Feasibility feasibility = planner::check(scenario.plan);
  Document document = {{"format", to_string(job.format)},
                       {"scenario", options.output},
                       {"notes", job.notes},
                       {"unused", job.unused},
                       {"feasible", feasibility.is_feasible()},
                       {"reasons", scenarios::reasons(feasibility)}};
  const planner::Layout& layout = scenario.plan.layout;
  std::string lines = fmt::format(
      "{}: {} layers of {}, tp {} cp {} ep {} pp {} v {} dp {}, batch {} of {} tokens\n",
      options.output, scenario.plan.model.layers, scenario.plan.model.hidden, layout.tp, layout.cp,
      layout.ep, layout.pp, layout.v, layout.dp, scenario.plan.training.global_batch_size,
      scenario.plan.training.sequence_length);
  for (const std::string& note : job.notes) lines += "  " + note + "\n";
  for (const std::string& key : job.unused) lines += "  not used: " + key + "\n";
  if (!feasibility.is_feasible()) lines += "infeasible\n" + scenarios::reasons(feasibility);
  OutputFiles files;
  files.add(options.output, text);
  answer(options.common, document, lines, std::move(files));
  return feasibility.is_feasible() ? kOk : kInfeasible;
}

}  // namespace

Command add_import(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand(
      "import", "a Megatron-LM command line, TorchTitan TOML or NeMo YAML as a scenario");
  app->add_option("file", options->file, "the job of the other framework")->required();
  app->add_option("--from", options->format, "megatron, torchtitan or nemo; by the file's ending")
      ->check(CLI::IsMember({"megatron", "torchtitan", "nemo"}));
  app->add_option("--cluster", options->import.cluster, "catalogue name or file")->required();
  app->add_option("--gpus", options->import.gpus, "instead of what the file says")
      ->check(whole_number(1, kGpusMax));
  app->add_option("--vocab", options->import.vocab, "vocabulary, where the file names a tokenizer")
      ->check(whole_number(1, 1 << 22));
  app->add_option("--set", options->variables,
                  "NAME=VALUE of a shell variable, instead of its own");
  app->add_option("-o,--output", options->output, "scenario to write")->required();
  options->common.add_outputs_to(*app);
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
