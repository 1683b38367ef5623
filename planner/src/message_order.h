/// \file
/// The one global order of point-to-point messages that makes in-order pp lanes free of deadlock.
#pragma once

#include <vector>

#include "foresail/planner/schedule.h"
#include "pass_graph.h"

namespace foresail::planner {

struct Message {
  PassPlace from;
  PassPlace to;
};

/// All messages, ordered by the time at which their pass ends when the schedule is simulated with
/// `costs`; ties by forward before backward, then microbatch, then stage. Requires costs.message >
/// 0 and, so that ties are exact, whole numbers throughout.
///
/// Why no timing can deadlock when every pp lane follows this order: give a pass its simulated
/// start and a message the simulated end of its pass. A pass waits only for messages with a value
/// not above its own (inputs, and if blocking its predecessor's output), a message only for a pass
/// with a smaller value and for messages that stand before it. So no chain of waits closes.
///
/// If costs.blocking, the simulation with and without waiting for sends both give such an order;
/// the one that finishes earlier on in-order lanes is taken.
std::vector<Message> message_order(const Schedule& schedule, const PassCosts& costs);

/// Time of the schedule when every message occupies the pp lanes of both its stages for
/// costs.message, in the order given.
double makespan_in_order(const Schedule& schedule, const PassCosts& costs,
                         const std::vector<Message>& messages);

}  // namespace foresail::planner
