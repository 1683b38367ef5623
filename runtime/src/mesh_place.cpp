#include "mesh_place.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

using program::Axis;

int place_in(const std::vector<RankId>& members, RankId rank) {
  const auto found = std::ranges::find(members, rank);
  FORESAIL_EXPECT(found != members.end());
  return static_cast<int>(found - members.begin());
}

ExpertPlace expert_place(const program::RankGrid& grid, RankId rank) {
  const auto axis = [](const program::Coordinates& at, Axis a) {
    return at[static_cast<std::size_t>(a)];
  };
  const program::Coordinates at = grid.coordinates(rank);
  ExpertPlace place{.ep = axis(at, Axis::Ep),
                    .etp = axis(at, Axis::Tp),
                    .ep_size = grid.size(Axis::Ep),
                    .etp_size = grid.size(Axis::Tp),
                    .copy = axis(at, Axis::Dp),
                    .copies = grid.size(Axis::Dp),
                    .place_of = {}};
  const std::vector<RankId> members = grid.group(rank, {Axis::Tp, Axis::Ep});
  place.place_of.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const program::Coordinates other = grid.coordinates(members[i]);
    const int index = axis(other, Axis::Ep) * place.etp_size + axis(other, Axis::Tp);
    place.place_of[static_cast<std::size_t>(index)] = static_cast<int>(i);
  }
  return place;
}

}  // namespace

MeshPlace MeshPlace::of(const program::Program& program, RankId rank) {
  const program::RankGrid& grid = program.grid;
  const program::Coordinates at = grid.coordinates(rank);
  const auto axis = [&](Axis a) { return at[static_cast<std::size_t>(a)]; };
  MeshPlace place{.tp = axis(Axis::Tp),
                  .cp = axis(Axis::Cp),
                  .dp = axis(Axis::Dp),
                  .pp = axis(Axis::Pp),
                  .tp_size = grid.size(Axis::Tp),
                  .cp_size = grid.size(Axis::Cp),
                  .dp_size = grid.size(Axis::Dp),
                  .pp_size = grid.size(Axis::Pp),
                  .copy = place_in(grid.group(rank, {Axis::Cp, Axis::Dp}), rank),
                  .experts = {}};
  if (program.expert_grid) place.experts = expert_place(*program.expert_grid, rank);
  place.shard = place.copy;
  place.shards = place.copies();
  for (std::uint32_t i = 0; i < program.communicators.size(); ++i) {
    const std::string_view name = program.communicators[i].name;
    if (name != "shard" && name != "replica") continue;
    const std::vector<RankId> members = program.members(program::CommunicatorId{i}, rank);
    if (name == "replica") {
      place.replica = place_in(members, rank);
    } else {
      place.shard = place_in(members, rank);
      place.shards = static_cast<int>(members.size());
    }
  }
  return place;
}

}  // namespace foresail::runtime
