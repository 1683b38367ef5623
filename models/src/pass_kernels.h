/// \file
/// The kernel list of one pass while it is written: names, sizes, and who waits for whom.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/models/row_slices.h"
#include "share.h"

namespace foresail::models {

/// C[m,n] = A[m,k] B[k,n], `batch` times.
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t batch = 1;
  std::int64_t parts = 1;  ///< Kernel::parts
};

/// Who stores a GEMM's result: a new tensor of activations, or the fp32 gradient buffer, which is
/// read and written (8 bytes per element).
enum class GemmResult { Tensor, Accumulated };

class PassKernels {
 public:
  /// `share` must outlive the list.
  explicit PassKernels(const Share& share) : share_(share) {}

  /// Appended to every name from now on (".recompute").
  void set_suffix(std::string suffix) { suffix_ = std::move(suffix); }
  /// The next compute kernel lists `collectives`.
  void await(const std::vector<int>& collectives);

  // Each appends one kernel and answers with its index.
  int gemm(const std::string& name, DType dtype, const GemmShape& shape,
           GemmResult result = GemmResult::Tensor);
  int memory_bound(KernelKind kind, const std::string& name, std::int64_t bytes);
  int elementwise(const std::string& name, std::int64_t bytes) {
    return memory_bound(KernelKind::Elementwise, name, bytes);
  }
  int compute(Kernel kernel);
  /// After the last compute kernel so far.
  int collective(const std::string& name, Collective kind, std::int64_t bytes,
                 Lane lane = Lane::Tp);
  /// The activations of `tokens` tokens, `width` columns (0: hidden).
  int exchange(const std::string& name, Collective kind, std::int64_t tokens,
               std::int64_t width = 0);

  const Share& share() const { return share_; }
  std::vector<Kernel> take() && { return std::move(kernels_); }

 private:
  int push(Kernel kernel);

  const Share& share_;
  std::string suffix_;
  std::vector<int> awaited_;
  int last_compute_ = -1;
  std::vector<Kernel> kernels_;
};

}  // namespace foresail::models
