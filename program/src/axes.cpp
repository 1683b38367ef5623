#include "foresail/program/axes.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "foresail/base/error.h"

namespace foresail::program {
namespace {

std::size_t index(Axis axis) {
  return static_cast<std::size_t>(axis);
}

}  // namespace

RankGrid::RankGrid(const Coordinates& sizes, const std::array<Axis, kAxisCount>& order)
    : sizes_(sizes), order_(order) {
  std::int64_t world = 1;
  AxisSet seen;
  for (const Axis axis : order) {
    const std::size_t i = index(axis);
    FORESAIL_EXPECT(!seen.has(axis));
    FORESAIL_EXPECT(sizes_[i] >= 1);
    seen.add(axis);
    strides_[i] = static_cast<int>(world);
    world *= sizes_[i];
    FORESAIL_EXPECT(world <= std::numeric_limits<int>::max());
  }
  world_ = static_cast<int>(world);
}

Coordinates RankGrid::coordinates(RankId rank) const {
  FORESAIL_EXPECT(rank.value < static_cast<std::uint32_t>(world_));
  Coordinates at{};
  for (std::size_t i = 0; i < at.size(); ++i) {
    at[i] = static_cast<int>(rank.value) / strides_[i] % sizes_[i];
  }
  return at;
}

RankId RankGrid::rank(const Coordinates& at) const {
  int rank = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    FORESAIL_EXPECT(at[i] >= 0);
    FORESAIL_EXPECT(at[i] < sizes_[i]);
    rank += at[i] * strides_[i];
  }
  return RankId{static_cast<std::uint32_t>(rank)};
}

std::vector<RankId> RankGrid::group(RankId rank, AxisSet axes) const {
  const Coordinates at = coordinates(rank);
  int first = static_cast<int>(rank.value);
  for (const Axis axis : order_) {
    if (axes.has(axis)) first -= at[index(axis)] * strides_[index(axis)];
  }
  // Each axis, innermost first, repeats what is there so far: increasing, since strides increase.
  std::vector<RankId> members{RankId{static_cast<std::uint32_t>(first)}};
  for (const Axis axis : order_) {
    if (!axes.has(axis)) continue;
    const std::size_t inner = members.size();
    members.reserve(inner * static_cast<std::size_t>(size(axis)));
    for (int digit = 1; digit < size(axis); ++digit) {
      const auto shift = static_cast<std::uint32_t>(digit * strides_[index(axis)]);
      for (std::size_t i = 0; i < inner; ++i) members.push_back(RankId{members[i].value + shift});
    }
  }
  return members;
}

std::vector<std::vector<RankId>> RankGrid::groups(AxisSet axes) const {
  std::vector<std::vector<RankId>> all;
  for (std::uint32_t rank = 0; rank < static_cast<std::uint32_t>(world_); ++rank) {
    const Coordinates at = coordinates(RankId{rank});
    bool is_first = true;
    for (const Axis axis : order_) is_first &= !axes.has(axis) || at[index(axis)] == 0;
    if (is_first) all.push_back(group(RankId{rank}, axes));
  }
  return all;
}

std::array<Axis, kAxisCount> parse_rank_order(std::string_view text) {
  std::array<Axis, kAxisCount> order{};
  AxisSet seen;
  std::size_t count = 0;
  std::string_view rest = text;
  while (true) {
    const std::string_view word = rest.substr(0, rest.find('-'));
    const std::optional<Axis> axis = from_string<Axis>(word);
    if (!axis) {
      throw Error(ErrorCode::InvalidInput, fmt::format("rank order \"{}\": \"{}\" is not one of {}",
                                                       text, word, choices<Axis>()));
    }
    if (seen.has(*axis)) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("rank order \"{}\": {} stands twice", text, word));
    }
    seen.add(*axis);
    order[count++] = *axis;
    if (word.size() == rest.size()) break;
    rest.remove_prefix(word.size() + 1);
  }
  for (const auto& [axis, name] : kNames<Axis>) {
    if (!seen.has(axis)) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("rank order \"{}\": {} is missing", text, name));
    }
  }
  return order;
}

std::string to_text(const std::array<Axis, kAxisCount>& order) {
  std::string text;
  for (const Axis axis : order) {
    if (!text.empty()) text += '-';
    text += to_string(axis);
  }
  return text;
}

}  // namespace foresail::program
