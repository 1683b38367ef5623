/// \file
/// Where a rank stands in the mesh.
#pragma once

#include <cstdint>
#include <vector>

#include "foresail/program/program.h"

namespace foresail::runtime {

/// Where a rank stands in the mesh of experts.
struct ExpertPlace {
  int ep = 0, etp = 0, ep_size = 1, etp_size = 1;
  /// Place among the ranks that hold the same experts.
  int copy = 0, copies = 1;
  /// Of those, the ranks that share one copy of what ZeRO shards, and which of the groups of such
  /// ranks this one is in: as in MeshPlace.
  int shard = 0, shards = 1, replica = 0;
  /// By ep * etp_size + etp: place in the group of all of them that tell each other their counts.
  std::vector<int> place_of;

  int place_of_self() const {
    return place_of.empty() ? 0 : place_of[static_cast<std::size_t>(ep * etp_size + etp)];
  }
  std::int64_t of(int other_ep, int other_etp) const {
    return place_of[static_cast<std::size_t>(other_ep * etp_size + other_etp)];
  }
};

struct MeshPlace {
  int tp = 0, cp = 0, dp = 0, pp = 0;
  int tp_size = 1, cp_size = 1, dp_size = 1, pp_size = 1;
  /// Place among the ranks that reduce gradients together: the dp * cp of them.
  int copy = 0;
  /// Of those, the ranks that share one copy of what ZeRO shards, all of them unless they are cut
  /// into groups (layout.shard_size), and which group this one is.
  int shard = 0, shards = 1, replica = 0;

  ExpertPlace experts;  ///< models with experts only

  int copies() const { return dp_size * cp_size; }
  static MeshPlace of(const program::Program& program, RankId rank);
};

}  // namespace foresail::runtime
