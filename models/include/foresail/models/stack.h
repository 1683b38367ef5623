/// \file
/// What the training software does, apart from the layout: switches and one host constant, never a
/// factor per source.
#pragma once

#include "foresail/base/document.h"
#include "foresail/base/units.h"
#include "foresail/base/yaml.h"

namespace foresail::models {

struct Stack {
  /// Core attention as one kernel that never stores the score matrix and skips the causal half.
  bool flash_attention = true;
  /// Fused attention works on heads as if their size were the next power of two: FlashAttention 1
  /// has kernels for 32, 64 and 128 (csrc/flash_attn/src/fmha_fwd_hdim*.cu), FlashAttention 2 one
  /// for every multiple of 32.
  bool padded_heads = false;
  /// bias + GeLU, bias + dropout + add, and scale + mask + softmax as single kernels.
  bool fused_kernels = true;
  /// The fused softmax takes only multiples of so many (sample, head) pairs; others are cast to
  /// fp32, scaled, masked, normalised and cast back one by one (Megatron-LM: 4, see
  /// is_kernel_available of megatron/model/fused_softmax.py). Without flash attention; at least 1.
  int fused_softmax_multiple = 1;
  /// The loss reads and writes the logits in three passes (14 bytes per 16-bit logit forward, 10
  /// backward), not one by one as Megatron-LM's operators do (38 and 14: cast, maximum, subtract,
  /// exponential, sum, divide; scale, cast).
  bool fused_cross_entropy = true;
  /// Backward: the tensor-parallel collective of an input gradient runs under the weight-gradient
  /// GEMM, and the re-gather under the input-gradient GEMM (Megatron-LM since 2022).
  bool async_tensor_parallel = true;
  /// Without sequence parallelism: stages exchange 1/tp of the tensor and gather it over NVLink
  /// (SC'21 section 4.1).
  bool scatter_gather = true;
  /// With scatter_gather: gradients travel so too. DeepSpeed's pipeline engine of 2022 partitions
  /// activations alone (deepspeed/runtime/pipe/engine.py: is_grad_partitioned = False).
  bool scatter_gather_gradients = true;
  /// Recomputation stops before the last GEMM of a block (PyTorch's non-reentrant checkpoint).
  bool early_stop_recompute = false;
  /// Time the host needs to launch one kernel; a layer cannot run faster than its launches.
  Duration host_per_kernel{};

  /// Whether messages between stages are cut into 1/tp where they are not sharded anyway.
  bool shards_messages(bool are_gradients) const {
    return scatter_gather && (!are_gradients || scatter_gather_gradients);
  }

  friend bool operator==(const Stack&, const Stack&) = default;
};

/// Reads the scenario's `stack` mapping; absent keys keep the defaults above.
Stack read_stack(const Yaml& node);
Document to_document(const Stack& stack);

}  // namespace foresail::models
