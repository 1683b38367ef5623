#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "foresail/models/operators.h"

namespace foresail::models {
namespace {

bool is_weight_gradient(std::string_view name) {
  return name.ends_with(".wgrad") || name.ends_with(".bias.backward") ||
         name.starts_with("tp.regather_") || name == "tp.gather_grad_embedding" ||
         name == "embedding.backward" || name == "embedding.positions.backward";
}

/// One half while it is written.
class Half {
 public:
  std::vector<Kernel> kernels;

  /// The compute kernel before, which is as far as this half has come; -1 if there is none.
  int last_compute() const { return last_compute_; }
  /// The next compute kernel also waits for `collective`.
  void await(int collective) { awaited_.push_back(collective); }
  void push(Kernel kernel) {
    if (kernel.kind != KernelKind::Collective) {
      kernel.after.insert(kernel.after.begin(), awaited_.begin(), awaited_.end());
      std::ranges::sort(kernel.after);
      const auto doubled = std::ranges::unique(kernel.after);
      kernel.after.erase(doubled.begin(), doubled.end());
      awaited_.clear();
      last_compute_ = static_cast<int>(kernels.size());
    }
    kernels.push_back(std::move(kernel));
  }

 private:
  std::vector<int> awaited_;
  int last_compute_ = -1;
};

}  // namespace

// Where kernels of the two halves waited for each other: a collective that waited for a compute
// kernel of the other half waits for the one before it in its own; a collective that a compute
// kernel of the other half waited for is awaited by the next compute kernel of its own, which stood
// behind that one. The halves themselves run one after the other, so nothing is lost.
SplitBackward split_backward(const std::vector<Kernel>& backward) {
  Half halves[2];
  std::vector<int> half_of, index_of;
  for (const Kernel& kernel : backward) {
    const int which = is_weight_gradient(kernel.name) ? 1 : 0;
    Half& half = halves[which];
    Kernel moved = kernel;
    moved.after.clear();
    for (const int before : kernel.after) {
      const auto at = static_cast<std::size_t>(before);
      if (half_of[at] == which) {
        moved.after.push_back(index_of[at]);
      } else if (kernel.kind != KernelKind::Collective) {
        halves[half_of[at]].await(index_of[at]);
      } else if (half.last_compute() >= 0) {
        moved.after.push_back(half.last_compute());
      }
    }
    half_of.push_back(which);
    index_of.push_back(static_cast<int>(half.kernels.size()));
    half.push(std::move(moved));
  }
  return {std::move(halves[0].kernels), std::move(halves[1].kernels)};
}

}  // namespace foresail::models
