/// \file
/// GEMMs of linear layers split over tp with the collective in front of or behind them, in one
/// piece or pipelined: cut into parts, so that the collectives run beside them
/// (models/row_slices.h says which rows they have).
#pragma once

#include "stage_scope.h"

namespace foresail::runtime {

struct ParallelGemm {
  std::string kernel;      ///< "qkv", "fc2.dgrad"
  std::string collective;  ///< "tp.gather_qkv"
  std::int64_t columns = 0;
  /// Makes `target` of as many `rows` of the input.
  std::function<void(const at::Tensor& target, const at::Tensor& rows)> multiply;
  bool is_pipelined = false;
};

/// The result for all tokens, and the input of all tokens.
struct GatheredProduct {
  at::Tensor result, whole;
};
/// `input`: all tokens, or under sequence parallelism this rank's shard, which is gathered.
/// All gathers are issued at once; a part of the GEMM waits for its own alone.
GatheredProduct gather_and_multiply(const StageScope& scope, const ParallelGemm& gemm,
                                    const at::Tensor& input);

/// A result that may still be reduced. Its rows are this rank's shard under sequence parallelism.
struct ReducedProduct {
  at::Tensor result;
  std::vector<Pending> reductions;
  at::Tensor wait() {
    for (Pending& reduction : reductions) reduction.wait();
    return result;
  }
};
/// Every part is reduced as soon as its GEMM has ended. With `sum`, which has a row per token and
/// belongs to the result from now on, multiply adds to rows of it.
ReducedProduct multiply_and_reduce(const StageScope& scope, const ParallelGemm& gemm,
                                   const at::Tensor& input, const at::Tensor& sum = {});

}  // namespace foresail::runtime
