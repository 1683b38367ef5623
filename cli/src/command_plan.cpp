#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/program/program.h"
#include "foresail/scenarios/search.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string scenario, output, program_file, state_file;
  int top = 1;
  bool is_by_size = false;
  double budget = 0;
  bool explains = false;
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

/// Of a search; every few seconds, and only if something has changed.
class ProgressLine {
 public:
  explicit ProgressLine(const Common& common) : common_(common) {}
  void show(const planner::SearchProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kPause) return;
    const std::string text = line(progress);
    if (text == shown_) return;
    last_ = now;
    shown_ = text;
    remark(common_, text);
  }

 private:
  static constexpr std::chrono::seconds kPause{2};

  static std::string line(const planner::SearchProgress& progress) {
    if (progress.simulated == 0 && progress.meshes_done < progress.meshes) {
      return fmt::format("{} layouts: bounds of {} of {} meshes", progress.layouts,
                         progress.meshes_done, progress.meshes);
    }
    std::string text =
        fmt::format("{} plans open, {} simulated", progress.open, progress.simulated);
    if (progress.best_s > 0) {
      text += fmt::format(", best {:.4g} s, none left is below {:.4g} s", progress.best_s,
                          progress.bound_s);
    }
    return text;
  }

  const Common& common_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::string shown_;
};

// The Plan and what of it was asked for, to be committed with the answer.
OutputFiles save(const Options& options, const planner::Plan& plan, Document& document) {
  const program::Program program = scenarios::lower_verified(plan);
  OutputFiles files;
  if (!options.program_file.empty()) files.add(options.program_file, program::to_text(program));
  files.add(options.output, to_yaml(planner::to_document(plan)));
  document["plan"] = options.output;
  document["plan_digest"] = plan.digest();
  document["program_digest"] = program::program_digest(program);
  return files;
}

int run_search(const Options& options, const scenarios::Scenario& scenario) {
  if (options.common.fidelity != "flow" || options.common.fold != "auto") {
    throw Error(ErrorCode::InvalidInput,
                "--fidelity and --fold: a search prices folded flow, then unfolded flow");
  }
  const scenarios::SearchRequest& request = *scenario.search;
  ProgressLine line(options.common);
  scenarios::SearchRunOptions run_options;
  run_options.search.threads = options.common.threads;
  run_options.search.top = options.top;
  if (options.is_by_size) run_options.search.scope = planner::Scope::PerSize;
  const auto start = std::chrono::steady_clock::now();
  if (options.budget > 0) {
    run_options.search.should_stop = [start, &options] {
      return std::chrono::steady_clock::now() - start >
             std::chrono::duration<double>(options.budget);
    };
  }
  run_options.search.progress = [&](const auto& progress) { line.show(progress); };
  run_options.explains = options.explains;
  run_options.conditions = &scenario.conditions;
  run_options.seed = options.common.seed;
  std::optional<scenarios::SearchState> state;
  if (!options.state_file.empty()) state.emplace(options.state_file, request.problem);
  if (state) run_options.state = &*state;
  const scenarios::SearchAnswer found = scenarios::run_search(request, run_options);
  Document document = scenarios::to_document(request, found);
  std::string text = scenarios::to_text(request, found, options.top);
  const bool is_cut_short =
      found.finalists.empty() && options.budget > 0 && !found.outcome.is_proved;
  document["feasible"] = !found.finalists.empty();
  if (is_cut_short) {
    document["feasible"] = nullptr;
    answer(options.common, document, "nothing was found within --budget\n" + text);
    return kFailedRun;
  }
  if (!found.finalists.empty() && !found.finalists[found.best].failure.empty()) {
    const std::string why = found.finalists[found.best].failure;
    document["feasible"] = false;
    document["failure"] = why;
    answer(options.common, document, fmt::format("all of the best plans fail: {}\n", why));
    return kInfeasible;
  }
  if (found.finalists.empty()) {
    answer(options.common, document, "infeasible\n" + text);
    return kInfeasible;
  }
  OutputFiles files = save(options, found.finalists[found.best].plan, document);
  text += fmt::format("plan {}\n", options.output);
  answer(options.common, document, text, std::move(files));
  return kOk;
}

int run(const Options& options) {
  keep_input(options.scenario, {options.output, options.program_file, options.state_file,
                                options.common.report_file});
  const scenarios::Scenario scenario = scenarios::load_question(options.scenario);
  if (scenario.search) return run_search(options, scenario);
  if (options.top != 1 || options.explains || options.budget > 0 || options.is_by_size ||
      !options.state_file.empty()) {
    throw Error(
        ErrorCode::InvalidInput,
        "--top, --explain, --budget, --by-size and --state need a scenario with `search` in "
        "place of `layout`");
  }
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
  OutputFiles files = save(options, plan, document);
  const scenarios::Conditions& met = scenario.conditions;
  if (met.jitter.sigma > 0 || !met.faults.empty() || !met.traffic.empty() || !met.jobs.empty()) {
    remark(options.common, "jitter, faults, traffic and other jobs are no part of a Plan");
  }
  answer(options.common, document,
         fmt::format("{}plan {}\nplan digest    {}\nprogram digest {}\n", memory_table(feasibility),
                     options.output, document["plan_digest"].get<std::string>(),
                     document["program_digest"].get<std::string>()),
         std::move(files));
  return kOk;
}

}  // namespace

Command add_plan(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand(
      "plan", "check a layout or search the best, show its memory, write the Plan");
  app->add_option("scenario", options->scenario, "scenario file")->required();
  app->add_option("-o,--output", options->output, "the Plan to write")->required();
  app->add_option("--program", options->program_file, "also write the Program's text form");
  app->add_option("--top", options->top, "of a search: how many best plans to prove and show")
      ->check(whole_number(1, 1000));
  app->add_option("--budget", options->budget,
                  "of a search: seconds after which it stops and prints the gap that is left")
      ->check(seconds_above_zero());
  app->add_flag("--explain", options->explains,
                "of a search: why this one, and why not its neighbours and those to compare");
  app->add_flag("--by-size", options->is_by_size,
                "of a search: the best of every number of GPUs, not of all together");
  app->add_option("--state", options->state_file,
                  "of a search: file of what was simulated; an interrupted search goes on from it");
  options->common.add_step_to(*app);
  app->add_option("--threads", options->common.threads,
                  "of a search: threads; results do not depend on it")
      ->check(whole_number(1, 1024));
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
