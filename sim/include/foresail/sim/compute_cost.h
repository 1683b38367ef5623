/// \file
/// Time of kernels and passes: a measured profile where there is one, else the device's curve.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/base/units.h"
#include "foresail/program/profile.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/device.h"

namespace foresail::sim {

/// What one device has of its host while all devices of the node want as much. Zero: not known.
struct HostShare {
  Bandwidth link;    ///< between device and host memory, one direction
  Bandwidth memory;  ///< of host memory
};
HostShare host_share(const topologies::NodeSpec& node);

class ComputeCost {
 public:
  /// `profile` may be null; it and `device` must outlive this object.
  ComputeCost(const topologies::DeviceSpec& device, const program::Profile* profile,
              HostShare host = {});
  /// The same device in the slowest of `nodes` nodes (topologies::slowest_pace).
  ComputeCost on_slowest_of(int nodes) const;

  /// One kernel (not a collective) alone. HostCopy and HostOptimizer: bytes over the host's share,
  /// which must be known. Of the others, with a profile: the measured time of the same kernel; for
  /// a shape that was not measured, the nearest measured kernel of its kind scaled by FLOPs (GEMM,
  /// attention) or bytes (others), at least the profile's time between launches. Device kernels at
  /// the pace of this device's node.
  Duration kernel(const Kernel& kernel) const;

  const topologies::DeviceSpec& device() const { return device_; }
  const program::Profile* profile() const { return profile_; }

 private:
  using Key = std::tuple<KernelKind, DType, bool, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t, std::int64_t>;
  static Key key_of(const Kernel& kernel);
  Duration nearest(const Kernel& kernel) const;
  Duration on_mean_node(const Kernel& kernel) const;

  const topologies::DeviceSpec& device_;
  const program::Profile* profile_;
  HostShare host_;
  double pace_ = 1;
  std::map<Key, Duration> measured_;
};

/// When each kernel of a pass runs, from the start of the pass.
struct PassTimeline {
  struct Interval {
    Duration start{}, end{};
  };
  Duration duration{};
  std::vector<Interval> kernels;  ///< same index as the list
};

/// Costs of one pass: its lanes run in order, `after` is respected, compute beside a collective is
/// slower by overlap_slowdown, a collective beside compute takes overlap_inefficiency longer, and
/// the whole cannot be faster than the host launches its kernels (p-norm with p = 4).
class PassCost {
 public:
  PassCost(const ComputeCost& compute, Duration host_per_kernel)
      : compute_(compute), host_per_kernel_(host_per_kernel) {}

  /// `collective_times[i]` is the time of kernel i if it is a collective (else unused).
  PassTimeline timeline(const std::vector<Kernel>& kernels,
                        const std::vector<Duration>& collective_times) const;

 private:
  const ComputeCost& compute_;
  Duration host_per_kernel_;
};

}  // namespace foresail::sim
