/// \file
/// Where a rank stands in the mesh.
#pragma once

#include "foresail/program/program.h"

namespace foresail::runtime {

struct MeshPlace {
  int tp = 0, cp = 0, dp = 0, pp = 0;
  int tp_size = 1, cp_size = 1, dp_size = 1, pp_size = 1;
  /// Place among the ranks that reduce gradients together: the dp * cp of them.
  int copy = 0;
  /// Of those, the ranks that share one copy of what ZeRO shards, all of them unless they are cut
  /// into groups (layout.shard_size), and which group this one is.
  int shard = 0, shards = 1, replica = 0;

  int copies() const { return dp_size * cp_size; }
  static MeshPlace of(const program::Program& program, RankId rank);
};

}  // namespace foresail::runtime
