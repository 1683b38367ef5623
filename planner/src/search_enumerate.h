/// \file
/// All layouts of one mesh: rejected, or priced by the coarse bound.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "search_mesh.h"
#include "search_space.h"

namespace foresail::planner {

/// Prices of a mesh, shared by the threads that work on it.
class MeshState {
 public:
  MeshState(const SearchProblem& problem, const SearchSpace& space, const Mesh& mesh,
            const program::CostModel& cost);

  /// The problem's plan with this mesh's degrees and placement.
  const Plan& plan() const { return plan_; }
  /// The exact memory of `layout`, and, if it fits, its fine bound.
  struct Refined {
    Bytes peak;
    std::string out_of_memory;
    double bound_s = 0;
  };
  Refined refine(const Layout& layout);
  double coarse(const Layout& layout);

 private:
  friend class MeshEnumeration;
  Plan plan_;
  Bytes limit_;
  MeshCost prices_;
  ShapeCache shapes_;
  std::mutex guard_;
};

/// What one mesh adds to a search.
struct MeshCandidates {
  std::vector<Candidate> candidates;
  SearchOutcome counts;             ///< of this mesh alone
  std::optional<Layout> too_large;  ///< the first that memory rejected
  bool is_cut = false;              ///< should_stop said so before all were looked at
};
/// `should_stop` is asked before every layout; may be empty.
MeshCandidates enumerate(const SearchProblem& problem, const SearchSpace& space, const Mesh& mesh,
                         MeshState& state, const std::function<bool()>& should_stop);

}  // namespace foresail::planner
