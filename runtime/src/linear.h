/// \file
/// Linear layers split over the tensor-parallel group (Shoeybi 2019), with sequence parallelism
/// (Korthikanti 2022). Weights are [out, in]; gradients accumulate in the bucket. With
/// layout.overlap.tp the GEMMs beside collectives, and these, come in parts (parallel_gemm.h).
#pragma once

#include "stage_scope.h"

namespace foresail::runtime {

/// Output features are split. Input: all tokens, or this rank's sequence shard.
/// Kernels: [tp.gather_<name>] <name>; backward <name>.dgrad <name>.wgrad with the collective of
/// the input gradient started between them.
class ColumnLinear : public torch::nn::Module {
 public:
  struct Options {
    std::string kernel;  ///< "qkv"
    std::shared_ptr<Parameter> weight;
    std::shared_ptr<Parameter> bias;  ///< or null
    bool is_pipelined = false;        ///< with layout.overlap.tp: collectives run beside its GEMMs
  };
  ColumnLinear(const StageScope& scope, const Options& options);
  at::Tensor forward(const at::Tensor& input);

  const StageScope& scope() const { return scope_; }
  const Options& options() const { return options_; }

 private:
  const StageScope& scope_;
  Options options_;
};

/// Input features are split; the partial sums are reduced. The bias is added by what follows.
/// Kernels: <name> [tp.reduce_<name>]; backward [tp.gather_grad_<name>] <name>.dgrad <name>.wgrad.
class RowLinear : public torch::nn::Module {
 public:
  struct Options {
    std::string kernel;  ///< "proj"
    std::shared_ptr<Parameter> weight;
  };
  RowLinear(const StageScope& scope, const Options& options);
  at::Tensor forward(const at::Tensor& input);

  const StageScope& scope() const { return scope_; }
  const Options& options() const { return options_; }

 private:
  const StageScope& scope_;
  Options options_;
};

}  // namespace foresail::runtime
