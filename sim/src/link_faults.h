/// \file
/// Links that go down, flap or slow down during a step, and what that does to flows on them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "foresail/sim/network.h"
#include "foresail/sim/simulator.h"
#include "step_event.h"

namespace foresail::sim {

/// A queue pair that meets a dead link sends again after 4.096 us * 2^ib_timeout (facts/network
/// §3.9); with adaptive retransmission after 4.096 us * 2^10, doubling up to that. After
/// ib_retry_count waits of the full length NCCL sees an error and the job fails. Switches change
/// their routes kRerouteDelay after a link has gone down or come back.
class LinkFaults {
 public:
  /// Throws Error{InvalidInput} if a fault's target is no part of the cluster.
  LinkFaults(const topologies::Cluster& cluster, const SimulatorOptions& options, Network& network,
             StepEvents& events);

  /// Starts flows of `amount` along today's ways of `routes`; those that meet a dead link wait.
  void launch(std::uint64_t tag, std::span<const RouteId> routes, double amount);

  void change();                      ///< FaultChange: the faults as of now
  void reroute();                     ///< Reroute
  void retry(std::uint32_t stalled);  ///< Retry

  /// Why the job failed; empty while it has not.
  const std::string& failure() const { return failure_; }
  /// Flows that had to wait for a retry so far, and their waits together.
  int stalls() const { return stalls_; }
  Duration longest_stall() const { return longest_stall_; }

 private:
  struct LinkFault {
    Fault fault;
    std::vector<LinkId> links;
  };
  struct Stalled {
    std::uint64_t tag;
    double amount;
    RouteId route;
    SimTime since;
    int attempt = 0;
  };

  double factor_at(const Fault& fault, SimTime now) const;
  SimTime next_change(SimTime now) const;
  bool is_dead(RouteId route) const;
  void stall(const Stalled& flow);
  Duration wait_before(int attempt) const;
  Duration patience() const;

  const topologies::NcclOptions& nccl_;
  Network& network_;
  StepEvents& events_;
  std::vector<LinkFault> faults_;
  std::map<std::uint32_t, double> factors_;  // by link, of what differs from 1 now
  std::vector<PipeId> dead_;                 // sorted
  std::vector<Stalled> stalled_;
  std::string failure_;
  int stalls_ = 0;
  SimTime first_stall_{};
  Duration longest_stall_{};
};

}  // namespace foresail::sim
