/// \file
/// The only ways by which the host reads and writes the values of a rank's tensors.
#pragma once

#include <ATen/ATen.h>

namespace foresail::runtime {

/// The values of `tensor` in host memory, contiguous: itself on a CPU. On a device the calling
/// thread waits for what its lane has queued.
inline at::Tensor to_host(const at::Tensor& tensor) {
  return tensor.cpu().contiguous();
}

/// Runs `write` on the values of `target` in host memory; what it leaves there become the values of
/// `target`.
template <class Write>
void edit_on_host(const at::Tensor& target, const Write& write) {
  at::Tensor values = to_host(target);
  write(values);
  if (!values.is_same(target)) at::Tensor(target).copy_(values);
}

}  // namespace foresail::runtime
