/// \file
/// Adam (Kingma 2015), AdamW (Loshchilov 2019) and LAMB (You et al. 2020), with fp32 state on the
/// part of a bucket that this rank updates: one walk over memory on a CPU, torch's kernels over
/// pieces of bounded size on a device.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "foresail/program/training.h"

namespace foresail::runtime {

struct OptimizerOptions {
  program::Optimizer kind = program::Optimizer::Adam;
  double weight_decay = 0;  ///< of matrices; AdamW and LAMB
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

/// A matrix's elements among those that the optimizer holds.
struct MatrixPart {
  std::int64_t first = 0, count = 0;
};

/// Bias-corrected moments m and v give the update u = m / (sqrt(v) + epsilon), plus weight_decay
/// times the value for matrices; rate * u is taken away. LAMB scales the rate of each matrix by
/// |value| / |u|, whose parts other ranks may hold: hence its halves.
class Optimizer {
 public:
  /// `values` are updated in place by every step; `matrices` lie in them in increasing order.
  Optimizer(const OptimizerOptions& options, at::Tensor values, std::vector<MatrixPart> matrices);

  /// One step of Adam or AdamW with `scale` times `grads`.
  void step(const at::Tensor& grads, double scale, double rate);

  /// LAMB's first half: `grads` become u.
  void make_updates(at::Tensor& grads, double scale);
  /// Squared norms of the own part of a matrix and of its update.
  std::array<at::Tensor, 2> squared_norms(std::size_t matrix, const at::Tensor& updates) const;
  struct Norms {
    double value = 0, update = 0;
  };
  /// The second half, with the squared norms of all matrices as a whole.
  void apply(const at::Tensor& updates, const std::vector<Norms>& norms, double rate);

  const std::vector<MatrixPart>& matrices() const { return matrices_; }

 private:
  /// Calls `visit(first, count, matrix)` for all elements in order; `matrix` is an index, or -1
  /// between matrices.
  template <class Visit>
  void for_each_part(const Visit& visit) const;
  /// One step of the moments with `scale` times `grads`; calls `use(i, m / (sqrt(v) + epsilon),
  /// matrix)` for every element.
  template <class Use>
  void for_each_direction(const at::Tensor& grads, double scale, const Use& use);

  /// The same on a device: `use(first, count, directions)` by pieces.
  template <class Use>
  void for_each_piece(const at::Tensor& grads, double scale, const Use& use);
  void step_on_device(const at::Tensor& grads, double scale, double rate);

  OptimizerOptions options_;
  at::Tensor values_, mean_, square_;
  std::vector<MatrixPart> matrices_;
  int steps_ = 0;
};

/// 0-dim, double. On a CPU sums of fp32 products over short blocks, added up in double precision:
/// fast, and good to some 1e-7 whatever the size.
at::Tensor squared_norm(const at::Tensor& flat);

/// min(1, clip / (norm + 1e-6)); 1 if clip is 0 (Megatron-LM's rule).
double clip_scale(double clip, double norm);

}  // namespace foresail::runtime
