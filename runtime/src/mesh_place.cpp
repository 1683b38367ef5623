#include "mesh_place.h"

#include <algorithm>
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
                    .shard = axis(at, Axis::Dp),
                    .shards = grid.size(Axis::Dp),
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

/// Where groups share states, the place in one's own, and among those that hold the same.
void cut_into_groups(const program::Program& program, RankId rank, MeshPlace& place) {
  for (std::uint32_t i = 0; i < program.communicators.size(); ++i) {
    const program::Communicator& communicator = program.communicators[i];
    const program::Cut& cut = communicator.cut;
    if (cut.kind == program::Cut::Kind::None) continue;
    const bool is_of_experts = communicator.grid == program::GridKind::Expert;
    int& shard = is_of_experts ? place.experts.shard : place.shard;
    int& replica = is_of_experts ? place.experts.replica : place.replica;
    const int own = place_in(program.members(program::CommunicatorId{i}, rank), rank);
    (cut.kind == program::Cut::Kind::Within ? shard : replica) = own;
    (is_of_experts ? place.experts.shards : place.shards) = cut.size;
    if (cut.size == 1) shard = 0;  // a group has one copy of an expert, which nobody shares
  }
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
  cut_into_groups(program, rank, place);
  return place;
}

}  // namespace foresail::runtime
