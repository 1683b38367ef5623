/// \file
/// What the backward pass of a chunk's layers runs, piece by piece.
#pragma once

#include <vector>

#include "foresail/planner/plan.h"

namespace foresail::planner {

struct BackwardPiece {
  enum class Kind {
    Layer,     ///< backward of a layer with its own recomputation, if any
    Kept,      ///< backward of a layer whose activations are there
    Again,     ///< forward of a layer once more
    AgainLast  ///< the same of the last layer before its backward: may stop early
  };
  Kind kind = Kind::Layer;
  int layer = 0;  ///< of the model
};

/// Whether layers of a chunk differ in what they keep, or are made again together.
inline bool has_pieces(const Recomputation& recompute) {
  return recompute.what == models::Recompute::Full && !recompute.is_plain();
}

/// The pieces in their order. Layers run back from the last.
std::vector<BackwardPiece> backward_order(const Layout& layout, const StagePart& part);

/// Layers of a part that full recomputation covers: its first ones.
int recomputed_layers(const Layout& layout, const StagePart& part);

}  // namespace foresail::planner
