#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "foresail/base/quantity.h"
#include "foresail/scenarios/search.h"
#include "search_text.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;
using planner::SearchOutcome;
using planner::Verdict;

double tokens_per_s_per_gpu(const SearchRequest& request, const Candidate& candidate) {
  const program::Training& training = request.problem.base.training;
  return static_cast<double>(training.global_batch_size * training.sequence_length) /
         candidate.step_s / candidate.layout.world_size();
}

std::string placement_of(const SearchRequest& request, const Candidate& candidate) {
  const auto& placements = request.problem.space.placement;
  if (placements.empty()) return "packed";
  return placements[static_cast<std::size_t>(candidate.placement)].name;
}

/// What the objectives make of a plan, where the scenario says enough.
double value_as(const SearchRequest& request, planner::Objective objective,
                const Candidate& candidate) {
  planner::SearchProblem problem;
  problem.objective = objective;
  problem.base.training = request.problem.base.training;
  problem.price_per_gpu_hour = request.problem.price_per_gpu_hour;
  problem.watts_per_gpu = request.problem.watts_per_gpu;
  problem.tokens = request.problem.tokens;
  return planner::objective_of(problem, candidate.step_s, candidate.layout.world_size());
}

/// Steps of the whole training; 0: unknown.
double steps_of(const SearchRequest& request) {
  const program::Training& training = request.problem.base.training;
  return request.problem.tokens /
         static_cast<double>(training.global_batch_size * training.sequence_length);
}

void add_totals(const SearchRequest& request, const Candidate& candidate, Document& made) {
  using planner::Objective;
  const planner::SearchProblem& problem = request.problem;
  if (problem.price_per_gpu_hour > 0) {
    made["cost_per_step"] = value_as(request, Objective::Cost, candidate);
  }
  if (problem.watts_per_gpu > 0) {
    made["energy_per_step_kwh"] = value_as(request, Objective::Energy, candidate);
  }
  if (problem.tokens > 0) made["days"] = value_as(request, Objective::Days, candidate);
}

/// "300 billion tokens: 24.6 days, ..." of the chosen plan, as it runs unfolded.
std::string totals(const SearchRequest& request, const Finalist& best) {
  using planner::Objective;
  Candidate run = best.candidate;
  run.step_s = best.step_s;
  const double steps = steps_of(request);
  const double times = steps > 0 ? steps : 1;
  std::string text = steps > 0 ? fmt::format("the training ({:g} billion tokens, {:.0f} steps)",
                                             request.problem.tokens / 1e9, std::ceil(steps))
                               : "a step";
  text += fmt::format(": {:.0f} tokens/s/GPU", tokens_per_s_per_gpu(request, run));
  if (steps > 0) text += fmt::format(", {:.3g} days", value_as(request, Objective::Days, run));
  text += fmt::format(", {:.4g} GPU-hours", times * run.step_s * run.layout.world_size() / 3600);
  if (request.problem.price_per_gpu_hour > 0) {
    text += fmt::format(", {:.4g} {}", times * value_as(request, Objective::Cost, run),
                        request.currency);
  }
  if (request.problem.watts_per_gpu > 0) {
    text += fmt::format(", {:.4g} kWh ({:g} W a GPU, by {})",
                        times * value_as(request, Objective::Energy, run),
                        request.problem.watts_per_gpu, request.power_source);
  }
  return text + "\n";
}

Document candidate_document(const SearchRequest& request, const Candidate& candidate) {
  Document made = {{"layout", planner::to_document(candidate.layout)},
                   {"placement", placement_of(request, candidate)},
                   {"gpus", candidate.layout.world_size()},
                   {"bound_s", candidate.bound_s}};
  if (candidate.peak.count() > 0) made["peak_memory_bytes"] = candidate.peak.count();
  if (candidate.step_s > 0) {
    made["step_time_s"] = candidate.step_s;
    made["objective"] = candidate.objective;
    made["tokens_per_s_per_gpu"] = tokens_per_s_per_gpu(request, candidate);
    add_totals(request, candidate, made);
  }
  return made;
}

Document finalist_document(const SearchRequest& request, const Finalist& finalist) {
  Document made = candidate_document(request, finalist.candidate);
  made["unfolded_step_time_s"] = finalist.step_s;
  made["memory_at_most_bytes"] = finalist.upper.count();
  if (!finalist.failure.empty()) made["failure"] = finalist.failure;
  return made;
}

