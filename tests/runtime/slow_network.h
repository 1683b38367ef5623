/// \file
/// A network that takes its time without using the processor, so that tests can see who waits for
/// it on a machine of any speed.
#pragma once

#include <chrono>
#include <memory>

#include "foresail/runtime/local.h"

namespace foresail::testing {

/// Messages and collectives of at least `bytes_min` bytes take `delay` longer, and `per_kib` for
/// every KiB of them.
struct Slowness {
  std::chrono::milliseconds delay{10};
  std::size_t bytes_min = 1024;
  std::chrono::microseconds per_kib{0};
};
/// One rank's end of `network`, which must outlive it.
std::unique_ptr<runtime::Endpoint> slow_endpoint(runtime::LocalNetwork& network,
                                                 const Slowness& slowness);

}  // namespace foresail::testing
