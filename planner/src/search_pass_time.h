/// \file
/// Lower bounds of pass times, from parts that are priced once.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/topologies/device.h"

namespace foresail::planner {

/// A list of kernels whose times are known, in seconds.
struct PricedPart {
  struct Step {
    double seconds = 0;
    bool is_collective = false;
    bool is_beside = false;  ///< a collective that the next step does not wait for
    Lane lane = Lane::Compute;
    std::vector<int> after;  ///< within the part
  };
  std::vector<Step> steps;
  std::vector<int> unawaited;  ///< collectives that nothing in the part waits for
};

/// `price` gives the least time that a kernel or collective may take.
PricedPart price_part(const std::vector<Kernel>& kernels,
                      const std::function<double(const Kernel&)>& price);

/// When the lanes of one pass are free. Appending parts does what models::append does to lists: the
/// first kernel of a part waits for the unawaited collectives of the one before.
///
/// The simulator's pass is the same recursion (sim::PassCost), with the same slowdowns of compute
/// beside a collective and of a collective beside compute, which the host may lengthen. Each end
/// only grows with the ends and the times that it comes from: of a compute kernel that starts at t
/// beside collectives that end at c and slow it by the factor f, the end is min(t + f work,
/// c + work - (c - t) / f) where t < c. So no simulated pass is shorter than seconds().
class PassClock {
 public:
  explicit PassClock(const topologies::CostConstants& constants);

  void append(const PricedPart& part);
  /// What follows waits for no collective of what came before: less than the truth, where a list
  /// is a half of a split backward pass (models::split_backward moves such waits).
  void forget_unawaited() { carried_ = 0; }
  /// At least `host_per_kernel_s` for every kernel.
  double seconds(double host_per_kernel_s) const;

 private:
  double span(const PricedPart::Step& step, double start) const;

  std::array<double, kLaneCount> free_{};
  double last_ = 0;     // end of the last kernel to end
  double carried_ = 0;  // end of the unawaited collectives of the last part
  double collectives_end_ = 0;
  double slowdown_, inefficiency_;
  std::size_t kernels_ = 0;
  std::vector<double> ends_;  // of the part at hand
};

}  // namespace foresail::planner
