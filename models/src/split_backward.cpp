#include <string_view>
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
struct Half {
  std::vector<Kernel> kernels;
  int last_compute = -1;
};

}  // namespace

// A kernel that waited for one of the other half: if it is a collective, it waits for the compute
// kernel before it in its own half, which is as far as its half has come. The passes themselves are
// ordered, so nothing is lost.
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
      int due = half_of[at] == which ? index_of[at] : -1;
      if (half_of[at] != which && kernel.kind == KernelKind::Collective) due = half.last_compute;
      if (due >= 0) moved.after.push_back(due);
    }
    half_of.push_back(which);
    index_of.push_back(static_cast<int>(half.kernels.size()));
    if (kernel.kind != KernelKind::Collective) half.last_compute = index_of.back();
    half.kernels.push_back(std::move(moved));
  }
  return {std::move(halves[0].kernels), std::move(halves[1].kernels)};
}

}  // namespace foresail::models
