/// \file
/// libtorch's fused attention of CUDA devices, where it has one: 16 bits, the plain causal mask
/// with or without a window, heads of at most 256 features, libtorch from 2.8. Nothing of it can
/// run without such a device; `ctest -L gpu` holds it against the tiles.
#pragma once

#include "flash_attention.h"

namespace foresail::runtime {

bool has_device_attention(const FlashBlock& block);
/// The output in the format of the queries.
FlashOutput device_forward(const FlashBlock& block);
void add_device_gradients(const FlashBlock& block, const FlashRows& rows,
                          const FlashGradients& gradients);

}  // namespace foresail::runtime
