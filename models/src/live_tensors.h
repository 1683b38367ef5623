/// \file
/// The tensors that are there while a pass runs through one part of the model, and the moment at
/// which they are most.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/models/operators.h"

namespace foresail::models {

/// Tensors are made and dropped in the order in which the kernels of a pass make and drop them.
class LiveTensors {
 public:
  LiveTensors() = default;
  explicit LiveTensors(std::vector<SavedTensor> there);

  /// `bytes` of 0 make nothing.
  void make(std::string name, std::int64_t bytes);
  /// Those of these names, if they are there.
  void drop(const std::vector<std::string_view>& names);
  /// All but those of these names.
  void keep(const std::vector<std::string_view>& names);

  /// All that was there at the fullest moment so far.
  std::vector<SavedTensor> peak() && { return std::move(peak_); }

 private:
  std::vector<SavedTensor> live_, peak_;
  std::int64_t bytes_ = 0, most_ = 0;
};

}  // namespace foresail::models
