/// \file
/// Messages and collectives as flows over the paths of the cluster.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/kernel.h"
#include "foresail/base/units.h"
#include "foresail/sim/collective_routes.h"
#include "foresail/sim/fluid_network.h"
#include "foresail/sim/nccl_tuning.h"
#include "foresail/sim/paths.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// Something that moves data: `amount` bytes on each of `routes`, which advance independently; it
/// ends `latency` after the last of them.
struct TransferPlan {
  std::vector<RouteId> routes;
  double amount = 0;
  std::vector<double> amounts;  ///< by route, where they differ (all_to_allv); else empty
  Duration latency{};
  int hops = 0;  ///< switches on the longest way
  /// Seconds that the busiest link of all routes together needs, with nothing else on it.
  double link_seconds = 0;
  /// Of collectives: what was chosen, and which part of the latency is not NCCL's steps but its
  /// copies (bandwidth that the links would have, but the GPUs lack).
  topologies::Algorithm algorithm = topologies::Algorithm::Auto;
  topologies::Protocol protocol = topologies::Protocol::Auto;
  int channels = 0;
  Duration copies{};
};

/// Latencies of collectives and messages as fitted on published training steps, in microseconds.
struct StepLatency {
  double base = 0;           ///< per collective
  double inside = 0;         ///< per ring step within a node
  double between_nodes = 0;  ///< per ring step between nodes
};

/// What sets the pace of a network's transfers.
struct NetworkPace {
  LineEfficiency efficiency;
  /// Present: rings and trees by Simple take these, one channel per member of a node, unless the
  /// options name an algorithm, protocol or channels. Absent: NCCL's tuning model with the device's
  /// launch overhead and latency factor.
  std::optional<StepLatency> fitted;
  /// Positions within a node whose NICs are missing: no channel uses them.
  std::vector<int> missing_nics;
  /// Links that reach only this fraction of their rate (> 0, at most 1) for collectives.
  std::map<LinkId, double> slow_links;
};

/// In training steps: the constants fitted on published steps (CostConstants).
NetworkPace training_pace(const topologies::DeviceSpec& device);
/// As nccl-tests runs alone: what NCCL's graph counts on of each link, and its tuning model.
NetworkPace nccl_pace(const topologies::DeviceSpec& device);

/// How much longer than NCCL's tables assume a step of a group between nodes takes by cables and
/// switches; never negative.
struct StepDelay {
  /// Mean over the edges of the rings: a ring's chain of steps passes each edge once a round.
  Duration ring{};
  /// Of the slowest edge of rings and trees: other algorithms may wait for it at each step.
  Duration slowest{};
};

/// Bytes from each rank of a group to each other, by position.
struct PairBytes {
  std::size_t ranks = 0;
  std::vector<double> bytes;  ///< row: sender; ranks * ranks
  double at(std::size_t from, std::size_t to) const { return bytes[from * ranks + to]; }
};

class Network {
 public:
  /// `cluster` must outlive the network.
  Network(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
          const NetworkPace& pace, std::uint64_t seed);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// A message between two devices over its own connection. Amount and latency are filled in by
  /// message(); the routes are made once per ordered pair and connection.
  TransferPlan message(DeviceId from, DeviceId to, Bytes bytes);

  /// A collective among `devices` by the algorithm and protocol that NCCL chooses, or the options
  /// name: its channels are coupled flows (CollectiveRoutes). Volume per link: the closed forms of
  /// the algorithm, twice for LL and 128/120 for LL128, whose flags travel along. Up to 64 KiB a
  /// collective is latency alone and has no routes. `connection` identifies the group's
  /// connections: equal numbers share queue pairs. Unless the pace is fitted, each step between
  /// nodes takes longer by what cables and switches take beyond the three switches and four cables
  /// of 450 ns that the model's latencies assume; NCCL knows nothing of it when it chooses. Throws
  /// Error{InvalidInput} if NCCL lacks what the options name.
  TransferPlan collective(Collective kind, Bytes bytes, std::span<const DeviceId> devices,
                          std::uint64_t connection);

  /// Every rank sends to every other, all pairs at once. With PXN and equal pairs, the data of a
  /// node for one GPU of another go out together by the NIC on that GPU's rail.
  TransferPlan all_to_all(const PairBytes& bytes, std::span<const DeviceId> devices,
                          std::uint64_t connection);

  /// Every rank sends `bytes` to the next of the group.
  TransferPlan send_recv(Bytes bytes, std::span<const DeviceId> devices, std::uint64_t connection);

  /// Time of a transfer that meets no other.
  Duration alone(const TransferPlan& plan) const;
  /// Time of transfers that start together: the longest latency, and the busiest link with all that
  /// they load on it. Exact where every flow crosses that link or ends no later, as in equal
  /// exchanges of equal groups; else a little too short.
  Duration together(std::span<const TransferPlan> plans) const;

  /// The group as NCCL's tuning model sees it.
  NcclShape shape(std::span<const DeviceId> devices) const;

  FluidNetwork& fluid() { return fluid_; }
  const FluidNetwork& fluid() const { return fluid_; }
  Paths& paths() { return paths_; }
  const Paths& paths() const { return paths_; }
  const topologies::NetworkOptions& options() const { return options_; }

  /// Adds a pipe that is not a link (cores of a host).
  PipeId add_resource(double capacity);

 private:
  /// The flows of one algorithm, made once per connection.
  struct Channels {
    std::vector<RouteId> routes;
    int hops = 0;
    double pace = 0;  ///< seconds per byte of amount on the busiest link of all routes together
  };
  using ChannelKey = std::tuple<std::uint64_t, topologies::Algorithm, Collective, int>;

  CollectiveGroup group_of(std::span<const DeviceId> devices, std::uint64_t connection) const;
  void lay_heads(CollectiveGroup& group, int channels) const;
  void connect_rings_twice(CollectiveGroup& group) const;
  TransferPlan exchange(const PairBytes& bytes, std::span<const DeviceId> devices,
                        std::uint64_t connection, std::size_t peers);
  TransferPlan fitted_collective(Collective kind, Bytes bytes, CollectiveGroup& group);
  TransferPlan tuned_collective(Collective kind, Bytes bytes, CollectiveGroup& group);
  TransferPlan volume(Collective kind, topologies::Algorithm algorithm, Bytes bytes,
                      CollectiveGroup& group);
  const Channels& channels_of(topologies::Algorithm algorithm, Collective kind,
                              const CollectiveGroup& group);
  Channels make_channels(const std::vector<Load>& loads, std::span<const double> amounts);
  NcclShape shape_of(const CollectiveGroup& group) const;
  Duration delay_of(const NcclCost& cost, const CollectiveGroup& group);
  double slowest_edge(bool is_between_nodes) const;
  bool is_fitted() const;

  const topologies::Cluster& cluster_;
  topologies::NetworkOptions options_;
  NetworkPace pace_;
  FluidNetwork fluid_;
  Paths paths_;
  CollectiveRoutes routes_;
  std::map<std::uint32_t, double> slowdown_;  // by pipe: what its bytes weigh
  std::map<std::pair<std::uint32_t, std::uint32_t>, Channels> messages_;
  std::map<ChannelKey, Channels> channels_;
  std::map<std::uint64_t, StepDelay> step_delays_;  // by connection
};

}  // namespace foresail::sim
