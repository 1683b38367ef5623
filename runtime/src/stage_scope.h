/// \file
/// What the modules of a stage share: the op under way, the split, and where parameters come from.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dropout.h"
#include "flash_attention.h"
#include "foresail/base/error.h"
#include "foresail/models/operators.h"
#include "mesh_place.h"
#include "number_format.h"
#include "op_context.h"
#include "parameters.h"

namespace foresail::runtime {

/// What the attention of every layer reads.
struct AttentionTables {
  /// [queries, keys], true where a query must not see the key. By step of a ring, else one.
  std::vector<at::Tensor> is_masked;
  /// The same for flash attention, by source of gathered keys too: the own first, then the rank
  /// before, and so on.
  std::vector<FlashMask> flash_masks;
  /// Which tokens the masks' queries and keys are; with dropout only.
  std::vector<AttentionPairs> pairs;
  at::Tensor positions;     ///< of the own tokens in their sequence, in the order of their rows
  at::Tensor cosine, sine;  ///< [own positions, head_size / 2]; rotary positions only
};
/// What the weight half of a backward pass runs, in order.
using DeferredWork = std::vector<std::function<void(OpContext&)>>;

/// The modules of a chunk outlive the autograd graphs made through them, and one op runs at a time.
struct StageScope {
  /// Where parameters, gradients, activations and tables are. The one place that says it: whatever
  /// has no tensor to go by asks here.
  at::Device device = at::kCPU;
  const models::Model* model = nullptr;
  const models::Split* split = nullptr;
  std::uint64_t seed = 1;
  std::int64_t global_batch_size = 1;
  int tp_rank = 0, cp_rank = 0;
  ExpertPlace experts;
  AttentionTables tables;
  DropoutElements channels;  ///< of hidden states; with dropout only
  DropoutNow drawing;        ///< of the pass under way
  OpContext* op = nullptr;   ///< set while a pass runs
  /// Set while the input half of a split backward pass runs: work on gradients of weights is put
  /// here, in its order, for the weight half. No GEMM runs twice.
  DeferredWork* deferred = nullptr;

  OpContext& context() const {
    FORESAIL_EXPECT(op != nullptr);
    return *op;
  }
  bool is_deferring() const { return deferred != nullptr; }
  /// Runs `work` at once, or in the weight half.
  void on_weights(std::function<void(OpContext&)> work) const {
    if (deferred == nullptr) {
      work(context());
    } else {
      deferred->push_back(std::move(work));
    }
  }
  bool has_sequence_shards() const { return split->sequence_parallel && split->tp > 1; }
  /// Positions of the rows of hidden states that this rank holds: those of its shard.
  at::Tensor shard_positions() const {
    return has_sequence_shards()
               ? tables.positions.chunk(split->tp).at(static_cast<std::size_t>(tp_rank))
               : tables.positions;
  }
  /// For hidden states of this rank.
  at::Tensor draw_hidden_dropped(const DropoutPlace& place) const {
    return draw_hidden(drawing, place, shard_positions(), split->microbatch_size, channels);
  }
};

/// Carries a pointer to a module through an autograd graph.
template <class Module>
class ModulePointer : public torch::CustomClassHolder {
 public:
  explicit ModulePointer(const Module* module) : module_(module) {}

  static void save(torch::autograd::AutogradContext* graph, const Module* module) {
    graph->saved_data["module"] =
        c10::IValue::make_capsule(c10::make_intrusive<ModulePointer>(module));
  }
  static const Module& load(const torch::autograd::AutogradContext* graph) {
    const auto capsule = graph->saved_data.at("module").toCapsule();
    return *static_cast<const ModulePointer*>(capsule.get())->module_;
  }

 private:
  const Module* module_;
};

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

}  // namespace foresail::runtime
