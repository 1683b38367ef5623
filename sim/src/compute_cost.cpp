#include "foresail/sim/compute_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "foresail/base/error.h"
#include "foresail/sim/kernel_cost.h"

namespace foresail::sim {
namespace {

bool is_flop_bound(KernelKind kind) {
  return kind == KernelKind::Gemm || kind == KernelKind::Attention;
}

bool is_of_host(KernelKind kind) {
  return kind == KernelKind::HostCopy || kind == KernelKind::HostOptimizer;
}

double log_ratio(std::int64_t a, std::int64_t b) {
  return std::abs(std::log(static_cast<double>(std::max<std::int64_t>(a, 1)) /
                           static_cast<double>(std::max<std::int64_t>(b, 1))));
}

double distance(const Kernel& a, const Kernel& b) {
  if (!is_flop_bound(a.kind)) return log_ratio(a.bytes.count(), b.bytes.count());
  if (a.kind == KernelKind::Attention) {
    return log_ratio(a.heads, b.heads) + log_ratio(a.query_length, b.query_length) +
           log_ratio(a.head_size, b.head_size) + (a.is_backward != b.is_backward ? 1.0 : 0.0);
  }
  return log_ratio(a.batch, b.batch) + log_ratio(a.m, b.m) + log_ratio(a.n, b.n) +
         log_ratio(a.k, b.k);
}

Duration scaled(Duration time, double factor) {
  return Duration(std::llround(static_cast<double>(time.count()) * factor));
}

}  // namespace

HostShare host_share(const topologies::NodeSpec& node) {
  return {node.host.link,
          Bandwidth::bps(node.host.bandwidth.bits_per_second() / std::max(1, node.devices))};
}

ComputeCost::ComputeCost(const topologies::DeviceSpec& device, const program::Profile* profile,
                         HostShare host)
    : device_(device), profile_(profile), host_(host) {
  if (profile == nullptr) return;
  for (const program::KernelTiming& timing : profile->kernels) {
    measured_.emplace(key_of(timing.kernel), timing.time);
  }
}

ComputeCost::Key ComputeCost::key_of(const Kernel& kernel) {
  if (kernel.kind == KernelKind::Gemm) {
    return {kernel.kind, kernel.dtype, false, kernel.batch, kernel.m, kernel.n, kernel.k, 0};
  }
  if (kernel.kind == KernelKind::Attention) {
    return {kernel.kind,         kernel.dtype,      kernel.is_backward, kernel.heads,
            kernel.query_length, kernel.key_length, kernel.head_size,   kernel.batch};
  }
  return {kernel.kind, kernel.dtype, kernel.is_backward, kernel.bytes.count(), 0, 0, 0, 0};
}

ComputeCost ComputeCost::on_slowest_of(int nodes) const {
  ComputeCost made = *this;
  made.pace_ = topologies::slowest_pace(device_.constants, nodes);
  return made;
}

Duration ComputeCost::kernel(const Kernel& kernel) const {
  FORESAIL_EXPECT(kernel.kind != KernelKind::Collective);
  if (is_of_host(kernel.kind)) {
    const Bandwidth rate = kernel.kind == KernelKind::HostCopy ? host_.link : host_.memory;
    FORESAIL_EXPECT(rate > Bandwidth());
    return duration_from_seconds(static_cast<double>(kernel.bytes.count()) /
                                 rate.bytes_per_second());
  }
  return scaled(on_mean_node(kernel), pace_);
}

Duration ComputeCost::on_mean_node(const Kernel& kernel) const {
  if (profile_ != nullptr) {
    const auto found = measured_.find(key_of(kernel));
    if (found != measured_.end()) return found->second;
    const Duration near = nearest(kernel);
    if (near.count() >= 0) return near;
  }
  return duration_from_seconds(kernel_seconds(kernel, device_));
}

// Negative if the profile holds no kernel of this kind.
Duration ComputeCost::nearest(const Kernel& kernel) const {
  const program::KernelTiming* best = nullptr;
  double best_distance = std::numeric_limits<double>::infinity();
  for (const program::KernelTiming& timing : profile_->kernels) {
    if (timing.kernel.kind != kernel.kind || timing.kernel.dtype != kernel.dtype) continue;
    const double d = distance(timing.kernel, kernel);
    if (d < best_distance) {
      best_distance = d;
      best = &timing;
    }
  }
  if (best == nullptr) return Duration(-1);
  const double work =
      is_flop_bound(kernel.kind)
          ? kernel.flops.count() / best->kernel.flops.count()
          : static_cast<double>(kernel.bytes.count()) /
                static_cast<double>(std::max<std::int64_t>(1, best->kernel.bytes.count()));
  return std::max(scaled(best->time, work), profile_->launch_overhead);
}

PassTimeline PassCost::timeline(const std::vector<Kernel>& kernels,
                                const std::vector<Duration>& collective_times) const {
  FORESAIL_EXPECT(kernels.size() == collective_times.size());
  const topologies::CostConstants& constants = compute_.device().constants;
  std::array<Duration, kLaneCount> free{};
  PassTimeline timeline;
  timeline.kernels.resize(kernels.size());
  Duration collectives_end{};
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const Kernel& kernel = kernels[i];
    const bool is_collective = kernel.kind == KernelKind::Collective;
    Duration& lane = free[static_cast<std::size_t>(is_collective ? kernel.lane : Lane::Compute)];
    Duration start = lane;
    for (const int before : kernel.after) {
      FORESAIL_EXPECT(before >= 0 && static_cast<std::size_t>(before) < i);
      start = std::max(start, timeline.kernels[static_cast<std::size_t>(before)].end);
    }
    Duration span{};
    if (is_collective) {
      span = collective_times[i];
      const bool is_awaited =
          i + 1 < kernels.size() && std::ranges::find(kernels[i + 1].after, static_cast<int>(i)) !=
                                        kernels[i + 1].after.end();
      if (!is_awaited && i + 1 < kernels.size()) {
        span = scaled(span, 1 + constants.overlap_inefficiency);
      }
    } else {
      span = compute_.kernel(kernel);
      if (start < collectives_end) {
        const Duration beside = collectives_end - start;
        const Duration done = scaled(beside, 1 / constants.overlap_slowdown);
        span = span <= done ? scaled(span, constants.overlap_slowdown) : beside + (span - done);
      }
    }
    timeline.kernels[i] = {start, start + span};
    lane = start + span;
    if (is_collective) collectives_end = std::max(collectives_end, lane);
    timeline.duration = std::max(timeline.duration, lane);
  }
  const double device = static_cast<double>(timeline.duration.count());
  const double host =
      static_cast<double>(host_per_kernel_.count()) * static_cast<double>(kernels.size());
  if (host > 0 && device > 0) {
    timeline.duration = Duration(std::llround(
        std::max(device, host) *
        std::pow(1 + std::pow(std::min(device, host) / std::max(device, host), 4), 0.25)));
  }
  return timeline;
}

}  // namespace foresail::sim
