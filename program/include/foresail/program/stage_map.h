/// \file
/// Where the parts of a model lie on a pipeline, and in which order a microbatch visits them.
#pragma once

#include <array>
#include <optional>

#include "foresail/base/names.h"

namespace foresail::program {

/// p stages with v chunks each. The *global stage* of a chunk is its place along the model.
enum class StageMap {
  Ring,     ///< chunk c of stage r is global stage c p + r (Narayanan 2021): p v of them
  V,        ///< the same, but odd chunks run back: c p + (p - 1 - r) (ZB-V: Qi 2024)
  Mirrored  ///< two copies of p global stages: chunk 0 of stage r is r, chunk 1 is p - 1 - r. The
            ///< first half of the microbatches runs through the chunks 0, the second half through
            ///< the chunks 1 (DualPipe: DeepSeek-V3 2024)
};

/// A chunk and the stage that holds it.
struct ChunkPlace {
  int stage = 0;
  int chunk = 0;
  friend bool operator==(const ChunkPlace&, const ChunkPlace&) = default;
};

/// A StageMap with its sizes.
class GlobalStages {
 public:
  /// Mirrored requires two chunks and an even number of stages; see `is_possible`.
  GlobalStages(StageMap map, int stages, int chunks);
  static bool is_possible(StageMap map, int stages, int chunks, int microbatches);

  /// Number of global stages.
  int count() const;
  int of(ChunkPlace place) const;
  bool is_first(ChunkPlace place) const { return of(place) == 0; }
  bool is_last(ChunkPlace place) const { return of(place) == count() - 1; }
  /// The chunk that a microbatch visits after (before) `place`; nothing at the ends.
  std::optional<ChunkPlace> next(ChunkPlace place) const { return moved(place, 1); }
  std::optional<ChunkPlace> previous(ChunkPlace place) const { return moved(place, -1); }
  /// Whether `microbatch` of `microbatches` runs through the chunks of that number.
  bool is_visited(int chunk, int microbatch, int microbatches) const;

 private:
  std::optional<ChunkPlace> moved(ChunkPlace place, int step) const;

  StageMap map_;
  int stages_;
  int chunks_;
};

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::StageMap> =
    std::to_array<Named<program::StageMap>>({{program::StageMap::Ring, "ring"},
                                             {program::StageMap::V, "v"},
                                             {program::StageMap::Mirrored, "mirrored"}});
}  // namespace foresail