constexpr std::string_view name_of(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::BrokenLaw:
      return "broken_law";
    case Verdict::Kind::OutOfMemory:
      return "out_of_memory";
    case Verdict::Kind::Bounded:
      return "bounded";
    case Verdict::Kind::Simulated:
      break;
  }
  return "simulated";
}

Document outcome_document(const SearchOutcome& outcome) {
  Document laws = Document::array();
  for (const auto& [name, law] : outcome.law) {
    laws.push_back({{"law", name}, {"count", law.count}, {"example", law.example}});
  }
  return {{"enumerated", outcome.enumerated},
          {"equivalent", outcome.equivalent},
          {"broken_laws", std::move(laws)},
          {"out_of_memory", outcome.out_of_memory},
          {"memory_example", outcome.memory_example},
          {"bounded", outcome.bounded},
          {"simulated", outcome.simulated.size()},
          {"recalled", outcome.recalled},
          {"not_looked_at", outcome.unseen},
          {"proved", outcome.is_proved},
          {"gap", outcome.gap()},
          {"bound_cpu_s", outcome.bound_cpu_s}};
}

/// Layouts that were judged one by one, per second of CPU time.
std::string rate(const SearchOutcome& outcome) {
  if (outcome.bound_cpu_s <= 0 || outcome.bounded == 0) return {};
  const double rate = static_cast<double>(outcome.bounded) / outcome.bound_cpu_s;
  return fmt::format(" ({:.0f} a second and core)", rate);
}

std::string summary(const SearchRequest& request, const SearchOutcome& outcome) {
  std::int64_t illegal = 0;
  for (const auto& [name, law] : outcome.law) illegal += law.count;
  std::string text = fmt::format(
      "layouts {}: {} break a law, {} run as another, {} do not fit, {} bounded{}, {} simulated",
      outcome.enumerated, illegal, outcome.equivalent, outcome.out_of_memory, outcome.bounded,
      rate(outcome), outcome.simulated.size());
  if (outcome.recalled > 0) text += fmt::format(" ({} of them before)", outcome.recalled);
  if (outcome.unseen > 0) text += fmt::format(", {} not looked at", outcome.unseen);
  text += '\n';
  if (outcome.is_proved) {
    text += outcome.simulated.empty() ? "nothing in the space is feasible\n"
                                      : "optimal in the space under the folded flow cost\n";
  } else if (outcome.simulated.empty()) {
    text += "stopped before anything was simulated: nothing is known of the best\n";
  } else if (outcome.left_objective > 0) {
    text += fmt::format("stopped early: a plan that was not simulated may be {:.1f} % better\n",
                        100 * outcome.gap());
    if (outcome.unseen > 0) {
      text += "  (of layouts not looked at, the model's GEMMs at the device's peak count)\n";
    }
  } else {
    text += "stopped before every layout had a bound: nothing is known of the others\n";
  }
  if (request.problem.objective != planner::Objective::StepTime) {
    text += fmt::format("objective: {}\n", unit_of(request));
  }
  return text;
}

/// "1024 GPUs: " where the size of the job is searched too.
std::string size_text(const SearchRequest& request, const Candidate& candidate) {
  if (request.problem.space.gpus.size() < 2) return {};
  return fmt::format("{} GPUs: ", candidate.layout.world_size());
}

std::string front_text(const SearchRequest& request, const SearchOutcome& outcome) {
  const auto front = planner::pareto_front(outcome);
  if (front.size() < 2) return {};
  const bool has_sizes = request.problem.space.gpus.size() > 1;
  std::string text =
      fmt::format("time against memory{}, of what was simulated:\n", has_sizes ? " and GPUs" : "");
  for (const Candidate& each : front) {
    std::string value;
    if (request.problem.objective != planner::Objective::StepTime) {
      value = fmt::format(" {:>10.5g} {}", each.objective, unit_of(request));
    }
    text += fmt::format("{:>10.4f} s{} {:>11}  {}{}\n", each.step_s, value, to_text(each.peak),
                        size_text(request, each), describe(each.layout));
  }
  return text;
}

