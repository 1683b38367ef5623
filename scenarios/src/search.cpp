#include "foresail/scenarios/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;
using planner::Layout;

constexpr std::size_t kFinalists = 5;

/// "tp 4, dp 96": what `other` has in place of `layout`'s choices.
std::string difference(const Layout& layout, const Layout& other) {
  const Document mine = planner::to_document(layout);
  const Document theirs = planner::to_document(other);
  std::string text;
  const auto add = [&](const std::string& key, const Document& value) {
    const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, shown);
  };
  for (const auto& [key, value] : theirs.items()) {
    if (value == mine.at(key)) continue;
    if (key != "overlap") {
      add(key, value);
      continue;
    }
    for (const auto& [axis, on] : value.items()) {
      if (on != mine.at(key).at(axis)) add("overlap." + axis, on);
    }
  }
  return text;
}

double value_of(const Finalist& finalist) {
  if (finalist.step_s <= 0) return std::numeric_limits<double>::infinity();
  // The objective is proportional to the time.
  const Candidate& candidate = finalist.candidate;
  return candidate.objective * finalist.step_s / candidate.step_s;
}

Finalist run_final(const SearchRequest& request, const SearchRunOptions& options,
                   const Candidate& candidate, const program::CostModel& cost) {
  Finalist finalist;
  finalist.candidate = candidate;
  finalist.plan = planner::plan_of(request.problem, candidate, cost);
  SimulateOptions simulate_options;
  simulate_options.fold = sim::Fold::Off;
  simulate_options.seed = options.seed;
  simulate_options.conditions = options.conditions;
  const Answer answer = simulate(finalist.plan, simulate_options);
  finalist.failure = answer.failure;
  if (answer.result) finalist.step_s = to_seconds(answer.result->iteration_time);
  return finalist;
}

void explain(const SearchRequest& request, const program::CostModel& cost, SearchAnswer& answer) {
  const auto judge = [&](const Layout& layout, int placement) {
    return planner::judge(request.problem, answer.outcome, layout, placement, cost);
  };
  for (const Comparison& each : request.compare) {
    answer.explanations.push_back({describe(each.layout), judge(each.layout, each.placement)});
  }
  const Candidate& best = answer.finalists[answer.best].candidate;
  for (const Layout& layout : planner::neighbours(request.problem, best.layout)) {
    answer.explanations.push_back({difference(best.layout, layout), judge(layout, best.placement)});
  }
}

}  // namespace

std::string describe(const Layout& layout) {
  std::string text = fmt::format("tp {} pp {} dp {}", layout.tp, layout.pp, layout.dp);
  if (layout.cp > 1) text += fmt::format(" cp {}", layout.cp);
  text += fmt::format(" v {} mb {} {} zero {}", layout.v, layout.microbatch_size,
                      to_string(layout.schedule), layout.zero_stage);
  if (layout.sequence_parallel) text += " sp";
  if (layout.recompute != models::Recompute::None) {
    text += fmt::format(" recompute {}", to_string(layout.recompute));
  }
  std::string overlap;
  if (layout.overlap.tp) overlap += "+tp";
  if (layout.overlap.pp) overlap += "+pp";
  if (layout.overlap.dp) overlap += "+dp";
  if (!overlap.empty()) text += " overlap " + overlap.substr(1);
  if (layout.rank_order != Layout{}.rank_order) {
    text += " order " + program::to_text(layout.rank_order);
  }
  return text;
}

SearchAnswer run_search(const SearchRequest& request, const SearchRunOptions& options) {
  const topologies::Cluster cluster(request.problem.base.cluster);
  const auto cost = search_cost(request.problem.base, cluster);
  SearchAnswer answer;
  answer.outcome = planner::search(request.problem, options.search, *cost);
  const auto& simulated = answer.outcome.simulated;
  const std::size_t wanted =
      std::max(kFinalists, static_cast<std::size_t>(std::max(1, options.search.top)));
  for (std::size_t i = 0; i < std::min(wanted, simulated.size()); ++i) {
    answer.finalists.push_back(run_final(request, options, simulated[i], *cost));
  }
  for (std::size_t i = 1; i < answer.finalists.size(); ++i) {
    const double best = value_of(answer.finalists[answer.best]);
    if (value_of(answer.finalists[i]) < best) answer.best = i;
  }
  if (options.explains && !answer.finalists.empty()) explain(request, *cost, answer);
  return answer;
}

}  // namespace foresail::scenarios
