#include "foresail/program/axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::program {
namespace {

using Groups = std::vector<std::vector<std::uint32_t>>;

Groups numbers(const std::vector<std::vector<RankId>>& groups) {
  Groups all;
  for (const auto& group : groups) {
    auto& own = all.emplace_back();
    for (const RankId rank : group) own.push_back(rank.value);
  }
  return all;
}

/// tp 2, dp 2, pp 4: the example of Megatron-LM's initialize_model_parallel.
RankGrid example(std::string_view order) {
  return {{2, 1, 1, 2, 4}, parse_rank_order(order)};
}

TEST(RankGrid, HasMegatronsGroupsInItsDefaultOrder) {
  const RankGrid grid = example("tp-cp-ep-dp-pp");
  EXPECT_EQ(grid.world_size(), 16);
  EXPECT_EQ(numbers(grid.groups({Axis::Tp})),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(numbers(grid.groups({Axis::Dp})),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(numbers(grid.groups({Axis::Pp})),
            (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(numbers(grid.groups({Axis::Tp, Axis::Pp})),
            (Groups{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}}));
}

TEST(RankGrid, HasPipelinesInsideReplicasWhenPpComesBeforeDp) {
  const RankGrid grid = example("tp-cp-ep-pp-dp");
  EXPECT_EQ(numbers(grid.groups({Axis::Pp})),
            (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  EXPECT_EQ(numbers(grid.groups({Axis::Dp})),
            (Groups{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}));
}

TEST(RankGrid, NumbersRanksInnermostFirst) {
  // rank = tp + 2 (dp + 2 pp), so tp 1, dp 0, pp 3 is 1 + 2 (0 + 6) = 13.
  const RankGrid grid = example("tp-cp-ep-dp-pp");
  EXPECT_EQ(grid.rank({1, 0, 0, 0, 3}), RankId{13});
  EXPECT_EQ(grid.coordinates(RankId{13}), (Coordinates{1, 0, 0, 0, 3}));
}

TEST(RankGrid, PartitionsTheWorldIntoGroups) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random = Rng(seed).stream("grid");
    Coordinates sizes;
    for (int& size : sizes) size = 1 + static_cast<int>(random.below(4));
    auto order = RankGrid().order();
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[static_cast<std::size_t>(random.below(i + 1))]);
    }
    AxisSet axes;
    int members = 1;
    for (const Axis axis : order) {
      if (random.below(2) == 0) continue;
      axes.add(axis);
      members *= sizes[static_cast<std::size_t>(axis)];
    }
    const RankGrid grid(sizes, order);
    std::vector<int> seen(static_cast<std::size_t>(grid.world_size()), 0);
    for (const auto& group : grid.groups(axes)) {
      EXPECT_EQ(group.size(), static_cast<std::size_t>(members));
      EXPECT_TRUE(std::ranges::is_sorted(group));
      for (const RankId rank : group) {
        ++seen[rank.value];
        EXPECT_EQ(grid.group(rank, axes), group);
        EXPECT_EQ(grid.rank(grid.coordinates(rank)), rank);
      }
    }
    EXPECT_THAT(seen, testing::Each(1));
  }
}

TEST(RankGrid, RefusesRanksOutsideTheWorld) {
  EXPECT_THROW(example("tp-cp-ep-dp-pp").coordinates(RankId{16}), ContractViolation);
  EXPECT_THROW(example("tp-cp-ep-dp-pp").rank({2, 0, 0, 0, 0}), ContractViolation);
}

std::string complaint(std::string_view order) {
  try {
    parse_rank_order(order);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RankOrder, IsReadStrictlyAndWrittenBack) {
  EXPECT_EQ(to_text(parse_rank_order("pp-dp-ep-cp-tp")), "pp-dp-ep-cp-tp");
  EXPECT_EQ(complaint("tp-cp-ep-dp"), "rank order \"tp-cp-ep-dp\": pp is missing");
  EXPECT_EQ(complaint("tp-tp-cp-ep-dp-pp"), "rank order \"tp-tp-cp-ep-dp-pp\": tp stands twice");
  EXPECT_EQ(complaint("tp-xp"), "rank order \"tp-xp\": \"xp\" is not one of tp, cp, ep, dp, pp");
  EXPECT_EQ(complaint(""), "rank order \"\": \"\" is not one of tp, cp, ep, dp, pp");
}

}  // namespace
}  // namespace foresail::program
