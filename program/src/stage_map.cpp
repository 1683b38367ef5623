#include "foresail/program/stage_map.h"

#include "foresail/base/error.h"

namespace foresail::program {

GlobalStages::GlobalStages(StageMap map, int stages, int chunks)
    : map_(map), stages_(stages), chunks_(chunks) {
  FORESAIL_EXPECT(stages >= 1);
  FORESAIL_EXPECT(chunks >= 1);
  FORESAIL_EXPECT(map != StageMap::Mirrored || (chunks == 2 && stages % 2 == 0));
}

bool GlobalStages::is_possible(StageMap map, int stages, int chunks, int microbatches) {
  return map != StageMap::Mirrored || (chunks == 2 && stages % 2 == 0 && microbatches % 2 == 0);
}

int GlobalStages::count() const {
  return map_ == StageMap::Mirrored ? stages_ : stages_ * chunks_;
}

int GlobalStages::of(ChunkPlace place) const {
  const int back = stages_ - 1 - place.stage;
  switch (map_) {
    case StageMap::Ring:
      return place.chunk * stages_ + place.stage;
    case StageMap::V:
      return place.chunk * stages_ + (place.chunk % 2 == 0 ? place.stage : back);
    case StageMap::Mirrored:
      return place.chunk == 0 ? place.stage : back;
  }
  return -1;
}

bool GlobalStages::is_visited(int chunk, int microbatch, int microbatches) const {
  if (map_ != StageMap::Mirrored) return true;
  return chunk == (microbatch < microbatches / 2 ? 0 : 1);
}

std::optional<ChunkPlace> GlobalStages::moved(ChunkPlace place, int step) const {
  const int global = of(place) + step;
  if (global < 0 || global >= count()) return std::nullopt;
  const int chunk = map_ == StageMap::Mirrored ? place.chunk : global / stages_;
  const int along = global % stages_;
  const bool runs_back = map_ != StageMap::Ring && chunk % 2 == 1;
  return ChunkPlace{runs_back ? stages_ - 1 - along : along, chunk};
}

}  // namespace foresail::program
