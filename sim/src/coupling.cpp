#include "coupling.h"

#include <algorithm>
#include <numeric>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

using program::Axis;
using program::Communicator;
using program::CommunicatorId;
using program::Cut;
using program::Program;

constexpr auto kDp = static_cast<std::size_t>(Axis::Dp);

/// Sets that are joined; each goes by its smallest element.
class Sets {
 public:
  explicit Sets(std::size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  int first(int element) {
    int& above = parent_[static_cast<std::size_t>(element)];
    if (above == element) return element;
    return above = first(above);
  }
  void join(int a, int b) {
    const int low = std::min(first(a), first(b));
    const int high = std::max(first(a), first(b));
    parent_[static_cast<std::size_t>(high)] = low;
  }

 private:
  std::vector<int> parent_;
};

}  // namespace

// Groups of experts, cut or not, start when all replicas are there (StepEngine::start_collective).
bool is_cut_over_replicas(const Communicator& communicator) {
  if (communicator.grid == program::GridKind::Expert) return false;
  return communicator.cut.kind != Cut::Kind::None && communicator.axes.has(Axis::Dp);
}

std::vector<int> replica_parts(const Program& program, const Communicator& communicator) {
  const int replicas = program.grid.size(Axis::Dp);
  std::vector<int> parts(static_cast<std::size_t>(replicas), 0);
  if (!is_cut_over_replicas(communicator)) return parts;
  // Ranks that differ in other axes than dp and cp lie in parts alike.
  FORESAIL_EXPECT(communicator.axes == (program::AxisSet{Axis::Dp, Axis::Cp}));
  const std::vector<RankId> members = program.grid.group(RankId{0}, communicator.axes);
  const auto size = static_cast<std::size_t>(communicator.cut.size);
  const bool is_within = communicator.cut.kind == Cut::Kind::Within;
  Sets sets(static_cast<std::size_t>(replicas));
  for (std::size_t at = 0; at < members.size(); ++at) {
    const RankId first = members[is_within ? at - at % size : at % size];  // of the same part
    sets.join(program.grid.coordinates(first)[kDp], program.grid.coordinates(members[at])[kDp]);
  }
  for (int replica = 0; replica < replicas; ++replica) {
    parts[static_cast<std::size_t>(replica)] = sets.first(replica);
  }
  return parts;
}

Coupling::Coupling(const Program& program, const std::vector<int>& slot_of) {
  const int slots = slot_of.empty() ? 0 : *std::ranges::max_element(slot_of) + 1;
  for (const Communicator& communicator : program.communicators) {
    std::vector<Place>& places = places_.emplace_back();
    if (!is_cut_over_replicas(communicator)) continue;
    const std::vector<int> parts = replica_parts(program, communicator);
    Sets sets(static_cast<std::size_t>(slots));
    for (std::size_t replica = 0; replica < slot_of.size(); ++replica) {
      sets.join(slot_of[replica], slot_of[static_cast<std::size_t>(parts[replica])]);
    }
    places.resize(static_cast<std::size_t>(slots));
    for (int slot = 0; slot < slots; ++slot) {
      const int first = sets.first(slot);
      places[static_cast<std::size_t>(slot)].first = static_cast<std::uint32_t>(first);
      ++places[static_cast<std::size_t>(first)].count;
    }
    for (Place& place : places) place.count = places[place.first].count;
  }
}

const Coupling::Place& Coupling::place(CommunicatorId communicator, std::size_t slot) const {
  FORESAIL_EXPECT(is_cut(communicator));
  return places_[communicator.value].at(slot);
}

}  // namespace foresail::sim
