/// \file
/// The experts of a layer: router, exchange of tokens, grouped GEMMs, shared experts.
///
/// Forward (Megatron-Core's all-to-all dispatcher; Ts tokens of this rank, E experts, k of them per
/// token, R the tokens that the rank gets, from the pace-setting rank: ExpertShare):
///
/// | kernel               | what                                                                  |
/// |----------------------|-----------------------------------------------------------------------|
/// | router               | GEMM Ts x E x h                                                       |
/// | router.topk          | softmax in fp32 and choice: (e + 9) bytes per token and expert        |
/// | tp.router_counts     | and over cp: all-reduces of fp32 counts, samples x E; balance loss    |
/// | ep.counts            | all-gather of every rank's E counts, 8 bytes each; dropless alone     |
/// | permute              | reads Ts, writes k Ts rows of h                                       |
/// | ep.dispatch          | all-to-all over ep                                                    |
/// | etp.gather_experts   | all-gather over expert tp                                             |
/// | experts.sort         | rows by source rank -> rows by expert; if there are both to sort      |
/// | experts.fc1, .activation, .fc2 | grouped GEMMs: one batch per number of tokens               |
/// | experts.unsort       | and back                                                              |
/// | etp.scatter_experts  | reduce-scatter over expert tp                                         |
/// | ep.combine           | all-to-all over ep                                                    |
/// | unpermute            | weighted sum: reads k Ts, writes Ts rows of h                         |
///
/// Shared experts are an MLP cut over tp: shared_fc1, shared_activation, shared_fc2, shared.add,
/// and shared_gate; they stand behind unpermute, or (overlap.ep) fc1 beside ep.dispatch and fc2
/// beside ep.combine. The backward pass is the transpose: ep.combine_grad carries gradients out,
/// ep.dispatch_grad back. All exchanges are on the ep lane; the communicator of each is what stands
/// before the first point of its name (ep.counts over ep and expert tp together: etp_ep.counts).
///
/// In a hot layer the all-to-all is priced as if every rank had the most loaded rank's rows.
#pragma once

#include <vector>

#include "foresail/models/operators.h"
#include "pass_kernels.h"

namespace foresail::models {

/// How far a forward pass goes: UpToLastSaved leaves out what only makes the layer's output.
enum class ExpertExtent { Whole, UpToLastSaved };

/// From the second norm's output to the tensor that is added to the residual.
void experts_forward(PassKernels& pass, const Model& model, const Stack& stack,
                     const ExpertShare& experts, ExpertExtent extent);
/// With what a selective recomputation runs again: the activations of all experts in front of the
/// GEMMs that read them; or all of this table in front of everything (mlp).
void experts_backward(PassKernels& pass, const Model& model, const Split& split,
                      const ExpertShare& experts);

/// Kept from forward to backward; inputs and output gradients of the linear layers.
std::vector<SavedTensor> experts_saved(const Share& share, const ExpertShare& experts,
                                       const Split& split);
std::vector<SavedTensor> experts_retained(const Share& share, const ExpertShare& experts);

}  // namespace foresail::models
