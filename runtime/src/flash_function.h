/// \file
/// Attention of a layer as one fused kernel (`stack.flash_attention`), over a whole sequence or one
/// that is cut over the context-parallel group.
#pragma once

#include "core_attention.h"

namespace foresail::runtime {

/// Kernels, by models::ContextParallel (forward; backward):
/// - none: attention; attention.backward.
/// - AllGather: cp.gather_kv beside attention over the own keys, which goes on with the others';
///   cp.regather_kv beside attention.backward, cp.scatter_kv.
/// - Ring: attention.i beside cp.exchange_kv.i, attention.merge; attention.backward.i beside
///   cp.reexchange_kv.i, cp.exchange_grad_kv.i.
/// - AllToAll: cp.scatter_heads, attention, cp.gather_heads; cp.scatter_grad_heads,
///   attention.backward, cp.gather_grad_heads.
/// Around them rope and rope.backward, where positions are rotary.
at::Tensor flash_attend(const CoreAttention& layer, const at::Tensor& qkv);

}  // namespace foresail::runtime
