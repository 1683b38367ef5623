/// \file
/// Tensors on their way between ops of one rank, by (chunk, microbatch). Several lanes use it.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::runtime {

/// Names the pass that a tensor belongs to.
struct PassKey {
  int chunk = 0;
  int microbatch = 0;
  friend auto operator<=>(const PassKey&, const PassKey&) = default;
};

/// Every tensor is put once and taken once.
class Shelf {
 public:
  void put(PassKey key, at::Tensor tensor) {
    const std::scoped_lock lock(mutex_);
    const bool is_new = tensors_.emplace(key, std::move(tensor)).second;
    FORESAIL_EXPECT(is_new);
  }
  at::Tensor take(PassKey key) {
    const std::scoped_lock lock(mutex_);
    const auto found = tensors_.find(key);
    FORESAIL_EXPECT(found != tensors_.end());
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }
  bool is_empty() {
    const std::scoped_lock lock(mutex_);
    return tensors_.empty();
  }

 private:
  std::mutex mutex_;
  std::map<PassKey, at::Tensor> tensors_;
};

}  // namespace foresail::runtime
