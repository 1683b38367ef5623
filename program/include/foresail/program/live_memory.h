/// \file
/// What a rank holds, tensor by tensor, and from which op to which: the contract between the
/// planner, who knows the sizes, and whoever lays it over time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/program/program.h"

namespace foresail::program {

/// The categories of MemoryNeed. Buffers: what lives within a pass (outputs, gradients, gathered
/// and recomputed tensors), messages, and the buckets of sharded states.
enum class MemoryCategory { Parameters, Gradients, Optimizer, Activations, Buffers };

/// One tensor, or the equal ones of several layers together.
struct LiveTensor {
  MemoryCategory category = MemoryCategory::Buffers;
  std::string owner;  ///< "layers 0-11", "embedding", "head", "rank", "message"
  std::string name;   ///< "fc2.input", "main gradients", "received activation"
  Bytes bytes;        ///< on one rank, for one microbatch if it belongs to one
  friend bool operator==(const LiveTensor&, const LiveTensor&) = default;
};

/// Tensors that come and go together.
struct TensorGroup {
  std::vector<LiveTensor> tensors;
  Bytes bytes() const {
    Bytes sum;
    for (const LiveTensor& tensor : tensors) sum += tensor.bytes;
    return sum;
  }
};

/// An edge of an op.
struct Moment {
  enum class Edge { Start, End } edge = Edge::Start;
  OpId op{};
};

/// A group that is there from one moment to another.
struct Life {
  std::size_t group = 0;
  Moment born, dies;
};

/// Of one stage class. While a pass runs, one group stands for its fullest moment, what it read and
/// what it keeps included.
struct StageMemory {
  std::vector<LiveTensor> resident;  ///< through the whole step
  std::vector<TensorGroup> groups;
  std::vector<Life> lives;
};

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::MemoryCategory> =
    std::to_array<Named<program::MemoryCategory>>(
        {{program::MemoryCategory::Parameters, "parameters"},
         {program::MemoryCategory::Gradients, "gradients"},
         {program::MemoryCategory::Optimizer, "optimizer"},
         {program::MemoryCategory::Activations, "activations"},
         {program::MemoryCategory::Buffers, "buffers"}});
}  // namespace foresail
