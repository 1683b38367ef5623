/// \file
/// The clock of a simulated step: all jobs, other traffic and faults on one network.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "background.h"
#include "foresail/sim/network.h"
#include "foresail/sim/simulator.h"
#include "link_faults.h"
#include "step_engine.h"
#include "step_event.h"

namespace foresail::sim {

class StepLoop {
 public:
  /// The first job is the one asked about; others run from their own start on, again and again if
  /// they repeat, until it is over. All must outlive the loop.
  StepLoop(const topologies::Cluster& cluster, const SimulatorOptions& options, Network& network,
           std::span<const Job> jobs);

  /// Runs until the first job is complete, or fails (see failure()). Throws ContractViolation if a
  /// Program deadlocks (verify it first).
  void run();
  /// Requires run(); once.
  StepOutcome take_outcome();

 private:
  void dispatch(const StepEvent& event);
  void prefetch_ahead() const;
  void launch(std::uint16_t job, const StepEngine::Launch& flows);
  void flow_ended(std::uint64_t tag);
  bool is_over() const;

  const SimulatorOptions& options_;
  Network& network_;
  StepEvents events_;
  std::vector<std::unique_ptr<StepEngine>> engines_;
  std::vector<bool> repeats_;
  std::vector<int> rounds_;
  std::vector<Background> traffic_;
  LinkFaults faults_;
};

}  // namespace foresail::sim
