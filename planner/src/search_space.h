/// \file
/// The meshes of a search space, and the layouts of one mesh.
#pragma once

#include <cstdint>
#include <vector>

#include "foresail/planner/search.h"

namespace foresail::planner {

/// Lists with every "all" filled in but those that depend on the mesh (v, shard_size).
SearchSpace completed(const SearchProblem& problem);

/// Degrees, rank order and placement; all else of a layout is free.
struct Mesh {
  Layout layout;  ///< tp, cp, cp_kind, ep, etp, pp, dp, rank_order, overlap.ep
  int gpus = 1;
  int placement = 0;
};

/// Meshes of the space and, of those that a law of the degrees forbids, the counts. `space` must be
/// completed. Throws Error{InvalidInput} if there is none, or more layouts than 1e9.
std::vector<Mesh> meshes(const SearchProblem& problem, const SearchSpace& space,
                         SearchOutcome& outcome);

/// Chunks per rank to try on a mesh.
std::vector<int> chunk_choices(const SearchSpace& space, const models::Model& model, int pp);
/// Values of shard_size to try on the mesh of `layout`.
std::vector<int> shard_choices(const SearchSpace& space, const models::Model& model,
                               const Layout& layout);
/// Layouts of the mesh of `layout`.
std::int64_t layouts_per_mesh(const SearchSpace& space, const models::Model& model,
                              const Layout& layout);

/// `layout` with every choice that changes nothing set to its plainest value: two layouts whose
/// plain forms are equal lower to the same Program and need the same memory.
Layout plain_form(const Layout& layout, const models::Stack& stack);

/// The first `ranks` devices of an order.
program::Placement placement_on(const DeviceOrder& order, int ranks);

}  // namespace foresail::planner
