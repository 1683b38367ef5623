/// \file
/// What a rank is doing, for whoever watches it from another thread.
#pragma once

#include <chrono>
#include <string>

#include "foresail/base/names.h"

namespace foresail::runtime {

/// What keeps a rank from going on, as far as it can say itself.
enum class Occupation {
  BetweenSteps,  ///< it has ended a step, and nobody has begun the next
  OwnWork,       ///< a kernel, or loading a batch
  Peers,         ///< transfers alone, or what lies between kernels and waits for them
  Device,        ///< all is queued on a device that has not done it yet
};

struct Activity {
  Occupation occupation = Occupation::BetweenSteps;
  int step = 0;                      ///< that runs, or that comes next
  std::chrono::nanoseconds quiet{};  ///< since anything began or ended last
  std::string text;                  ///< "step 5: backward ... (fc1.dgrad)"
};

}  // namespace foresail::runtime

namespace foresail {
template <>
inline constexpr auto kNames<runtime::Occupation> =
    std::to_array<Named<runtime::Occupation>>({{runtime::Occupation::BetweenSteps, "between_steps"},
                                               {runtime::Occupation::OwnWork, "own_work"},
                                               {runtime::Occupation::Peers, "peers"},
                                               {runtime::Occupation::Device, "device"}});
}  // namespace foresail
