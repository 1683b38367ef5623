/// \file
/// `plan` of a scenario with `search:` in place of `layout:`: the best layout of a space, simulated
/// again as the scenario says, and the answer to "why not that one".
#pragma once

#include <filesystem>
#include <functional>
#include <map>
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
  std::string currency;      ///< of the price; empty: none given
  std::string power_source;  ///< of the power: the scenario, or a data sheet; empty: unknown
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
  Bytes upper;          ///< memory that its fullest stage needs at most
  double step_s = 0;    ///< 0: the job fails
  std::string failure;  ///< why
};

/// The answer to one "why not".
struct Explanation {
  std::string what;  ///< "tp 4", or the whole layout
  planner::Verdict verdict;
};

/// Simulated plans kept in a file, so that a search that was interrupted, or another question about
/// the same job, need not simulate them again. Whatever was kept, the answer is the same.
class SearchState {
 public:
  /// Reads `path` if it exists. Throws Error{InvalidInput} if it is no such file, or that of
  /// another job or version: "state.json: of another job (model, cluster, training, stack, network,
  /// seed)".
  SearchState(std::filesystem::path path, const planner::SearchProblem& problem);

  std::optional<Duration> recall(const planner::Candidate& candidate) const;
  /// Adds, and writes the file.
  void keep(const std::vector<planner::Candidate>& simulated);

 private:
  std::string key_of(const planner::Layout& layout, const std::string& placement) const;
  std::string placement_of(const planner::Candidate& candidate) const;

  std::filesystem::path path_;
  std::string digest_;  // of all but layout and placement
  std::vector<std::string> placements_;
  std::map<std::string, Duration> steps_;  // by key_of
};

struct SearchAnswer {
  planner::SearchOutcome outcome;
  std::vector<Finalist> finalists;  ///< in the order of the search
  std::size_t best = 0;             ///< of finalists: the one to write
  /// Whether the best may run out of memory: it fits by the point estimate alone.
  bool may_run_out = false;
  /// Then the best of what was simulated that fits at most, if any does.
  std::optional<planner::Candidate> safe;
  std::vector<Explanation> explanations;
};

struct SearchRunOptions {
  planner::SearchOptions search;
  bool explains = false;                   ///< fills explanations
  SearchState* state = nullptr;            ///< may be null; not owned
  const Conditions* conditions = nullptr;  ///< of the scenario; not owned
  std::optional<std::uint64_t> seed;
};

/// Searches, then simulates the best five (or `top`, if more; PerSize: of every size) unfolded with
/// the scenario's routing and conditions, and takes the best of them by the objective.
SearchAnswer run_search(const SearchRequest& request, const SearchRunOptions& options);

/// docs/guides/search.md lists the keys.
Document to_document(const SearchRequest& request, const SearchAnswer& answer);
std::string to_text(const SearchRequest& request, const SearchAnswer& answer, int top);
/// --explain: why the chosen plan, why not the others.
std::string explanation_text(const SearchRequest& request, const SearchAnswer& answer);
/// "tp 8, pp 8, dp 192, v 6, microbatch_size 1, ...".
std::string describe(const planner::Layout& layout);

}  // namespace foresail::scenarios
