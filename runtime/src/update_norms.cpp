#include "update_norms.h"

#include "foresail/base/error.h"
#include "host_copy.h"

namespace foresail::runtime {

UpdateNorms::UpdateNorms(const Bucket& bucket, const Extent& held) {
  for (const auto& parameter : bucket.parameters()) {
    for (const Extent& matrix : parameter->matrices()) {
      const Extent own = overlap(matrix, held);
      if (own.count > 0) {
        parts_.push_back({own.first - held.first, own.count});
        matrix_of_.push_back(matrices_.size());
      }
      matrices_.push_back({parameter->spread, {}});
    }
  }
}

const double* UpdateNorms::measure(const double* squares) {
  for (Matrix& matrix : matrices_) matrix.norms = {};
  for (const std::size_t matrix : matrix_of_) {
    matrices_[matrix].norms = {squares[0], squares[1]};
    squares += 2;
  }
  return squares;
}

std::vector<Optimizer::Norms> UpdateNorms::of_parts() const {
  std::vector<Optimizer::Norms> norms;
  for (const std::size_t matrix : matrix_of_) norms.push_back(matrices_[matrix].norms);
  return norms;
}

void sum_norms(const program::Op& op, const std::vector<UpdateNorms*>& buckets,
               const CountedMatrices& counted, Communicator& communicator,
               const at::TensorOptions& options) {
  std::vector<UpdateNorms::Matrix*> all;
  for (UpdateNorms* bucket : buckets) {
    for (UpdateNorms::Matrix& matrix : bucket->matrices()) all.push_back(&matrix);
  }
  std::vector<float> own;
  for (const UpdateNorms::Matrix* matrix : all) {
    const bool is_counted =
        matrix->spread == Spread::Replicated ? counted.replicated : counted.sharded;
    own.push_back(is_counted ? static_cast<float>(matrix->norms.value) : 0);
    own.push_back(is_counted ? static_cast<float>(matrix->norms.update) : 0);
  }
  at::Tensor sums = at::tensor(own, at::kFloat).to(options);
  FORESAIL_EXPECT(op.bytes.count() == static_cast<std::int64_t>(sums.nbytes()));
  communicator.all_reduce(sums, Reduction::Sum);
  const at::Tensor values = to_host(sums);
  const float* sum = values.data_ptr<float>();
  for (UpdateNorms::Matrix* matrix : all) {
    matrix->norms = {sum[0], sum[1]};
    sum += 2;
  }
}

}  // namespace foresail::runtime
