#include "foresail/models/operators.h"

#include <set>
#include <utility>

#include "block.h"
#include "layer_peak.h"
#include "linear.h"
#include "saved.h"

namespace foresail::models {

Bytes sum(const std::vector<SavedTensor>& tensors) {
  Bytes total;
  for (const SavedTensor& tensor : tensors) total += tensor.bytes;
  return total;
}

Bytes Work::saved_bytes() const {
  return sum(saved);
}

Bytes Work::retained_bytes() const {
  return sum(retained);
}

namespace {

Work work_of(const Model& model, const Split& split, const ExpertShare* experts) {
  const Share share = share_of(model, split);
  PassKernels forward(share);
  block_forward(forward, model, split.stack, experts);
  PassKernels backward(share);
  if (split.recompute == Recompute::Full) {
    backward.set_suffix(".recompute");
    block_forward(backward, model, split.stack, experts,
                  split.stack.early_stop_recompute ? Extent::UpToLastGemm : Extent::Whole);
    backward.set_suffix("");
  }
  block_backward(backward, model, split, experts);
  return {.forward = std::move(forward).take(),
          .backward = std::move(backward).take(),
          .saved = layer_saved(model, split, share, experts),
          .forward_peak = layer_forward_peak(model, split, share, experts),
          .backward_peak = layer_backward_peak(model, split, share, experts),
          .retained = layer_retained(model, share, experts)};
}

}  // namespace

Work layer_work(const Model& model, const Split& split) {
  return work_of(model, split, nullptr);
}

Work expert_layer_work(const Model& model, const Split& split, const std::vector<double>& load) {
  const ExpertShare experts = expert_share_of(model, split, load);
  return work_of(model, split, &experts);
}

namespace {

// Collectives of `list` that nothing in it waits for: the end of the list does.
std::vector<int> unawaited(const std::vector<Kernel>& list) {
  std::set<int> waiting;
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (const int before : list[i].after) waiting.erase(before);
    if (list[i].kind == KernelKind::Collective) waiting.insert(static_cast<int>(i));
  }
  return {waiting.begin(), waiting.end()};
}

}  // namespace

void append(std::vector<Kernel>& list, const std::vector<Kernel>& more) {
  if (more.empty()) return;
  const std::vector<int> ends = unawaited(list);
  const std::size_t offset = list.size();
  for (const Kernel& kernel : more) {
    list.push_back(kernel);
    for (int& before : list.back().after) before += static_cast<int>(offset);
  }
  std::vector<int>& first = list[offset].after;
  first.insert(first.begin(), ends.begin(), ends.end());
}

}  // namespace foresail::models
