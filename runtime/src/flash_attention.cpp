#include "flash_attention.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <limits>

#include "device_attention.h"
#include "foresail/base/error.h"
#include "number_format.h"

namespace foresail::runtime {
namespace {

constexpr double kLowest = std::numeric_limits<float>::lowest();
constexpr double kSmallest = std::numeric_limits<float>::min();

struct Tile {
  std::int64_t index = 0, first = 0, count = 0;
};

std::vector<Tile> tiles_of(std::int64_t positions) {
  std::vector<Tile> tiles;
  for (std::int64_t first = 0; first < positions; first += MaskTiles::kSide) {
    const auto index = static_cast<std::int64_t>(tiles.size());
    tiles.push_back({index, first, std::min(MaskTiles::kSide, positions - first)});
  }
  return tiles;
}

/// Rows of a tile in fp32, [samples * key heads, rows, head size]: the query heads that share a key
/// stand one behind the other.
at::Tensor rows_of(const at::Tensor& by_head, const Tile& tile, std::int64_t key_heads) {
  const std::int64_t shared = by_head.size(1) / key_heads;
  return widened(by_head.narrow(2, tile.first, tile.count))
      .reshape({by_head.size(0) * key_heads, shared * tile.count, by_head.size(3)});
}

/// Back, into the rows of `target`.
at::Tensor in_place_of(const at::Tensor& target, const Tile& tile) {
  return target.narrow(2, tile.first, tile.count);
}

/// The scores of one tile, hidden ones -infinity. `query` is scaled.
at::Tensor masked_scores(const FlashMask& mask, const at::Tensor& query, const Tile& queries,
                         const at::Tensor& key, const Tile& keys) {
  at::Tensor scores = at::bmm(query, key.transpose(1, 2));
  if (mask.tiles.at(queries.index, keys.index) == MaskTiles::Sight::All) return scores;
  const at::Tensor hidden =
      mask.is_masked.narrow(0, queries.first, queries.count).narrow(1, keys.first, keys.count);
  scores.view({scores.size(0), -1, queries.count, keys.count})
      .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return scores;
}

/// What dropout takes away of a tile, in the shape of its scores.
at::Tensor draw_tile(const FlashBlock& block, const Tile& queries, const Tile& keys,
                     const at::Tensor& scores) {
  return block.dropout->draw({queries.first, queries.count}, {keys.first, keys.count})
      .view_as(scores);
}

bool sees(const FlashBlock& block, const Tile& queries, const Tile& keys) {
  return block.mask->tiles.at(queries.index, keys.index) != MaskTiles::Sight::None;
}

/// Softmax of rows as far as their keys have been seen.
struct Running {
  at::Tensor maximum, sum, output;

  Running(at::IntArrayRef shape, const at::TensorOptions& options)
      : maximum(at::full({shape[0], shape[1], 1}, kLowest, options)),
        sum(at::zeros({shape[0], shape[1], 1}, options)),
        output(at::zeros(shape, options)) {}