/// Empty if the chosen plan fits at most.
std::string memory_warning(const SearchRequest& request, const SearchAnswer& answer) {
  if (!answer.may_run_out) return {};
  std::string text = fmt::format(
      "the chosen plan may run out of memory: it needs {} at most, with fragmentation, buffers and "
      "contexts\n",
      to_text(answer.finalists[answer.best].upper));
  if (!answer.safe) {
    return text + "  of what was simulated nothing fits at most; memory: at_most searches for it\n";
  }
  text += fmt::format("  fastest simulated that fits at most: {:.4f} s folded, {}{}\n",
                      answer.safe->step_s, size_text(request, *answer.safe),
                      describe(answer.safe->layout));
  return text + "  memory: at_most proves the best of those\n";
}

}  // namespace

std::string unit_of(const SearchRequest& request) {
  switch (request.problem.objective) {
    case planner::Objective::StepTime:
      break;
    case planner::Objective::TokensPerGpu:
      return "GPU-seconds per step";
    case planner::Objective::Cost:
      return request.currency + " per step";
    case planner::Objective::Energy:
      return "kWh per step";
    case planner::Objective::Days:
      return "days";
  }
  return "s";
}

Document to_document(const SearchRequest& request, const SearchAnswer& answer) {
  Document made = outcome_document(answer.outcome);
  made["objective_unit"] = unit_of(request);
  made["finalists"] = Document::array();
  made["pareto"] = Document::array();
  made["why_not"] = Document::array();
  for (const Finalist& each : answer.finalists) {
    made["finalists"].push_back(finalist_document(request, each));
  }
  for (const Candidate& each : planner::pareto_front(answer.outcome)) {
    made["pareto"].push_back(candidate_document(request, each));
  }
  for (const Explanation& each : answer.explanations) {
    Document entry = candidate_document(request, each.verdict.candidate);
    entry["what"] = each.what;
    entry["verdict"] = name_of(each.verdict.kind);
    entry["reason"] = each.verdict.reason;
    if (!each.verdict.law.empty()) entry["law"] = each.verdict.law;
    if (each.verdict.excess.count() > 0) entry["excess_bytes"] = each.verdict.excess.count();
    if (each.verdict.kind == Verdict::Kind::Bounded ||
        each.verdict.kind == Verdict::Kind::Simulated) {
      entry["objective"] = each.verdict.candidate.objective;
    }
    made["why_not"].push_back(std::move(entry));
  }
  if (!request.power_source.empty()) {
    made["power"] = {{"watts_per_gpu", request.problem.watts_per_gpu},
                     {"source", request.power_source}};
  }
  if (!answer.finalists.empty()) made["best"] = answer.best;
  made["memory"] = to_string(request.problem.memory);
  made["may_run_out_of_memory"] = answer.may_run_out;
  if (answer.safe) made["fits_at_most"] = candidate_document(request, *answer.safe);
  return made;
}

std::string to_text(const SearchRequest& request, const SearchAnswer& answer, int top) {
  std::string text = summary(request, answer.outcome);
  if (answer.finalists.empty()) return text + rejected_text(answer.outcome);
  text += fmt::format("{:>10} {:>10} {:>10} {:>11} {:>11}  {}\n", "bound s", "folded s",
                      "unfolded s", "memory", "at most", "layout");
  const std::size_t shown = std::min(answer.finalists.size(), static_cast<std::size_t>(top));
  for (std::size_t i = 0; i < answer.finalists.size(); ++i) {
    if (i >= shown && i != answer.best) continue;
    const Finalist& each = answer.finalists[i];
    const std::string unfolded =
        each.step_s > 0 ? fmt::format("{:.4f}", each.step_s) : std::string("fails");
    text +=
        fmt::format("{:>10.4f} {:>10.4f} {:>10} {:>11} {:>11}  {}{}{}\n", each.candidate.bound_s,
                    each.candidate.step_s, unfolded, to_text(each.candidate.peak),
                    to_text(each.upper), size_text(request, each.candidate),
                    describe(each.candidate.layout), i == answer.best ? "  <- chosen" : "");
  }
  text += memory_warning(request, answer);
  text += totals(request, answer.finalists[answer.best]);
  text += front_text(request, answer.outcome);
  if (!answer.explanations.empty()) text += explanation_text(request, answer);
  return text;
}

}  // namespace foresail::scenarios
