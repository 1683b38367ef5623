/// \file
/// A network that takes its time without using the processor, so that tests can see who waits for
/// it on a machine of any speed.
#pragma once

#include <chrono>
#include <memory>

#include "foresail/runtime/local.h"

namespace foresail::testing {

/// One rank's end of `network`, whose messages and collectives of at least `bytes_min` bytes take
/// `delay` longer.
struct SlowNetwork {
  runtime::LocalNetwork& network;
  std::chrono::milliseconds delay{10};
  std::size_t bytes_min = 1024;
};
std::unique_ptr<runtime::Endpoint> slow_endpoint(const SlowNetwork& slow);

}  // namespace foresail::testing