  /// `dropped`: what values are not weighed by, though sums have it; or undefined.
  void add(at::Tensor scores, const at::Tensor& value, const at::Tensor& dropped) {
    const at::Tensor larger = at::maximum(maximum, scores.amax(-1, true));
    scores.sub_(larger).exp_();
    const at::Tensor shrinks = maximum.sub_(larger).exp_();
    sum.mul_(shrinks).add_(scores.sum(-1, true));
    if (dropped.defined()) drop(scores, dropped);
    output.mul_(shrinks).baddbmm_(scores, value);
    maximum = larger;
  }
};

}  // namespace

MaskTiles::MaskTiles(const at::Tensor& is_masked) {
  FORESAIL_EXPECT(is_masked.dim() == 2 && is_masked.device().is_cpu());
  const std::vector<Tile> keys = tiles_of(is_masked.size(1));
  key_tiles_ = static_cast<std::int64_t>(keys.size());
  for (const Tile& query : tiles_of(is_masked.size(0))) {
    for (const Tile& key : keys) {
      const at::Tensor part =
          is_masked.narrow(0, query.first, query.count).narrow(1, key.first, key.count);
      const bool hides_any = part.any().item<bool>();
      const bool hides_all = hides_any && part.all().item<bool>();
      sight_.push_back(hides_all ? Sight::None : hides_any ? Sight::Some : Sight::All);
    }
  }
}

FlashOutput flash_forward(const FlashBlock& block, at::ScalarType format) {
  RECORD_USER_SCOPE("foresail::attention");  // its products, for profilers
  if (has_device_attention(block) && format == block.query.scalar_type()) {
    return device_forward(block);
  }
  const std::int64_t samples = block.query.size(0), heads = block.query.size(1);
  const std::int64_t positions = block.query.size(2), key_heads = block.key.size(1);
  const std::int64_t width = block.value.size(3);
  const at::TensorOptions wide = block.query.options().dtype(at::kFloat);
  FlashOutput result;
  result.output =
      at::empty({positions, samples, heads, width}, wide.dtype(format)).permute({1, 2, 0, 3});
  result.log_sum = at::empty({samples, heads, positions, 1}, wide);
  for (const Tile& queries : tiles_of(positions)) {
    const at::Tensor query = rows_of(block.query, queries, key_heads) * block.scale;
    Running rows({query.size(0), query.size(1), width}, wide);
    for (const Tile& keys : tiles_of(block.key.size(2))) {
      if (!sees(block, queries, keys)) continue;
      const at::Tensor key = rows_of(block.key, keys, key_heads);
      const at::Tensor scores = masked_scores(*block.mask, query, queries, key, keys);
      at::Tensor dropped;
      if (block.dropout) dropped = draw_tile(block, queries, keys, scores);
      rows.add(scores, rows_of(block.value, keys, key_heads), dropped);
    }
    rows.output.div_(rows.sum.clamp_min(kSmallest));
    rows.maximum.add_(rows.sum.log_());  // -infinity where no key was seen
    in_place_of(result.output, queries)
        .copy_(rows.output.view({samples, heads, queries.count, width}));
    in_place_of(result.log_sum, queries)
        .copy_(rows.maximum.view({samples, heads, queries.count, 1}));
  }
  return result;
}

FlashOutput merge_outputs(std::vector<FlashOutput>& blocks) {
  FORESAIL_EXPECT(!blocks.empty());
  at::Tensor maximum = blocks.front().log_sum;
  for (const FlashOutput& block : blocks) maximum = at::maximum(maximum, block.log_sum);
  at::Tensor sum = at::zeros_like(maximum);
  for (FlashOutput& block : blocks) {
    block.log_sum = (block.log_sum - maximum).exp_();
    sum.add_(block.log_sum);
  }
  FlashOutput merged;
  for (FlashOutput& block : blocks) {
    block.output.mul_(block.log_sum.div_(sum));
    if (merged.output.defined()) {
      merged.output.add_(block.output);
    } else {
      merged.output = block.output;
    }
    block.output.reset();
  }
  merged.log_sum = sum.log_().add_(maximum);
  return merged;
}

FlashRows flash_rows(const at::Tensor& output_gradient, FlashOutput forward) {
  const at::Tensor products =
      (widened(output_gradient) * widened(forward.output)).sum(-1, /*keepdim=*/true);
  return {output_gradient, std::move(forward), products};
}

void add_flash_gradients(const FlashBlock& block, const FlashRows& rows,
                         const FlashGradients& gradients) {
  RECORD_USER_SCOPE("foresail::attention");
  if (!rows.forward.device_state.empty()) {
    add_device_gradients(block, rows, gradients);
    return;
  }
  const std::int64_t samples = block.query.size(0), key_heads = block.key.size(1);
  const auto add = [&](const at::Tensor& target, const Tile& tile, const at::Tensor& part) {
    in_place_of(target, tile)
        .add_(part.view({samples, target.size(1), tile.count, target.size(3)}));
  };
  for (const Tile& queries : tiles_of(block.query.size(2))) {
    const at::Tensor query = rows_of(block.query, queries, key_heads) * block.scale;
    const at::Tensor gradient = rows_of(rows.output_gradient, queries, key_heads);
    const at::Tensor log_sum = rows_of(rows.forward.log_sum, queries, key_heads);
    const at::Tensor products = rows_of(rows.products, queries, key_heads);
    at::Tensor query_gradient = at::zeros_like(query);
    for (const Tile& keys : tiles_of(block.key.size(2))) {
      if (!sees(block, queries, keys)) continue;
      const at::Tensor key = rows_of(block.key, keys, key_heads);
      const at::Tensor value = rows_of(block.value, keys, key_heads);
      at::Tensor probabilities = masked_scores(*block.mask, query, queries, key, keys);
      probabilities.sub_(log_sum).exp_();
      at::Tensor weights = probabilities;
      at::Tensor scores = at::bmm(gradient, value.transpose(1, 2));
      if (block.dropout) {
        const at::Tensor dropped = draw_tile(block, queries, keys, scores);
        weights = without_dropped(probabilities, dropped);
        drop(scores, dropped);
      }
      add(gradients.value, keys, at::bmm(weights.transpose(1, 2), gradient));
      scores.sub_(products).mul_(probabilities);
      query_gradient.baddbmm_(scores, key);
      add(gradients.key, keys, at::bmm(scores.transpose(1, 2), query));
    }
    add(gradients.query, queries, query_gradient.mul_(block.scale));
  }
}

}  // namespace foresail::runtime
