/// \file
/// What can happen in a simulated step, in one queue for all jobs on the network.
#pragma once

#include <cstdint>

#include "foresail/sim/event_queue.h"

namespace foresail::sim {

enum class EventKind : std::uint16_t {
  OpDone,        ///< a: unit, b: op
  TransferDone,  ///< a: transfer; its last byte and its latency are over
  FlowDone,      ///< a: transfer; one flow that was not simulated as fluid has ended
  JobStart,
  TrafficStart,  ///< job: source of traffic
  FaultChange,   ///< a: change of the fault timeline
  Reroute,       ///< switches have noticed: routes avoid what is down now
  Retry,         ///< a: stalled flow
};

struct StepEvent {
  EventKind kind;
  std::uint16_t job = 0;
  std::uint32_t a = 0, b = 0;
};

using StepEvents = EventQueue<StepEvent>;

/// Tag of a fluid flow: the job (or source of traffic) and its transfer.
constexpr std::uint64_t flow_tag(std::uint16_t job, std::uint32_t transfer) {
  return (std::uint64_t{job} << 32u) | transfer;
}

}  // namespace foresail::sim
