/// \file
/// A set of point-to-point flows run to completion on given paths: what a packet simulator is asked
/// with a connection matrix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/units.h"
#include "foresail/sim/fluid_network.h"
#include "foresail/sim/pfc.h"
#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// One direction of a cable.
struct FlowLink {
  Bandwidth bandwidth;
  Duration latency{};
};

struct PointToPointFlow {
  std::vector<std::uint32_t> links;  ///< from source to destination, at least one
  Bytes bytes;                       ///< payload, > 0
  SimTime start{};
  double share = 1;  ///< under max-min fairness: rates at a bottleneck are in proportion
};

struct FlowSet {
  std::vector<FlowLink> links;
  std::vector<PointToPointFlow> flows;
};

/// When a flow counts as complete.
enum class Completion {
  LastByteSent,      ///< nothing but the transfer itself
  LastByteReceived,  ///< and the way of its last packet
  LastAckReceived,   ///< and the way back of an acknowledgement
};

struct FlowSetOptions {
  topologies::Sharing sharing = topologies::Sharing::MaxMin;
  Completion completion = Completion::LastByteReceived;
  Bytes packet{4096};  ///< payload of a full packet
  Bytes header{0};     ///< on the wire with each packet
  Bytes ack{64};       ///< size of an acknowledgement
  /// Share of every link that flows use together, in the long run.
  double efficiency = 1;
  /// Share of its narrowest link that a flow uses when it is alone; under MaxMin. HPCC aims at a
  /// utilisation of 0.95, which a lone flow meets; where several share a link, the sum of their
  /// additive increases fills what the target leaves (facts 3.3: C eta + N W_AI / T).
  double lone_efficiency = 1;
  FluidOptions fluid;  ///< under MaxMin
  PfcOptions pfc;      ///< under Pfc
};

struct FlowSetSummary {
  std::vector<Duration> completion;  ///< per flow, from its start
  std::uint64_t solves = 0;          ///< of rates

  Duration makespan() const;  ///< the longest completion
  Duration mean() const;
  /// The k-th smallest completion, k = ceil(fraction * flows). Requires 0 < fraction <= 1.
  Duration quantile(double fraction) const;
  std::string to_string() const;
};

/// Bytes of a flow on the wire: payload and one header per packet.
Bytes wire_bytes(const PointToPointFlow& flow, const FlowSetOptions& options);

/// Time that the last packet, and with LastAckReceived the acknowledgement, spends on the path
/// after the source has sent it: the sum of latencies and one packet time per hop beyond the first
/// (store and forward). A lone flow completes after wire_bytes / its rate + this,
/// which is the packet simulators' least completion time to the digit (facts 5.2).
Duration path_delay(const FlowSet& set, const PointToPointFlow& flow,
                    const FlowSetOptions& options);

/// Runs all flows to the end. Throws Error{InvalidInput} for a flow without links or bytes, a link
/// without bandwidth, or under Pfc for paths that can deadlock.
FlowSetSummary complete(const FlowSet& set, const FlowSetOptions& options = {});

}  // namespace foresail::sim
