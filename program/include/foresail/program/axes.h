/// \file
/// The mesh: axes, rank order, coordinates and groups by the mixed-radix rule of Megatron-Core
/// (rank = sum of digit_i * stride_i, innermost axis first; facts: Megatron-LM parallel_state).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/names.h"

namespace foresail::program {

/// Axes of the mesh. `Ep` has size 1 in dense models.
enum class Axis { Tp, Cp, Ep, Dp, Pp };
inline constexpr int kAxisCount = 5;

/// A set of axes, for groups: the members of a group differ in these coordinates only.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) add(axis);
  }
  constexpr void add(Axis axis) { bits_ |= 1u << static_cast<unsigned>(axis); }
  constexpr bool has(Axis axis) const { return (bits_ >> static_cast<unsigned>(axis)) & 1u; }
  friend constexpr auto operator<=>(AxisSet, AxisSet) = default;

 private:
  unsigned bits_ = 0;
};

using Coordinates = std::array<int, kAxisCount>;  // indexed by Axis

/// Sizes of the axes and the order in which ranks run through them.
class RankGrid {
 public:
  RankGrid() = default;
  /// `sizes` indexed by Axis, all >= 1; `order` innermost first, a permutation of all axes.
  RankGrid(const Coordinates& sizes, const std::array<Axis, kAxisCount>& order);

  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  int world_size() const { return world_; }
  const std::array<Axis, kAxisCount>& order() const { return order_; }

  Coordinates coordinates(RankId rank) const;
  RankId rank(const Coordinates& at) const;
  /// The members of the group of `rank` that varies over `axes`, in increasing rank.
  std::vector<RankId> group(RankId rank, AxisSet axes) const;
  /// All groups over `axes`: each in increasing rank, ordered by first member.
  std::vector<std::vector<RankId>> groups(AxisSet axes) const;

  friend bool operator==(const RankGrid&, const RankGrid&) = default;

 private:
  Coordinates sizes_{1, 1, 1, 1, 1};
  std::array<Axis, kAxisCount> order_{Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp, Axis::Pp};
  Coordinates strides_{1, 1, 1, 1, 1};
  int world_ = 1;
};

/// "tp-cp-ep-dp-pp" (innermost first). Throws Error{InvalidInput} unless each axis stands once.
std::array<Axis, kAxisCount> parse_rank_order(std::string_view text);
std::string to_text(const std::array<Axis, kAxisCount>& order);

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::Axis> =
    std::to_array<Named<program::Axis>>({{program::Axis::Tp, "tp"},
                                         {program::Axis::Cp, "cp"},
                                         {program::Axis::Ep, "ep"},
                                         {program::Axis::Dp, "dp"},
                                         {program::Axis::Pp, "pp"}});
}  // namespace foresail
