// Attention in tiles against the square of scores.
#include "flash_attention.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace foresail::runtime {
namespace {

struct Case {
  std::int64_t samples = 2, heads = 4, key_heads = 4, queries = 150, keys = 150, size = 16;
  std::int64_t first_query = 0;  ///< position of the first query; that of the first key is 0
  std::int64_t window = 0;       ///< 0: none
};

at::Tensor mask_of(const Case& of) {
  const at::Tensor query = at::arange(of.first_query, of.first_query + of.queries);
  const at::Tensor distance = query.unsqueeze(1) - at::arange(of.keys).unsqueeze(0);
  const at::Tensor is_later = distance.lt(0);
  return of.window == 0 ? is_later : is_later.logical_or(distance.ge(of.window));
}

struct Operands {
  at::Tensor query, key, value, gradient;
};

Operands operands_of(const Case& of) {
  at::manual_seed(7);
  return {at::randn({of.samples, of.heads, of.queries, of.size}),
          at::randn({of.samples, of.key_heads, of.keys, of.size}),
          at::randn({of.samples, of.key_heads, of.keys, of.size}),
          at::randn({of.samples, of.heads, of.queries, of.size})};
}

/// By the whole square of scores and autograd, in double precision.
Operands truth_of(const Case& of, const Operands& operands, at::Tensor& output) {
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.to(at::kDouble).set_requires_grad(true);
  };
  const at::Tensor query = leaf(operands.query), key = leaf(operands.key),
                   value = leaf(operands.value);
  const std::int64_t repeats = of.heads / of.key_heads;
  const at::Tensor scores =
      at::matmul(query, key.repeat_interleave(repeats, 1).transpose(2, 3)) * 0.25;
  const at::Tensor hidden =
      scores.masked_fill(mask_of(of), -std::numeric_limits<double>::infinity());
  output = at::matmul(at::softmax(hidden, -1), value.repeat_interleave(repeats, 1));
  const auto gradients =
      torch::autograd::grad({output}, {query, key, value}, {operands.gradient.to(at::kDouble)});
  return {gradients[0], gradients[1], gradients[2], {}};
}

void expect_near(const at::Tensor& made, const at::Tensor& truth, const char* what) {
  const double difference = (made.to(at::kDouble) - truth).abs().max().item<double>();
  EXPECT_LT(difference, 2e-5) << what;
}

void expect_truth(const Case& of) {
  const Operands operands = operands_of(of);
  at::Tensor output;
  const Operands truth = truth_of(of, operands, output);
  const at::Tensor is_masked = mask_of(of);
  const FlashMask mask{is_masked, MaskTiles(is_masked), std::nullopt};
  const FlashBlock block{operands.query, operands.key, operands.value, &mask, 0.25};
  const FlashOutput made = flash_forward(block, at::kFloat);
  expect_near(made.output, output, "output");
  // Gradients are added to what is there.
  const FlashGradients gradients{at::ones_like(operands.query), at::ones_like(operands.key),
                                 at::ones_like(operands.value)};
  add_flash_gradients(block, flash_rows(operands.gradient, made), gradients);
  expect_near(gradients.query - 1, truth.query, "gradient of queries");
  expect_near(gradients.key - 1, truth.key, "gradient of keys");
  expect_near(gradients.value - 1, truth.value, "gradient of values");
}

TEST(FlashAttention, IsThatOfTheSquareOfScores) {
  expect_truth({});
  expect_truth({.heads = 6, .key_heads = 2});
  expect_truth({.heads = 4, .key_heads = 1, .window = 40});
  expect_truth({.samples = 1, .queries = 70, .keys = 200, .first_query = 130});
  expect_truth({.queries = 64, .keys = 64, .window = 1});
  expect_truth({.queries = 1, .keys = 1});
}

// Keys in three blocks that came apart, as in a ring: one is seen by nobody in part.
TEST(FlashAttention, BlocksMergeToTheWholeAndTheirGradientsAddUp) {
  const Case whole{.key_heads = 2, .queries = 100, .keys = 240, .first_query = 90};
  const Operands operands = operands_of(whole);
  at::Tensor output;
  const Operands truth = truth_of(whole, operands, output);
  const at::Tensor is_masked = mask_of(whole);
  std::vector<FlashMask> masks;
  std::vector<FlashBlock> blocks;
  masks.reserve(3);
  for (const std::int64_t first : {0, 80, 160}) {
    const at::Tensor part = is_masked.narrow(1, first, 80);
    masks.push_back({part, MaskTiles(part), std::nullopt});
    blocks.push_back({operands.query, operands.key.narrow(2, first, 80),
                      operands.value.narrow(2, first, 80), &masks.back(), 0.25});
  }
  ASSERT_TRUE(masks[2].is_masked[0].all().item<bool>());  // the first query sees nothing of it
  std::vector<FlashOutput> parts;
  for (const FlashBlock& block : blocks) parts.push_back(flash_forward(block, at::kFloat));
  EXPECT_EQ(parts[2].output.select(2, 0).abs().max().item<float>(), 0);
  const FlashOutput merged = merge_outputs(parts);
  expect_near(merged.output, output, "output");
  const FlashRows rows = flash_rows(operands.gradient, merged);
  const at::Tensor query = at::zeros_like(operands.query), key = at::zeros_like(operands.key),
                   value = at::zeros_like(operands.value);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const auto first = static_cast<std::int64_t>(80 * b);
    add_flash_gradients(blocks[b], rows,
                        {query, key.narrow(2, first, 80), value.narrow(2, first, 80)});
  }
  expect_near(query, truth.query, "gradient of queries");
  expect_near(key, truth.key, "gradient of keys");
  expect_near(value, truth.value, "gradient of values");
}

thread_local int products = 0;

std::unique_ptr<at::ObserverContext> count_products(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name == "aten::bmm" || name == "aten::baddbmm_") ++products;
  return nullptr;
}

// Of a sequence of 4 tiles 10 of 16 pairs of tiles are seen, with a window of one tile 7.
TEST(FlashAttention, HiddenTilesAreNotComputed) {
  const std::int64_t positions = 4 * MaskTiles::kSide;
  for (const auto& [window, seen] : {std::pair<std::int64_t, int>{0, 10}, {MaskTiles::kSide, 7}}) {
    const Case of{.samples = 1,
                  .heads = 1,
                  .key_heads = 1,
                  .queries = positions,
                  .keys = positions,
                  .window = window};
    const Operands operands = operands_of(of);
    const at::Tensor is_masked = mask_of(of);
    const FlashMask mask{is_masked, MaskTiles(is_masked), std::nullopt};
    const FlashBlock block{operands.query, operands.key, operands.value, &mask, 0.25};
    const at::RecordFunctionGuard enabled;
    const auto callback = at::addThreadLocalCallback(at::RecordFunctionCallback(count_products));
    products = 0;
    const FlashOutput made = flash_forward(block, at::kFloat);
    EXPECT_EQ(products, 2 * seen);
    products = 0;
    add_flash_gradients(block, flash_rows(operands.gradient, made),
                        {at::zeros_like(operands.query), at::zeros_like(operands.key),
                         at::zeros_like(operands.value)});
    EXPECT_EQ(products, 5 * seen);
    at::removeCallback(callback);
  }
}

}  // namespace
}  // namespace foresail::runtime
