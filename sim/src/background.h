/// \file
/// Messages of other tenants, round after round.
#pragma once

#include <cstdint>
#include <vector>

#include "foresail/sim/disturbance.h"
#include "foresail/sim/network.h"
#include "step_event.h"

namespace foresail::sim {

class Background {
 public:
  /// `source` numbers it among the jobs of the loop; `network` must outlive it.
  Background(const Traffic& traffic, std::uint16_t source, std::uint64_t seed, Network& network);

  /// Starts a round.
  void start(SimTime now);
  /// One of its flows has ended. True if it was the last of the round.
  bool flow_ended() { return --flows_left_ == 0; }
  /// From the end of a round's last flow to the start of the next: the message's way, and the gap.
  Duration pause() const { return latency_ + gap_; }

 private:
  Network& network_;
  std::uint16_t source_;
  Duration gap_, latency_{};
  std::vector<TransferPlan> plans_;
  std::size_t flows_left_ = 0;
};

}  // namespace foresail::sim
