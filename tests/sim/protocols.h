/// \file
/// How each packet simulator's protocol is described to a flow set.
#pragma once

#include <string>

#include "foresail/sim/flow_set.h"

namespace foresail::sim::test {

struct Protocol {
  FlowSetOptions options;
  bool is_sprayed = false;  ///< over all shortest paths: no two flows collide
};

/// Packets as in tests/data/oracles/README.md. PFC alone shares by ingress port; all others have
/// congestion control, hence max-min. HPCC's target utilisation bounds a flow that is alone.
inline Protocol protocol(const std::string& name) {
  Protocol made;
  FlowSetOptions& options = made.options;
  options.completion = Completion::LastAckReceived;
  options.packet = Bytes(9000);
  options.header = Bytes(64);
  if (name == "roce" || name == "uroce") options.sharing = topologies::Sharing::Pfc;
  if (name == "hpcc") options.lone_efficiency = 0.95;
  if (name == "uroce" || name == "swift") options.packet = Bytes(4000);
  if (name == "swift") options.header = Bytes(0);
  if (name == "eqds_spray" || name == "nscc") options.packet = Bytes(4150);
  made.is_sprayed = name == "eqds_spray" || name == "nscc" || name == "ndp_spray_cw45";
  return made;
}

/// These simulators send whole packets.
inline Bytes whole_packets(Bytes bytes, const Protocol& protocol) {
  const std::int64_t packet = protocol.options.packet.count();
  return Bytes((bytes.count() + packet - 1) / packet * packet);
}

}  // namespace foresail::sim::test
