/// \file
/// Messages and collectives as flows over the paths of the cluster.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/kernel.h"
#include "foresail/base/units.h"
#include "foresail/sim/fluid_network.h"
#include "foresail/sim/paths.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// Something that moves data: `amount` bytes on each of `routes`, which advance independently; it
/// ends `latency` after the last of them.
struct TransferPlan {
  std::vector<RouteId> routes;
  double amount = 0;
  Duration latency{};
  int hops = 0;  ///< switches on the longest way
};

class Network {
 public:
  /// `cluster` must outlive the network.
  Network(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
          const LineEfficiency& efficiency, std::uint64_t seed);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// A message between two devices over its own connection. Amount and latency are filled in by
  /// message(); the routes are made once per ordered pair and connection.
  TransferPlan message(DeviceId from, DeviceId to, Bytes bytes);

  /// A collective among `devices`, by ring, or by double binary tree where that is faster
  /// (all_reduce). A ring is one coupled flow per channel, a channel per group member within a node
  /// (each through its own NIC), nodes in order of number. Latency: base + steps inside nodes and
  /// between nodes; volume per edge: (n-1)/n of the bytes, twice that for all_reduce (facts: NCCL
  /// tuning). Up to 64 KiB a collective is latency alone and has no routes. `connection` identifies
  /// the group's connections: equal numbers share queue pairs.
  TransferPlan collective(Collective kind, Bytes bytes, std::span<const DeviceId> devices,
                          std::uint64_t connection);

  /// Time of a transfer that meets no other.
  Duration alone(const TransferPlan& plan) const;

  FluidNetwork& fluid() { return fluid_; }
  const FluidNetwork& fluid() const { return fluid_; }
  Paths& paths() { return paths_; }
  const Paths& paths() const { return paths_; }
  const topologies::NetworkOptions& options() const { return options_; }

  /// Adds a pipe that is not a link (cores of a host).
  PipeId add_resource(double capacity);

 private:
  std::vector<std::vector<DeviceId>> by_node(std::span<const DeviceId> devices) const;
  RouteId ring_route(const std::vector<std::vector<DeviceId>>& nodes, std::size_t channel,
                     std::uint64_t connection, int& hops);
  double slowest_edge(bool is_between_nodes) const;

  const topologies::Cluster& cluster_;
  topologies::NetworkOptions options_;
  LineEfficiency efficiency_;
  FluidNetwork fluid_;
  Paths paths_;
  struct MessageRoutes {
    std::vector<RouteId> routes;
    int hops = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, MessageRoutes> messages_;
  std::map<std::uint64_t, std::pair<std::vector<RouteId>, int>> rings_;
};

}  // namespace foresail::sim
