/// \file
/// All ranks in one process, as threads: collectives through common memory, without a network.
#pragma once

#include <chrono>
#include <memory>

#include "foresail/runtime/communicator.h"

namespace foresail::runtime {

/// Where the ranks of a job meet in memory. Sums are formed in the order of GlooEndpoint's: part r
/// of n (ceil(count / n) elements, the last fewer) is x[r+1] + x[r+2] + ... + x[r], from left to
/// right, so that both networks train bitwise equal weights.
class LocalNetwork {
 public:
  /// A rank that waits longer than `timeout` for its peers throws Error{Device}.
  explicit LocalNetwork(std::chrono::milliseconds timeout = std::chrono::minutes(10));
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

  /// One rank's end; the network must outlive it and its communicators. Its store is not used.
  std::unique_ptr<Endpoint> endpoint();

 private:
  friend class LocalEndpoint;
  class Rooms;
  std::unique_ptr<Rooms> rooms_;
};

}  // namespace foresail::runtime
