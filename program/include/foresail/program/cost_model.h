/// \file
/// What the planner may ask about cost. `sim` implements it with the cluster bound at construction;
/// planner and sim never see each other.
#pragma once

#include <span>

#include "foresail/base/id.h"
#include "foresail/base/kernel.h"
#include "foresail/base/units.h"
#include "foresail/program/placement.h"
#include "foresail/program/program.h"

namespace foresail::program {

class CostModel {
 public:
  virtual ~CostModel() = default;
  /// Time of one kernel alone, on the slowest of the `nodes` nodes that a job has. Not for
  /// Collective kernels.
  virtual Duration kernel(const Kernel& kernel, int nodes) const = 0;
  /// Time of one collective among `devices` on an idle network; `bytes` as in nccl-tests.
  virtual Duration collective(Collective kind, Bytes bytes,
                              std::span<const DeviceId> devices) const = 0;
  /// Time of one message on an idle network.
  virtual Duration message(Bytes bytes, DeviceId from, DeviceId to) const = 0;
  /// Time of one step.
  virtual Duration step(const Program& program, const Placement& placement) const = 0;
};

}  // namespace foresail::program
