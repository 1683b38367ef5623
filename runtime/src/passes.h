/// \file
/// Forward and backward passes of one rank's chunks, and the tensors that wait between them.
#pragma once

#include <map>

#include "foresail/runtime/sample_source.h"
#include "mesh_place.h"
#include "op_context.h"
#include "shelf.h"
#include "stage.h"

namespace foresail::runtime {

class Passes {
 public:
  /// All must outlive it. `data` may be null where no batch is loaded.
  struct Sources {
    Device* device = nullptr;
    BatchSource* data = nullptr;
  };
  Passes(const Job& job, Stage& stage, const MeshPlace& place, const Sources& sources);

  /// The passes that follow are of `step`.
  void begin_step(int step);
  /// Tokens and targets of all microbatches of `step`.
  void load_batch(int step);
  /// How long load_batch has waited for its data since the last call.
  std::int64_t take_data_wait_ns();
  /// The same from outside, by microbatch.
  void use_batch(std::vector<at::Tensor> tokens, std::vector<at::Tensor> targets);
  void forward(PassKey key, OpContext& context);
  void backward(PassKey key, OpContext& context);
  /// The halves of `backward`: gradients of inputs, and later those of weights.
  void backward_input(PassKey key, OpContext& context);
  void backward_weight(PassKey key, OpContext& context);

  /// What a Send takes, and what a Recv fills and hands over.
  at::Tensor outgoing(program::Payload payload, PassKey key);
  at::Tensor message_buffer(program::Payload payload) const;
  void deliver(program::Payload payload, PassKey key, at::Tensor message);

  /// Sum over this rank's microbatches of mean loss / microbatches since the last call; only ranks
  /// of the last stage have any. The host waits for the device.
  double take_loss();
  /// Requires that a step has left nothing behind.
  void finish_step();

 private:
  /// Place of the microbatch's first sample in the batch of the step.
  std::int64_t first_sample(int microbatch) const;
  bool is_gathered(program::Payload payload) const;
  at::Tensor whole_message(program::Payload payload, OpContext& context,
                           const at::Tensor& message) const;
  at::Tensor as_message(program::Payload payload, const at::Tensor& whole) const;
  void propagate(PassKey key, OpContext& context);
  void hand_on(program::Payload payload, PassKey key, const at::Tensor& tensor);

  const Job& job_;
  Stage& stage_;
  MeshPlace place_;
  Sources from_;
  std::vector<at::Tensor> tokens_, targets_;  // by microbatch
  Shelf inputs_, roots_, leaves_, output_grads_;
  Shelf sent_activations_, sent_gradients_;
  std::map<PassKey, DeferredWork> deferred_;  // of the compute lane alone
  program::GlobalStages stages_;
  std::vector<at::Tensor> losses_;  // of this step's microbatches, wherever they are
  std::int64_t data_wait_ns_ = 0;   // of the host lane alone while a step runs
};

}  // namespace foresail::runtime
