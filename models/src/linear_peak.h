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
/// Both arguments of the constructor must outlive this.
class LinearPeak {
 public:
  LinearPeak(LiveTensors& live, const Share& share) : live_(live), share_(share) {}

  /// NAME.output; under sequence parallelism the reduced shard stands beside the full output.
  void row_forward(const std::string& name);

  /// Whether two layers read one gathered gradient: the first of them keeps it for the last.
  enum class Gradient { Own, FirstOfShared, LastOfShared };
  /// NAME.input.gradient of `bytes`; NAME.input and NAME.output.gradient go.
  void row_backward(const std::string& name, std::int64_t bytes, Gradient gradient = Gradient::Own);

  /// NAME.input.gradient, of an input of `in` columns that is cut like the hidden states;
  /// NAME.input goes, and `gradient`, the gradient of the output.
  void column_backward(const std::string& name, std::int64_t in, const std::string& gradient);

 private:
  LiveTensors& live_;
  const Share& share_;
};

}  // namespace foresail::models
