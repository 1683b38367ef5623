/// \file
/// The norms by which LAMB scales a matrix's update, where several ranks hold parts of the matrix.
#pragma once

#include <cstddef>
#include <vector>

#include "foresail/program/program.h"
#include "foresail/runtime/communicator.h"
#include "optimizer.h"
#include "parameters.h"

namespace foresail::runtime {

/// Squared norms of all matrices of one bucket and of their updates: first of the parts that this
/// rank updates, and after sum_norms of the matrices as a whole. Each expert's matrices count for
/// themselves, however many one rank holds.
class UpdateNorms {
 public:
  struct Matrix {
    Spread spread = Spread::Sharded;
    Optimizer::Norms norms;
  };

  UpdateNorms() = default;
  /// `held`: what this rank updates of `bucket`.
  UpdateNorms(const Bucket& bucket, const Extent& held);

  /// The matrices of which this rank updates anything, in elements of what it updates.
  const std::vector<MatrixPart>& parts() const { return parts_; }

  /// Takes the squares of Optimizer::squared_norms, part by part, from `squares`; returns where
  /// the next bucket's begin.
  const double* measure(const double* squares);
  /// By part, of the matrix that it belongs to.
  std::vector<Optimizer::Norms> of_parts() const;

  /// Of the whole bucket, in the order in which ranks tell each other.
  std::vector<Matrix>& matrices() { return matrices_; }

 private:
  std::vector<Matrix> matrices_;
  std::vector<MatrixPart> parts_;
  std::vector<std::size_t> matrix_of_;  // by part
};

/// What several ranks of a group hold counts on one of them. Whether on this one:
struct CountedMatrices {
  bool sharded = true, replicated = true;
};

/// The op of payload UpdateNorms: fp32 sums over `communicator`, in a message that has
/// `options`.
void sum_norms(const program::Op& op, const std::vector<UpdateNorms*>& buckets,
               const CountedMatrices& counted, Communicator& communicator,
               const at::TensorOptions& options);

}  // namespace foresail::runtime
