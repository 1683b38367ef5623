#include "device_attention.h"

#include <torch/version.h>

#include "foresail/base/error.h"

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
#define FORESAIL_HAS_DEVICE_ATTENTION 1
#endif

namespace foresail::runtime {

#ifdef FORESAIL_HAS_DEVICE_ATTENTION

namespace {

constexpr std::int64_t kHeadSizeMax = 256;

/// [samples, heads, positions, head size] <-> [samples, positions, heads, head size].
at::Tensor swapped(const at::Tensor& tensor) {
  return tensor.transpose(1, 2);
}

/// Keys before the query's own that it sees; none: no limit.
std::optional<std::int64_t> keys_before(const FlashBlock& block) {
  const std::int64_t window = block.mask->window.value();
  return window > 0 ? std::optional(window - 1) : std::nullopt;
}

std::optional<std::int64_t> keys_behind(const FlashBlock& block) {
  return block.mask->window.value() > 0 ? std::optional<std::int64_t>(0) : std::nullopt;
}

}  // namespace

bool has_device_attention(const FlashBlock& block) {
  return !block.dropout && block.query.is_cuda() && block.query.scalar_type() == at::kBFloat16 &&
         block.mask->window.has_value() && block.query.size(3) == block.value.size(3) &&
         block.query.size(3) % 8 == 0 && block.query.size(3) <= kHeadSizeMax;
}

FlashOutput device_forward(const FlashBlock& block) {
  const auto [output, log_sum, generator, unused, mask] = at::_flash_attention_forward(
      swapped(block.query), swapped(block.key), swapped(block.value), std::nullopt, std::nullopt,
      block.query.size(2), block.key.size(2), 0.0, /*is_causal=*/true, /*return_debug_mask=*/false,
      block.scale, keys_before(block), keys_behind(block));
  (void)mask;
  FlashOutput result;
  result.output = swapped(output);
  result.log_sum = log_sum.unsqueeze(-1);
  result.device_state = {generator, unused};
  return result;
}

void add_device_gradients(const FlashBlock& block, const FlashRows& rows,
                          const FlashGradients& gradients) {
  FORESAIL_EXPECT(rows.forward.device_state.size() == 2);
  const auto [query, key, value] = at::_flash_attention_backward(
      swapped(rows.output_gradient), swapped(block.query), swapped(block.key), swapped(block.value),
      swapped(rows.forward.output), rows.forward.log_sum.squeeze(-1), {}, {}, block.query.size(2),
      block.key.size(2), 0.0, /*is_causal=*/true, rows.forward.device_state[0],
      rows.forward.device_state[1], block.scale, keys_before(block), keys_behind(block));
  at::Tensor(gradients.query).add_(swapped(query));
  at::Tensor(gradients.key).add_(swapped(key));
  at::Tensor(gradients.value).add_(swapped(value));
}

#else

bool has_device_attention(const FlashBlock&) {
  return false;
}

FlashOutput device_forward(const FlashBlock&) {
  contract_failed("libtorch has a fused attention", __FILE__, __LINE__);
}

void add_device_gradients(const FlashBlock&, const FlashRows&, const FlashGradients&) {
  contract_failed("libtorch has a fused attention", __FILE__, __LINE__);
}

#endif

}  // namespace foresail::runtime
