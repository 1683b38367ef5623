/// \file
/// What a step meets besides itself: jitter, faults at stated times, and other traffic.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/topologies/cluster.h"

namespace foresail::sim {

/// Every pass on every node takes its time times exp(sigma z - sigma^2 / 2), z standard normal and
/// drawn per pass and node from the stream "jitter" of the seed: log-normal with mean 1. A unit on
/// several nodes waits for the slowest of them.
struct Jitter {
  double sigma = 0;
  friend bool operator==(const Jitter&, const Jitter&) = default;
};

/// LinkDown: nothing passes. Switches take the link out of their groups after kRerouteDelay; queue
/// pairs that were on it wait for a retry (NcclOptions::ib_timeout) and then take the new way. With
/// no other way they retry until the link is back, or give up and the job fails. LinkFlap: down for
/// the first half of every period. LinkDegraded, NicSlow: bandwidth times factor. GpuSlow: passes
/// of the units on that GPU run at `factor` of their speed.
enum class FaultKind { LinkDown, LinkFlap, LinkDegraded, NicSlow, GpuSlow };

struct Fault {
  FaultKind kind = FaultKind::LinkDown;
  Duration at{};        ///< from the start of the step
  Duration lasts{};     ///< zero: to the end
  std::string target;   ///< "leaf0->spine1", "node3.nic0", "node3.gpu1"; cables in both directions
  double factor = 0.5;  ///< of speed or bandwidth that is left
  Duration period{};    ///< LinkFlap
  friend bool operator==(const Fault&, const Fault&) = default;
};

/// Throws Error{InvalidInput} if the target names no such part of the cluster.
void check_fault(const topologies::Cluster& cluster, const Fault& fault);

/// After a link's loss of signal, its switch stops using it (loss-of-signal detection and group
/// update take micro- to milliseconds; facts/network §3.10).
inline constexpr Duration kRerouteDelay = std::chrono::milliseconds(1);

/// Permutation: each device sends to one other (a random cycle-free pairing of the seed). Ring: to
/// the next. AllToAll: to every other. Incast: all to the first.
enum class TrafficPattern { Permutation, Ring, AllToAll, Incast };

/// Messages of another tenant: all start together, and anew `gap` after the last has arrived, until
/// the step ends.
struct Traffic {
  TrafficPattern pattern = TrafficPattern::Permutation;
  std::vector<DeviceId> devices;
  Bytes bytes;  ///< of one message
  Duration at{};
  Duration gap{};
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

}  // namespace foresail::sim

namespace foresail {
template <>
inline constexpr auto kNames<sim::FaultKind> =
    std::to_array<Named<sim::FaultKind>>({{sim::FaultKind::LinkDown, "link_down"},
                                          {sim::FaultKind::LinkFlap, "link_flap"},
                                          {sim::FaultKind::LinkDegraded, "link_degraded"},
                                          {sim::FaultKind::NicSlow, "nic_slow"},
                                          {sim::FaultKind::GpuSlow, "gpu_slow"}});
template <>
inline constexpr auto kNames<sim::TrafficPattern> =
    std::to_array<Named<sim::TrafficPattern>>({{sim::TrafficPattern::Permutation, "permutation"},
                                               {sim::TrafficPattern::Ring, "ring"},
                                               {sim::TrafficPattern::AllToAll, "all_to_all"},
                                               {sim::TrafficPattern::Incast, "incast"}});
}  // namespace foresail
