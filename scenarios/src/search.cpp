#include "foresail/scenarios/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "foresail/planner/memory_bound.h"
#include "foresail/planner/parallel.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;
using planner::Layout;

constexpr std::size_t kFinalists = 5;

/// "tp 4, dp 96": what `other` has in place of `layout`'s choices, in the order of the axes.
std::string difference(const Layout& layout, const Layout& other) {
  static constexpr std::array kOrder = {"tp",
                                        "cp",
                                        "pp",
                                        "v",
                                        "stages",
                                        "schedule",
                                        "group_size",
                                        "dp",
                                        "ep",
                                        "rank_order",
                                        "microbatch_size",
                                        "zero_stage",
                                        "shard_size",
                                        "optimizer_offload",
                                        "sequence_parallel",
                                        "recompute"};
  const Document mine = planner::to_document(layout);
  const Document theirs = planner::to_document(other);
  // Some keys stand only where they are not what they usually are.
  const auto entry = [](const Document& document, const std::string& key) {
    if (document.contains(key)) return document.at(key);
    return key == "stages" ? Document("even") : Document(0);
  };
  std::string text;
  const auto add = [&](const std::string& key, const Document& value) {
    const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, shown);
  };
  for (const char* key : kOrder) {
    const Document value = entry(theirs, key);
    if (value != entry(mine, key)) add(key, value);
  }
  // These stand in a document only where they are not what they usually are.
  if (other.etp != layout.etp) add("etp", other.expert_tp());
  if (other.cp_kind != layout.cp_kind) add("cp_kind", to_string(other.cp_kind));
  for (const char* axis : {"aligned", "dp", "ep", "pp", "tp"}) {
    const Document on = theirs.at("overlap").value(axis, Document(false));
    const Document before = mine.at("overlap").value(axis, Document(false));
    if (on != before) add(std::string("overlap.") + axis, on);
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
  finalist.upper = planner::upper_peak(finalist.plan, planner::lower(finalist.plan));
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
  if (layout.cp_kind != models::ContextParallel::AllGather) {
    text += fmt::format(" ({})", to_string(layout.cp_kind));
  }
  if (layout.ep > 1) text += fmt::format(" ep {}", layout.ep);
  if (layout.etp != 0) text += fmt::format(" etp {}", layout.etp);
  text += fmt::format(" v {} mb {} {} zero {}", layout.v, layout.microbatch_size,
                      to_string(layout.schedule), layout.zero_stage);
  if (!layout.stages.is_even()) text += " stages " + to_text(layout.stages);
  if (layout.shard_size != 0) text += fmt::format(" shard {}", layout.shard_size);
  if (layout.optimizer_offload != 0) {
    text += fmt::format(" offload {}", layout.optimizer_offload);
  }
  if (layout.sequence_parallel) text += " sp";
  if (layout.recompute != models::Recompute::None) {
    text += fmt::format(" recompute {}", to_text(layout.recompute));
  }
  std::string overlap;
  if (layout.overlap.tp) overlap += "+tp";
  if (layout.overlap.pp) overlap += "+pp";
  const auto add_messages = [&](const char* name, planner::DataMessages messages) {
    if (!messages.any()) return;
    overlap += name;
    if (messages != planner::DataMessages(true)) {
      overlap += fmt::format(":{}", planner::to_text(messages));
    }
  };
  add_messages("+dp", layout.overlap.dp);
  if (layout.overlap.ep) overlap += "+ep";
  add_messages("+aligned", layout.overlap.aligned);
  if (!overlap.empty()) text += " overlap " + overlap.substr(1);
  if (layout.rank_order != Layout{}.rank_order) {
    text += " order " + program::to_text(layout.rank_order);
  }
  return text;
}

namespace {

planner::SearchOptions search_options(const SearchRunOptions& options) {
  planner::SearchOptions search = options.search;
  search.simulated_min = std::max(search.simulated_min, static_cast<int>(kFinalists));
  if (options.state == nullptr) return search;
  SearchState& state = *options.state;
  search.recall = [&state](const Candidate& candidate) { return state.recall(candidate); };
  search.keep = [&state](const std::vector<Candidate>& made) { state.keep(made); };
  return search;
}

/// The first of the outcome: five, or `top`; PerSize: of every size.
std::vector<Candidate> best_of(const planner::SearchOutcome& outcome,
                               const planner::SearchOptions& search) {
  const std::size_t wanted =
      std::max(kFinalists, static_cast<std::size_t>(std::max(1, search.top)));
  std::map<int, std::size_t> taken;
  std::vector<Candidate> best;
  for (const Candidate& each : outcome.simulated) {
    const bool is_by_size = search.scope == planner::Scope::PerSize;
    if (++taken[is_by_size ? each.layout.world_size() : 0] <= wanted) best.push_back(each);
  }
  return best;
}

}  // namespace

namespace {

void weigh_memory(const SearchRequest& request, const program::CostModel& cost,
                  SearchAnswer& answer) {
  const auto fits_at_most = [&](const Candidate& candidate) {
    const planner::Plan plan = planner::plan_of(request.problem, candidate, cost);
    return planner::describe_upper_excess(plan, planner::lower(plan)).empty();
  };
  answer.may_run_out = !fits_at_most(answer.finalists[answer.best].candidate);
  if (!answer.may_run_out) return;
  const auto safe = std::ranges::find_if(answer.outcome.simulated, fits_at_most);
  if (safe != answer.outcome.simulated.end()) answer.safe = *safe;
}

}  // namespace

SearchAnswer run_search(const SearchRequest& request, const SearchRunOptions& options) {
  const topologies::Cluster cluster(request.problem.base.cluster);
  const auto cost = search_cost(request.problem.base, cluster);
  SearchAnswer answer;
  answer.outcome = planner::search(request.problem, search_options(options), *cost);
  const std::vector<Candidate> chosen = best_of(answer.outcome, options.search);
  answer.finalists.resize(chosen.size());
  planner::for_each_index(options.search.threads, chosen.size(), [&](std::size_t i) {
    answer.finalists[i] = run_final(request, options, chosen[i], *cost);
  });
  for (std::size_t i = 1; i < answer.finalists.size(); ++i) {
    const double best = value_of(answer.finalists[answer.best]);
    if (value_of(answer.finalists[i]) < best) answer.best = i;
  }
  if (!answer.finalists.empty()) weigh_memory(request, *cost, answer);
  if (options.explains && !answer.finalists.empty()) explain(request, *cost, answer);
  return answer;
}

}  // namespace foresail::scenarios
