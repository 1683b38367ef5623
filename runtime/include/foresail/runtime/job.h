/// \file
/// Everything a rank must know before it starts. The worker makes it from a Plan; the runtime
/// itself knows no planner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/models/model.h"
#include "foresail/models/operators.h"
#include "foresail/program/program.h"
#include "foresail/program/training.h"

namespace foresail::runtime {

/// What stands at the ends of a chunk, beside its layers.
enum class ChunkEnds { None, Embedding, Head, Both };

/// One chunk of the model: layers [first_layer, end_layer), the embedding in front, the final norm,
/// output layer and loss behind.
struct ChunkPart {
  int first_layer = 0;
  int end_layer = 0;
  ChunkEnds ends = ChunkEnds::None;
  bool has_embedding() const { return ends == ChunkEnds::Embedding || ends == ChunkEnds::Both; }
  bool has_head() const { return ends == ChunkEnds::Head || ends == ChunkEnds::Both; }
};

struct Job {
  models::Model model;
  models::Split split;
  program::Training training;
  program::Program program;
  std::vector<std::vector<ChunkPart>> parts;  ///< by stage and local chunk
  int zero_stage = 0;
  double optimizer_offload = 0;   ///< share of the optimizer states in host memory
  std::string recompute;          ///< empty: what split.recompute says in one word
  std::string schedule = "1f1b";  ///< its name in the layout, for messages
  std::uint64_t seed = 1;         ///< of weights and data order
  std::string plan_digest;
};

/// Refuses what this version of the runtime cannot execute: Error{Unsupported} with the key and its
/// value ("model.block: parallel is not executed yet, only serial").
void check_supported(const Job& job);

}  // namespace foresail::runtime
