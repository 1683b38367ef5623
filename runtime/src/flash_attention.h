/// \file
/// Attention in tiles of queries and keys, with the softmax of a row built up tile by tile, so that
/// no square of scores is ever held (Dao 2022, FlashAttention; Dao 2023, FlashAttention-2). Tiles
/// that the mask hides are left out. On CUDA devices libtorch's fused kernel where it has one for
/// the case; otherwise, as with dropout, whose masks it could not draw, tiles of torch's products.
///
/// Shapes: queries and outputs [samples, heads, positions, head size] in any strides, keys and
/// values the same with as many heads as there are keys; `heads` is a multiple of it (grouped-query
/// attention).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dropout.h"
#include "foresail/models/operators.h"

namespace foresail::runtime {

/// What a mask leaves of each tile of kSide queries and kSide keys.
class MaskTiles {
 public:
  static constexpr std::int64_t kSide = models::kAttentionTile;
  enum class Sight : std::uint8_t { None, Some, All };

  /// `is_masked` [queries, keys], true where a query must not see the key; on the host.
  explicit MaskTiles(const at::Tensor& is_masked);
  Sight at(std::int64_t query_tile, std::int64_t key_tile) const {
    return sight_[static_cast<std::size_t>(query_tile * key_tiles_ + key_tile)];
  }

 private:
  std::int64_t key_tiles_ = 0;
  std::vector<Sight> sight_;
};

/// One mask, for as many queries and keys as a block has.
struct FlashMask {
  at::Tensor is_masked;  ///< on the device
  MaskTiles tiles;
  /// If it is the plain causal one: how many keys a query sees at most, 0 for no limit.
  std::optional<std::int64_t> window;
};

struct FlashBlock {
  at::Tensor query, key, value;
  const FlashMask* mask = nullptr;
  double scale = 1;  ///< of scores
  /// Tiles of what it takes away are drawn where they are needed, in both passes.
  std::optional<AttentionDropout> dropout = {};
};

struct FlashOutput {
  at::Tensor output;  ///< fp32 or the queries' format; rows that see no key are 0
  at::Tensor
      log_sum;  ///< fp32 [samples, heads, positions, 1]: of the exponentials of a row's scores
  /// What libtorch's kernel wants to see again.
  std::vector<at::Tensor> device_state;
};

/// `format`: of the output. Its memory is that of [positions, samples, heads, head size].
FlashOutput flash_forward(const FlashBlock& block, at::ScalarType format);

/// The attention over the keys of all blocks, in the format of the first; consumes them.
FlashOutput merge_outputs(std::vector<FlashOutput>& blocks);

/// What the backward pass knows of the rows of queries, whatever blocks their keys came in.
struct FlashRows {
  at::Tensor output_gradient;
  FlashOutput forward;
  at::Tensor products;  ///< fp32 [samples, heads, positions, 1]: sums of output * gradient
};
FlashRows flash_rows(const at::Tensor& output_gradient, FlashOutput forward);

/// fp32, of the shapes of query, key and value; gradients are added.
struct FlashGradients {
  at::Tensor query, key, value;
};
void add_flash_gradients(const FlashBlock& block, const FlashRows& rows,
                         const FlashGradients& gradients);

}  // namespace foresail::runtime
