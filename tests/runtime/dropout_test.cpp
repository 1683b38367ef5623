// Which elements dropout takes away: the generator, the two ways to make a mask, and what masks
// have to do with each other.
#include "dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foresail::runtime {
namespace {

using Numbers = std::array<std::uint32_t, 4>;

/// Random123's kat_vectors, "philox4x32 10".
TEST(Philox, AnswersAreThosePublished) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (Numbers{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Numbers{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Numbers{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, FlagsAreThoseOfNumbersBelowTheThreshold) {
  const PhiloxKey key{7, 0xfedcba98};
  for (const std::uint32_t threshold : {0u, 429496729u, 0x80000000u, 0xffffffffu}) {
    for (const std::size_t count : std::vector<std::size_t>{1, 3, 4, 31, 32, 33, 200}) {
      std::vector<std::uint8_t> flags(count, 9);
      philox_below({41, 5, 6, 0x10003}, key, threshold, flags);
      for (std::size_t i = 0; i < count; ++i) {
        const auto block = static_cast<std::uint32_t>(41 + i / 4);
        const bool is_below = philox({block, 5, 6, 0x10003}, key)[i % 4] < threshold;
        EXPECT_EQ(flags[i], is_below ? 1 : 0) << i;
      }
    }
  }
}

at::Tensor longs(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

std::vector<std::int64_t> counted(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Two runs, as a rank of a context-parallel group has them.
std::vector<std::int64_t> two_runs(std::int64_t first, std::int64_t second, std::int64_t count) {
  std::vector<std::int64_t> values = counted(first, count);
  const std::vector<std::int64_t> more = counted(second, count);
  values.insert(values.end(), more.begin(), more.end());
  return values;
}

DropoutRows some_rows(bool is_causal) {
  return {.position = longs({0, 3, 17, 40}),
          .sample = longs({2, 3}).view({2, 1, 1}),
          .place = longs({0x54000, 0x54001, 0x54007}).view({3, 1}),
          .is_causal = is_causal};
}

const PhiloxKey kKey{123, 456};

TEST(Dropout, OperatorsOfADeviceMakeTheMaskThatTheHostMakes) {
  for (const auto& values :
       {counted(0, 64), counted(0, 61), counted(5, 9), two_runs(8, 48, 8), two_runs(2, 14, 2)}) {
    const DropoutElements elements(longs(values), at::kCPU);
    for (const bool is_causal : {false, true}) {
      const at::Tensor host = draw_dropped(kKey, some_rows(is_causal), elements);
      EXPECT_EQ(host.sizes(), (at::IntArrayRef{2, 3, 4, static_cast<long>(values.size())}));
      EXPECT_TRUE(host.equal(draw_dropped_by_operators(kKey, some_rows(is_causal), elements)));
    }
  }
}

TEST(Dropout, AMaskIsMadeOfTheNumbersAtItsCounters) {
  const DropoutElements channels(longs(counted(0, 10)), at::kCPU);
  const DropoutNow now{.key = kKey, .first_sample = 6};
  const at::Tensor mask = draw_hidden(now, {DropoutSite::Mlp, 5}, longs({30, 31, 90}), 2, channels);
  EXPECT_EQ(mask.sizes(), (at::IntArrayRef{6, 10}));
  const std::uint32_t place = 5 * 65536 + 3 * 16384;
  for (std::int64_t row = 0; row < 6; ++row) {
    const auto position = static_cast<std::uint32_t>(row < 2 ? 30 : row < 4 ? 31 : 90);
    const auto sample = static_cast<std::uint32_t>(6 + row % 2);
    for (std::int64_t channel = 0; channel < 10; ++channel) {
      const auto block = static_cast<std::uint32_t>(channel / 4);
      const Numbers numbers = philox({block, position, sample, place}, kKey);
      EXPECT_EQ(mask[row][channel].item<bool>(),
                numbers.at(static_cast<std::size_t>(channel % 4)) < 429496729u);
    }
  }
}

/// Tiles, the heads of one rank of two, the keys of one block of a ring: parts of one mask.
TEST(Dropout, PartsOfAttentionsMaskAreWhatTheWholeHasThere) {
  const auto pairs_of = [](const std::vector<std::int64_t>& queries,
                           const std::vector<std::int64_t>& keys) {
    return AttentionPairs{longs(queries), {longs(keys), at::kCPU}};
  };
  const AttentionPairs all = pairs_of(counted(0, 64), counted(0, 64));
  const DropoutNow now{.key = kKey, .first_sample = 4};
  const AttentionDropout whole{now, &all, 3, /*samples=*/2, /*first_head=*/0, /*heads=*/4};
  const at::Tensor mask = whole.draw();
  EXPECT_EQ(mask.sizes(), (at::IntArrayRef{2, 4, 64, 64}));
  EXPECT_TRUE(
      whole.draw({16, 16}, {32, 32}).equal(mask.narrow(2, 16, 16).narrow(3, 32, 32).contiguous()));
  const AttentionDropout upper{now, &all, 3, 2, 2, 2};
  EXPECT_TRUE(upper.draw().equal(mask.narrow(1, 2, 2).contiguous()));
  const std::vector<std::int64_t> queries = two_runs(10, 44, 10), keys = two_runs(6, 30, 6);
  const AttentionPairs some = pairs_of(queries, keys);
  const AttentionDropout block{now, &some, 3, 2, 0, 4};
  EXPECT_TRUE(block.draw().equal(
      mask.index_select(2, longs(queries)).index_select(3, longs(keys)).contiguous()));
}

/// Hidden states of a step; 262144 elements.
at::Tensor mask_of(int step, const DropoutPlace& place, std::int64_t first_sample = 0) {
  static const DropoutElements channels(at::arange(512, at::kLong), at::kCPU);
  return draw_hidden({.key = dropout_key(11, step), .first_sample = first_sample}, place,
                     at::arange(128, at::kLong), 4, channels);
}

/// Within five deviations of a binomial.
void expect_share(const at::Tensor& flags, double share) {
  const auto count = static_cast<double>(flags.numel());
  const double found = flags.to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(found, share, 5 * std::sqrt(share * (1 - share) / count));
}

TEST(Dropout, TakesATenthOfEveryRowAndColumnAway) {
  const at::Tensor mask = mask_of(0, {DropoutSite::Projection, 0});
  expect_share(mask, 0.1);
  for (std::int64_t i = 0; i < 512; ++i) {
    expect_share(mask.select(0, i), 0.1);
    expect_share(mask.select(1, i), 0.1);
  }
}

TEST(Dropout, MasksOfStepsLayersSitesAndSamplesHaveNothingInCommon) {
  const std::vector<at::Tensor> masks{
      mask_of(0, {DropoutSite::Projection, 0}), mask_of(1, {DropoutSite::Projection, 0}),
      mask_of(0, {DropoutSite::Projection, 1}), mask_of(0, {DropoutSite::Mlp, 0}),
      mask_of(0, {DropoutSite::Embedding, 0}),  mask_of(0, {DropoutSite::Projection, 0}, 4)};
  for (std::size_t i = 0; i < masks.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) expect_share(masks[i].logical_and(masks[j]), 0.01);
  }
  EXPECT_NE(dropout_key(11, 0), dropout_key(12, 0));
}

TEST(Dropout, NeighboursInAMaskHaveNothingInCommon) {
  const at::Tensor mask = mask_of(3, {DropoutSite::Mlp, 2});
  expect_share(mask.slice(1, 0, 511).logical_and(mask.slice(1, 1, 512)), 0.01);
  expect_share(mask.slice(0, 0, 511).logical_and(mask.slice(0, 1, 512)), 0.01);
}

TEST(Dropout, WhatStaysGrowsByAsMuchAsGoes) {
  const at::Tensor values = longs({1, 2, 3}).to(at::kFloat);
  const at::Tensor dropped = at::tensor({0, 1, 0}, at::kInt).to(at::kBool);
  const at::Tensor expected = longs({10, 0, 30}).to(at::kFloat).div(9);
  EXPECT_TRUE(without_dropped(values, dropped).allclose(expected, 1e-6));
  at::Tensor in_place = values.clone();
  drop(in_place, dropped);
  EXPECT_TRUE(in_place.allclose(expected, 1e-6));
}

}  // namespace
}  // namespace foresail::runtime
