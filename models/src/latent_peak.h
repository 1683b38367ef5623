/// \file
/// What latent attention's projections hold while they run.
#pragma once

#include <cstdint>

#include "foresail/models/model.h"
#include "linear_peak.h"
#include "live_tensors.h"
#include "share.h"

namespace foresail::models {

/// Makes and drops tensors in the order of the kernels of latent.h, on a rank's shard of the tokens
/// up to the gather. The constructor's arguments must outlive this.
class LatentPeak {
 public:
  LatentPeak(LiveTensors& live, const Model& model, const Share& share);

  /// To "query", "key" and "value".
  void forward();
  /// From "qkv.gradient", which goes, to "qkv.input.gradient".
  void backward();

 private:
  /// Bytes of `width` columns of the own shard, and of all tokens of the tp group.
  std::int64_t own(std::int64_t width) const;
  std::int64_t all(std::int64_t width) const;
  std::int64_t gathered(std::int64_t width) const;

  LiveTensors& live_;
  LinearPeak linear_;
  const Share& share_;
  std::int64_t query_rank_, kv_rank_, rope_, up_;  // columns; the last are those of this tp rank
};

}  // namespace foresail::models
