/// \file
/// Tensors that linear layers cut over tp make beside what they save, in the order of their
/// kernels.
#pragma once

#include <cstdint>
#include <string>

#include "live_tensors.h"
#include "share.h"

namespace foresail::models {

/// Sequence parallelism gathers what a layer reads: behind its GEMM the gathered tensor goes.
/// Pipelined, the rows of one part of a GEMM, which are those of a slice of several shards, stand
/// beside the whole tensors that they are taken from and put into, and a slice under way beside
/// what is gathered (row_slices.h). Both arguments of the constructor must outlive this.
class LinearPeak {
 public:
  LinearPeak(LiveTensors& live, const Share& share) : live_(live), share_(share) {}

  /// What stands beside the gathered input and an output of `out` columns while it is made.
  void column_forward(std::int64_t out) { gathered_parts(share_.hidden, out); }

  /// NAME.output, of an input of `in` columns; under sequence parallelism the reduced shard stands
  /// beside the full output.
  void row_forward(const std::string& name, std::int64_t in);

  /// Whether two layers read one gathered gradient: the first of them keeps it for the last.
  enum class Gradient { Own, FirstOfShared, LastOfShared };
  /// NAME.input.gradient of `in` columns; NAME.input and NAME.output.gradient go.
  void row_backward(const std::string& name, std::int64_t in, Gradient gradient = Gradient::Own);

  /// NAME.input.gradient, of an input of `in` columns that is cut like the hidden states;
  /// NAME.input goes, and `gradient`, the gradient of the output.
  struct Columns {
    std::int64_t in = 0;
    std::int64_t parted = 0;  ///< of the tensors of which pipelined GEMMs read parts
  };
  void column_backward(const std::string& name, const Columns& columns,
                       const std::string& gradient);

 private:
  bool has_parts() const { return share_.is_pipelined && share_.is_sequence_parallel; }
  void gathered_parts(std::int64_t in, std::int64_t out);
  void reduced_part(std::int64_t in);

  LiveTensors& live_;
  const Share& share_;
};

}  // namespace foresail::models
