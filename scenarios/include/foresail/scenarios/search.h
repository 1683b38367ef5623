/// \file
/// `plan` of a scenario with `search:` in place of `layout:`: the best layout of a space, simulated
/// again as the scenario says, and the answer to "why not that one".
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/yaml.h"
#include "foresail/planner/search.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::scenarios {

/// A layout that the user wants explained.
struct Comparison {
  planner::Layout layout;
  int placement = 0;
};

/// What a scenario's `search` says.
struct SearchRequest {
  planner::SearchProblem problem;
  std::string currency;  ///< of the price; empty: none given
  std::vector<Comparison> compare;
};

/// Reads `search` (docs/reference/scenario.md). `base` has everything but layout and placement.
/// Throws Error{InvalidInput} with file, line and key.
SearchRequest read_search(const Yaml& node, const planner::Plan& base);

/// The costs that the search uses: kernels and transfers alone, and for whole steps the `flow`
/// network, folded, on an idle and healthy cluster. Hashed and adaptive routes are priced by what
/// they come to on average: as if sprayed over all shortest paths. `cluster` must outlive it.
std::unique_ptr<program::CostModel> search_cost(const planner::Plan& base,
                                                const topologies::Cluster& cluster);

/// One of the best plans, simulated unfolded and as the scenario says.
struct Finalist {
  planner::Candidate candidate;
  planner::Plan plan;
  double step_s = 0;    ///< 0: the job fails
  std::string failure;  ///< why
};

/// The answer to one "why not".
struct Explanation {
  std::string what;  ///< "tp 4", or the whole layout
  planner::Verdict verdict;
};

struct SearchAnswer {
  planner::SearchOutcome outcome;
  std::vector<Finalist> finalists;  ///< in the order of the search
  std::size_t best = 0;             ///< of finalists: the one to write
  std::vector<Explanation> explanations;
};

struct SearchRunOptions {
  planner::SearchOptions search;
  bool explains = false;                   ///< fills explanations
  const Conditions* conditions = nullptr;  ///< of the scenario; not owned
  std::optional<std::uint64_t> seed;
};

/// Searches, then simulates the best five (or `top`, if more) unfolded with the scenario's routing
/// and conditions, and takes the fastest of them by the objective.
SearchAnswer run_search(const SearchRequest& request, const SearchRunOptions& options);

/// docs/guides/search.md lists the keys.
Document to_document(const SearchRequest& request, const SearchAnswer& answer);
std::string to_text(const SearchRequest& request, const SearchAnswer& answer, int top);
/// "tp 8, pp 8, dp 192, v 6, microbatch_size 1, ...".
std::string describe(const planner::Layout& layout);

}  // namespace foresail::scenarios
