/// \file
/// The cluster's links as pipes, and the routes of messages and rings over them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/kernel.h"
#include "foresail/base/units.h"
#include "foresail/sim/fluid_network.h"
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

/// Efficiencies (topologies::CostConstants): NIC links carry `nic` and NVLink `nvlink` of their
/// line rate; switch-to-switch links 98 % (RoCEv2 headers at 4096-byte packets).
class Network {
 public:
  /// `cluster` must outlive the network.
  Network(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
          std::uint64_t seed);

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

  /// Switches between two devices (0 within a node), without making a route.
  int hops(DeviceId from, DeviceId to) const;

  /// Time of a transfer that meets no other.
  Duration alone(const TransferPlan& plan) const;

  FluidNetwork& fluid() { return fluid_; }
  const FluidNetwork& fluid() const { return fluid_; }
  /// "node12.nic3->leaf5", "leaf5->aggregation (all)": for reports. Only pipes of the fabric.
  std::string pipe_name(PipeId pipe) const;
  bool is_between_switches(PipeId pipe) const;
  /// True if no bundle of switch links can be the bottleneck of any traffic (spraying over a
  /// fabric without oversubscription).
  bool is_non_blocking() const { return is_non_blocking_; }
  const topologies::NetworkOptions& options() const { return options_; }

  /// Adds a pipe that is not a link (cores of a host).
  PipeId add_resource(double capacity);

 private:
  PipeId pipe_of(LinkId link);
  PipeId bundle(VertexId from_side, const std::vector<LinkId>& links, const std::string& name);
  void add_fabric_hashed(DeviceId from, DeviceId to, std::uint64_t connection, double weight,
                         std::map<std::uint32_t, double>& load, int& hops);
  void add_fabric_sprayed(DeviceId from, DeviceId to, double weight,
                          std::map<std::uint32_t, double>& load, int& hops);
  void add_edge(DeviceId from, DeviceId to, std::uint64_t connection, double weight,
                std::map<std::uint32_t, double>& load, int& hops);
  std::vector<std::vector<DeviceId>> by_node(std::span<const DeviceId> devices) const;
  RouteId ring_route(const std::vector<std::vector<DeviceId>>& nodes, std::size_t channel,
                     std::uint64_t connection, int& hops);
  double slowest_edge(bool is_between_nodes) const;
  std::uint32_t queue_pair(VertexId nic, std::uint64_t connection, bool is_sender);
  std::uint32_t seed_of(VertexId at) const;
  RouteId make_route(const std::map<std::uint32_t, double>& load);

  const topologies::Cluster& cluster_;
  topologies::NetworkOptions options_;
  std::uint64_t seed_;
  FluidNetwork fluid_;
  std::vector<std::int32_t> pipe_of_link_;  // -1: no pipe yet
  std::vector<LinkId> link_of_pipe_;
  std::map<std::uint32_t, std::string> bundle_names_;
  std::map<std::pair<std::uint32_t, int>, PipeId> bundles_;
  std::map<std::uint32_t, std::uint32_t> next_qpn_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> qpns_;
  struct MessageRoutes {
    std::vector<RouteId> routes;
    int hops = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, MessageRoutes> messages_;
  std::map<std::uint64_t, std::pair<std::vector<RouteId>, int>> rings_;
  bool is_non_blocking_ = false;
};

}  // namespace foresail::sim
