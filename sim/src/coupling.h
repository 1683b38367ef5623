/// \file
/// Which replicas wait for each other in communicators that are cut into parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "foresail/program/program.h"

namespace foresail::sim {

/// By dp coordinate: the smallest one of those that a part of `communicator` joins with it, through
/// any of its ranks. All 0 for one that is not cut.
std::vector<int> replica_parts(const program::Program& program,
                               const program::Communicator& communicator);

/// Whether it joins replicas in parts.
bool is_cut_over_replicas(const program::Communicator& communicator);

/// The same of simulated replicas, each of which may stand for several (`slot_of` by dp
/// coordinate): two wait for each other if any of those that they stand for do.
class Coupling {
 public:
  Coupling() = default;
  Coupling(const program::Program& program, const std::vector<int>& slot_of);

  bool is_cut(program::CommunicatorId communicator) const {
    return !places_[communicator.value].empty();
  }
  /// The smallest slot that waits with `slot`, and how many do. Requires is_cut().
  std::uint32_t first(program::CommunicatorId communicator, std::size_t slot) const {
    return place(communicator, slot).first;
  }
  std::size_t count(program::CommunicatorId communicator, std::size_t slot) const {
    return place(communicator, slot).count;
  }

 private:
  struct Place {
    std::uint32_t first = 0;
    std::size_t count = 0;
  };
  const Place& place(program::CommunicatorId communicator, std::size_t slot) const;

  std::vector<std::vector<Place>> places_;  // by communicator and slot; empty: not cut
};

}  // namespace foresail::sim
