/// \file
/// The cluster's links as pipes of the fluid network, and the path of every queue pair over them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/sim/fluid_network.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// Fractions of line rate that transfers reach on links of each kind.
struct LineEfficiency {
  double nvlink = 1;  ///< links inside a node
  double nic = 1;     ///< links of NICs
  /// Switch to switch: 4096 of 4096 + 82 bytes on the wire (facts: RoCEv2 headers and gap).
  double fabric = 0.98;
};

/// What one flow takes of each pipe, per byte; and the switches on its longest way.
struct Load {
  std::map<std::uint32_t, double> pipes;  ///< PipeId value -> weight
  int hops = 0;
};

class Paths {
 public:
  /// `cluster` and `fluid` must outlive the paths.
  Paths(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
        const LineEfficiency& efficiency, std::uint64_t seed, FluidNetwork& fluid);

  /// Adds the way of `weight` bytes from one device to another: NVLink within a node, else the
  /// fabric by the routing of the options. `connection` numbers the queue pair: equal numbers
  /// between equal NICs are the same queue pair. Requires two different devices.
  void add(DeviceId from, DeviceId to, std::uint64_t connection, double weight, Load& load);

  /// Switches between two devices (0 within a node), without making pipes.
  int hops(DeviceId from, DeviceId to) const;

  PipeId pipe_of(LinkId link);
  /// "node12.nic3->leaf5", "leaf5 up (32 links)": for reports. Empty for what is no link.
  std::string pipe_name(PipeId pipe) const;
  bool is_between_switches(PipeId pipe) const;
  /// True if no bundle of switch links can be the bottleneck of any traffic (spraying over a
  /// fabric without oversubscription).
  bool is_non_blocking() const { return is_non_blocking_; }

 private:
  PipeId bundle(VertexId from_side, const std::vector<LinkId>& links, const std::string& name);
  void add_hashed(DeviceId from, DeviceId to, std::uint64_t connection, double weight, Load& load);
  void add_sprayed(DeviceId from, DeviceId to, double weight, Load& load);
  std::uint32_t queue_pair(VertexId nic, std::uint64_t connection, bool is_sender);
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
  bool is_non_blocking_ = false;
};

}  // namespace foresail::sim
