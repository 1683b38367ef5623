/// \file
/// Moves memory from tensor to tensor without copying, under all views of both: how a parameter
/// whose bucket is sharded comes and goes (as FSDP does) while modules keep their views of it.
#pragma once

#include <ATen/ATen.h>

namespace foresail::runtime {

/// The memory of `tensor`, which is whole and contiguous, as a tensor of its own. `tensor` and its
/// views keep their shapes and have no memory until it is given back.
at::Tensor take_storage(at::Tensor& tensor);

/// Gives the memory of `from` to `tensor`, which has none, and to its views. Sizes must be equal.
void give_storage(at::Tensor& tensor, at::Tensor from);

bool has_storage(const at::Tensor& tensor);

}  // namespace foresail::runtime
