#include "foresail/models/stack.h"

#include <fmt/format.h>

namespace foresail::models {
namespace {

bool flag(const Yaml& node, std::string_view key, bool otherwise) {
  const auto value = node.find(key);
  return value ? value->as_bool() : otherwise;
}

}  // namespace

Stack read_stack(const Yaml& node) {
  Stack stack;
  node.allow_only({"flash_attention", "padded_heads", "fused_kernels", "fused_cross_entropy",
                   "async_tensor_parallel", "scatter_gather", "scatter_gather_gradients",
                   "early_stop_recompute", "fused_softmax_multiple", "host_per_kernel"});
  stack.flash_attention = flag(node, "flash_attention", stack.flash_attention);
  stack.padded_heads = flag(node, "padded_heads", stack.padded_heads);
  stack.fused_kernels = flag(node, "fused_kernels", stack.fused_kernels);
  stack.fused_cross_entropy = flag(node, "fused_cross_entropy", stack.fused_cross_entropy);
  stack.async_tensor_parallel = flag(node, "async_tensor_parallel", stack.async_tensor_parallel);
  stack.scatter_gather = flag(node, "scatter_gather", stack.scatter_gather);
  stack.scatter_gather_gradients =
      flag(node, "scatter_gather_gradients", stack.scatter_gather_gradients);
  stack.early_stop_recompute = flag(node, "early_stop_recompute", stack.early_stop_recompute);
  if (const auto multiple = node.find("fused_softmax_multiple")) {
    stack.fused_softmax_multiple = static_cast<int>(multiple->as_integer(1, 1024));
  }
  if (const auto cost = node.find("host_per_kernel")) {
    stack.host_per_kernel = cost->as_duration();
    if (stack.host_per_kernel > std::chrono::seconds(1)) cost->fail("must not exceed 1 s");
  }
  return stack;
}

Document to_document(const Stack& stack) {
  Document made = {{"flash_attention", stack.flash_attention},
                   {"fused_kernels", stack.fused_kernels},
                   {"fused_cross_entropy", stack.fused_cross_entropy},
                   {"async_tensor_parallel", stack.async_tensor_parallel},
                   {"scatter_gather", stack.scatter_gather},
                   {"scatter_gather_gradients", stack.scatter_gather_gradients},
                   {"early_stop_recompute", stack.early_stop_recompute},
                   {"fused_softmax_multiple", stack.fused_softmax_multiple},
                   {"host_per_kernel", fmt::format("{} ps", stack.host_per_kernel.count())}};
  // A younger key stands only where it says something, so that digests of older plans hold.
  if (stack.padded_heads) made["padded_heads"] = true;
  return made;
}

}  // namespace foresail::models
