#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "foresail/base/quantity.h"
#include "search_text.h"

namespace foresail::scenarios {
namespace {

using planner::Candidate;
using planner::SearchOutcome;
using planner::Verdict;

/// One line, or several layouts that break the same law.
struct Line {
  std::string what, law, why;
};

std::string compared(const SearchRequest& request, const Candidate& optimum, double objective) {
  return fmt::format("{:.6g} {} ({:+.1f} %)", objective, unit_of(request),
                     100 * (objective / optimum.objective - 1));
}

std::string over(const Verdict& verdict) {
  if (verdict.excess <= Bytes{}) return {};  // of the host's memory, or only at most
  return fmt::format(", {} over", to_text(verdict.excess));
}

Line line_of(const SearchRequest& request, const Candidate& optimum, const Explanation& each) {
  const Candidate& other = each.verdict.candidate;
  switch (each.verdict.kind) {
    case Verdict::Kind::BrokenLaw:
      return {each.what, each.verdict.law,
              fmt::format("{}: {}", each.verdict.law, each.verdict.reason)};
    case Verdict::Kind::OutOfMemory:
      return {each.what, {}, "out of memory" + over(each.verdict) + ": " + each.verdict.reason};
    case Verdict::Kind::Bounded:
      return {each.what, {}, "not simulated, bound " + compared(request, optimum, other.objective)};
    case Verdict::Kind::Simulated:
      break;
  }
  return {each.what, {}, "simulated, " + compared(request, optimum, other.objective)};
}

/// Neighbours on one axis that break the same law, after each other, are one line.
std::vector<Line> lines(const SearchRequest& request, const SearchAnswer& answer) {
  const Candidate& optimum = answer.outcome.simulated.front();
  const auto axis = [](const std::string& what) { return what.substr(0, what.find(' ')); };
  std::vector<Line> made;
  for (const Explanation& each : answer.explanations) {
    const Line line = line_of(request, optimum, each);
    const bool is_more = !line.law.empty() && !made.empty() && made.back().law == line.law &&
                         axis(made.back().what) == axis(line.what);
    if (is_more) {
      made.back().what += "; " + line.what;
    } else {
      made.push_back(line);
    }
  }
  return made;
}

std::string why_this(const SearchRequest& request, const SearchAnswer& answer) {
  const Finalist& best = answer.finalists[answer.best];
  const Candidate& optimum = answer.outcome.simulated.front();
  std::string text = fmt::format("why this one: {}\n", describe(best.candidate.layout));
  text += fmt::format("  folded {:.6g} s (its bound: {:.6g} s), unfolded {:.6g} s\n",
                      best.candidate.step_s, best.candidate.bound_s, best.step_s);
  if (answer.best > 0) {
    text += fmt::format(
        "  of the best {} by the folded cost it is the best unfolded, with this scenario's routes "
        "and conditions;\n  the folded optimum, {}, is {:.2f} % better there\n",
        answer.finalists.size(), describe(optimum.layout),
        100 * (best.candidate.objective / optimum.objective - 1));
  }
  if (answer.outcome.left_objective > 0) {
    text += fmt::format("  the lowest bound that is left: {:.6g} {}\n",
                        answer.outcome.left_objective, unit_of(request));
  }
  return text;
}

}  // namespace

std::string rejected_text(const SearchOutcome& outcome) {
  std::vector<std::pair<std::string, planner::LawCount>> laws(outcome.law.begin(),
                                                              outcome.law.end());
  std::ranges::stable_sort(
      laws, [](const auto& a, const auto& b) { return a.second.count > b.second.count; });
  std::string text = "rejected in the space, with an example of each:\n";
  if (outcome.out_of_memory > 0) {
    text += fmt::format("  {:>9} memory: {}\n", outcome.out_of_memory, outcome.memory_example);
  }
  for (const auto& [name, law] : laws) {
    text += fmt::format("  {:>9} {}: {}\n", law.count, name, law.example);
  }
  return text;
}

std::string explanation_text(const SearchRequest& request, const SearchAnswer& answer) {
  std::string text = "\n" + why_this(request, answer);
  text += "why not that one (percentages: against the best folded time):\n";
  const std::vector<Line> all = lines(request, answer);
  std::size_t width = 0;
  for (const Line& line : all) width = std::max(width, std::min<std::size_t>(28, line.what.size()));
  for (const Line& line : all) {
    text += fmt::format("  {:<{}}  {}\n", line.what, width, line.why);
  }
  return text + rejected_text(answer.outcome);
}

}  // namespace foresail::scenarios
