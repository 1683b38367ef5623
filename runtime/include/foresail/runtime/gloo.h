/// \file
/// Communicators of Gloo over TCP, for CPUs.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "foresail/runtime/communicator.h"
#include "foresail/runtime/store.h"

namespace foresail::runtime {

/// One process's network endpoint, shared by all its communicators.
class GlooEndpoint : public Endpoint {
 public:
  struct Options {
    /// Address or name of this host on which peers reach it; used unless `interface` is given.
    std::string host = "127.0.0.1";
    /// Network interface ("eth0"), or empty.
    std::string interface {};
    /// After which a call that waits for a peer fails.
    std::chrono::milliseconds timeout{std::chrono::minutes(10)};
    /// After which `connect` fails if a member cannot be reached.
    std::chrono::milliseconds connect_timeout{std::chrono::minutes(1)};
  };
  explicit GlooEndpoint(const Options& options);
  ~GlooEndpoint() override;

  /// Nobody but the members of `group` takes part.
  std::unique_ptr<Communicator> connect(const Group& group, Store& store) const override;
  void stand_by(const std::string&, Store&) const override {}
  void report_failure(const std::string&) const override {}

 private:
  struct Device;
  std::shared_ptr<Device> device_;  // shared with the communicators made from it
};

}  // namespace foresail::runtime
