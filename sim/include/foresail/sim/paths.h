/// \file
/// The cluster's links as pipes of the fluid network, and the path of every queue pair over them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/sim/ecmp.h"
#include "foresail/sim/fluid_network.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::topologies {
class RouteTables;
}

namespace foresail::sim {

/// Fractions of line rate that transfers reach on links of each kind.
struct LineEfficiency {
  double nvlink = 1;  ///< links inside a node
  double nic = 1;     ///< links of NICs
  /// Switch to switch: 4096 of 4096 + 82 bytes on the wire (facts: RoCEv2 headers and gap).
  double fabric = 0.98;
};

/// A part of a flow: `weight` of its bytes go from one device to another over a queue pair.
struct Leg {
  DeviceId from, to;
  std::uint64_t connection = 0;
  double weight = 1;
};

/// The pipes of a leg in order, with what each takes per byte of the flow.
using Way = std::vector<RouteEntry>;

/// What one flow takes of each pipe, per byte; and the switches on its longest way.
struct Load {
  std::map<std::uint32_t, double> pipes;  ///< PipeId value -> weight
  std::vector<Leg> legs;                  ///< what it was made of
  std::vector<Way> ways;                  ///< of the legs, if the paths keep them
  int hops = 0;
};

class Paths {
 public:
  /// `cluster` and `fluid` must outlive the paths.
  Paths(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
        const LineEfficiency& efficiency, std::uint64_t seed, FluidNetwork& fluid);

  /// Adds the way of `weight` bytes from one device to another: NVLink within a node, else the
  /// fabric by the routing of the options. `connection` numbers the queue pair: equal numbers
  /// between equal NICs are the same queue pair. Requires two different devices. Throws
  /// Error{InvalidInput} if the cluster has no way between them.
  void add(DeviceId from, DeviceId to, std::uint64_t connection, double weight, Load& load);

  /// The route of a load. Its legs are kept, to find new ways and to name who collides.
  RouteId make_route(const Load& load);

  /// The ways of a route's legs, and each pipe that belongs to no leg as a way of its own. Only
  /// under sharing pfc, whose routes take single paths; else empty.
  const std::vector<Way>& ways(RouteId route) const { return ways_[route.value]; }

  /// From `now` on a link has `factor` of its bandwidth; returns its pipe (of all links that it is
  /// sprayed over together, which loses its part). A link with factor 0 stays in the routes until
  /// reroute().
  PipeId set_factor(LinkId link, double factor, SimTime now);
  /// What the pipe carries when nothing is wrong with its links.
  double healthy_rate(PipeId pipe) const;
  /// Switches notice: routes are found anew without the links whose factor is 0.
  void reroute();
  /// The way of `route` since the last reroute(): itself if it has none but its old one.
  RouteId current(RouteId route);

  /// "node12.nic3->node40.nic3 qp 17": the first leg of the route, or the first that loads `pipe`.
  std::string describe(RouteId route) const;
  std::string describe(RouteId route, PipeId pipe);

  /// Switches between two devices (0 within a node), without making pipes.
  int hops(DeviceId from, DeviceId to) const;

  PipeId pipe_of(LinkId link);
  /// "node12.nic3->leaf5", "leaf5 up (32 links)": for reports. Empty for what is no link.
  std::string pipe_name(PipeId pipe) const;
  bool is_between_switches(PipeId pipe) const;
  /// The one link that is this pipe; none for bundles and resources.
  std::optional<LinkId> link_of(PipeId pipe) const;
  /// True if no bundle of switch links can be the bottleneck of any traffic (spraying over a
  /// fabric without oversubscription).
  bool is_non_blocking() const { return is_non_blocking_; }

 private:
  PipeId bundle(VertexId from_side, const std::vector<LinkId>& links, const std::string& name);
  bool has_full_bisection() const;
  double line_rate(LinkId link) const;
  double healthy_rate(LinkId link) const;
  double bundle_rate(const std::vector<LinkId>& links) const;
  double share_of(LinkId link) const;
  std::span<const LinkId> next_hops(VertexId at, VertexId nic) const;
  std::size_t choose(VertexId at, std::span<const LinkId> next, const FiveTuple& tuple,
                     std::uint64_t below) const;
  // False if there is no way.
  bool add_leg(const Leg& leg, Load& load);
  bool add_way(const Leg& leg, Load& load);
  void load_link(LinkId link, const Leg& leg, Load& load);
  // Returns the number of links behind the far NIC, which it loads before those of the fabric.
  std::size_t add_node_part(const Leg& leg, Load& load);
  bool add_single_path(const Leg& leg, Load& load);
  std::vector<Way> all_ways(const Load& load) const;
  bool add_sprayed(const Leg& leg, Load& load);
  bool add_split(const Leg& leg, Load& load);
  std::string describe(const Leg& leg) const;
  [[noreturn]] void refuse(const Leg& leg) const;
  std::uint32_t queue_pair(VertexId nic, std::uint64_t connection, bool is_sender);
  std::size_t port_of(const FiveTuple& tuple, std::uint64_t connection, std::size_t ports);
  std::uint32_t seed_of(VertexId at) const;

  const topologies::Cluster& cluster_;
  const topologies::NetworkOptions& options_;
  LineEfficiency efficiency_;
  std::uint64_t seed_;
  FluidNetwork& fluid_;
  std::vector<std::int32_t> pipe_of_link_;  // -1: no pipe yet
  std::vector<LinkId> link_of_pipe_;
  std::map<std::uint32_t, std::string> bundle_names_;
  std::map<std::pair<std::uint32_t, int>, PipeId> bundles_;
  std::map<std::uint32_t, std::uint32_t> next_qpn_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> qpns_;
  std::map<std::uint32_t, std::uint32_t> next_turn_;  // by NIC: queue pairs that send
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, std::uint32_t> turns_;
  std::map<std::uint32_t, double> factors_;  // by link, where it is not 1
  SimTime changed_{};                        // the last of them
  std::map<std::uint32_t, PipeId> bundle_of_link_;
  std::map<std::uint32_t, std::vector<LinkId>> bundle_links_;  // by pipe
  std::vector<std::vector<Leg>> legs_;                         // by route
  /// What is known while a set of links is down.
  struct Epoch {
    std::shared_ptr<const topologies::RouteTables> tables;
    std::map<std::uint32_t, RouteId> routes;  // by old route
  };
  std::map<std::vector<LinkId>, Epoch> epochs_;  // since the first reroute
  std::map<std::uint32_t, RouteId>* current_ = nullptr;
  std::vector<std::vector<Way>> ways_;                     // by route
  Way way_;                                                // of the leg that is being added
  std::shared_ptr<const topologies::RouteTables> tables_;  // without what is down; null: all up
  std::vector<std::shared_ptr<const topologies::RouteTables>> laid_;  // by route: tables_ then
  bool has_bundles_ = false;  // links of a folded Clos are sprayed over as one pipe
  bool is_non_blocking_ = false;
};

}  // namespace foresail::sim
