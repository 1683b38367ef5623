#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/quantity.h"
#include "foresail/scenarios/search.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;
using planner::SearchOutcome;
using planner::Verdict;

std::string unit_of(const SearchRequest& request) {
  switch (request.problem.objective) {
    case planner::Objective::StepTime:
      break;
    case planner::Objective::TokensPerGpu:
      return "GPU-seconds per step";
    case planner::Objective::Cost:
      return request.currency + " per step";
  }
  return "s";
}

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
  }
  return made;
}

Document finalist_document(const SearchRequest& request, const Finalist& finalist) {
  Document made = candidate_document(request, finalist.candidate);
  made["unfolded_step_time_s"] = finalist.step_s;
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
          {"proved", outcome.is_proved},
          {"gap", outcome.gap()},
          {"bound_cpu_s", outcome.bound_cpu_s}};
}

std::string summary(const SearchRequest& request, const SearchOutcome& outcome) {
  std::int64_t illegal = 0;
  for (const auto& [name, law] : outcome.law) illegal += law.count;
  std::string text = fmt::format(
      "layouts {}: {} break a law, {} run as another, {} do not fit, {} bounded, {} "
      "simulated\n",
      outcome.enumerated, illegal, outcome.equivalent, outcome.out_of_memory, outcome.bounded,
      outcome.simulated.size());
  if (outcome.is_proved) {
    text += "optimal in the space under the folded flow cost\n";
  } else {
    text += fmt::format("stopped early: a plan that was not simulated may be {:.1f} % better\n",
                        100 * outcome.gap());
  }
  if (request.problem.objective != planner::Objective::StepTime) {
    text += fmt::format("objective: {}\n", unit_of(request));
  }
  return text;
}

std::string explanation(const SearchRequest& request, const SearchAnswer& answer,
                        const Explanation& each) {
  const Candidate& best = answer.finalists[answer.best].candidate;
  const Candidate& other = each.verdict.candidate;
  switch (each.verdict.kind) {
    case Verdict::Kind::BrokenLaw:
      return "breaks a law: " + each.verdict.reason;
    case Verdict::Kind::OutOfMemory:
      return "does not fit: " + each.verdict.reason;
    case Verdict::Kind::Bounded:
      return fmt::format("needs at least {:.6g} {} ({:+.1f} %), by its bound", other.objective,
                         unit_of(request), 100 * (other.objective / best.objective - 1));
    case Verdict::Kind::Simulated:
      break;
  }
  return fmt::format("simulated: {:.6g} {} ({:+.1f} %)", other.objective, unit_of(request),
                     100 * (other.objective / best.objective - 1));
}

std::string explanations(const SearchRequest& request, const SearchAnswer& answer) {
  const SearchOutcome& outcome = answer.outcome;
  std::string text = "\nwhy this one: ";
  const Finalist& best = answer.finalists[answer.best];
  text += fmt::format("bound {:.6g} s, simulated {:.6g} s, unfolded {:.6g} s\n",
                      best.candidate.bound_s, best.candidate.step_s, best.step_s);
  text += "why not that one:\n";
  for (const Explanation& each : answer.explanations) {
    text += fmt::format("  {}: {}\n", each.what, explanation(request, answer, each));
  }
  text += "rejected in the space:\n";
  for (const auto& [name, law] : outcome.law) {
    text += fmt::format("  {} by {}: {}\n", law.count, name, law.example);
  }
  if (outcome.out_of_memory > 0) {
    text += fmt::format("  {} by memory: {}\n", outcome.out_of_memory, outcome.memory_example);
  }
  return text;
}

}  // namespace

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
    made["why_not"].push_back(std::move(entry));
  }
  if (!answer.finalists.empty()) made["best"] = answer.best;
  return made;
}

std::string to_text(const SearchRequest& request, const SearchAnswer& answer, int top) {
  std::string text = summary(request, answer.outcome);
  text += fmt::format("{:>10} {:>10} {:>10} {:>11}  {}\n", "bound s", "folded s", "unfolded s",
                      "memory", "layout");
  const std::size_t shown = std::min(answer.finalists.size(), static_cast<std::size_t>(top));
  for (std::size_t i = 0; i < answer.finalists.size(); ++i) {
    if (i >= shown && i != answer.best) continue;
    const Finalist& each = answer.finalists[i];
    text += fmt::format("{:>10.4f} {:>10.4f} {:>10.4f} {:>11}  {}{}\n", each.candidate.bound_s,
                        each.candidate.step_s, each.step_s, to_text(each.candidate.peak),
                        describe(each.candidate.layout), i == answer.best ? "  <- chosen" : "");
  }
  const auto front = planner::pareto_front(answer.outcome);
  if (front.size() > 1) {
    text += "time against memory and GPUs, of what was simulated:\n";
    for (const Candidate& each : front) {
      text += fmt::format("{:>10.4f} s {:>11} {:>7} GPUs  {}\n", each.step_s, to_text(each.peak),
                          each.layout.world_size(), describe(each.layout));
    }
  }
  if (!answer.explanations.empty()) text += explanations(request, answer);
  return text;
}

}  // namespace foresail::scenarios
