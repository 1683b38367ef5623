/// \file
/// Shortest routes of a cluster while some of its links are down.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// Equal-cost next hops by number of hops. A table per set of switches that hold a destination
/// (per leaf in a Clos), filled outwards only as far as it is asked for; a switch whose closer
/// links do not stand together in `out_links` refers to a list that equal answers share. May be
/// asked from several threads; answers do not depend on the order of the questions.
class RouteTables {
 public:
  /// `down` are single directions: a dead cable is both its links. O(links). The cluster must
  /// outlive the tables.
  explicit RouteTables(const Cluster& cluster, const std::vector<LinkId>& down = {});
  ~RouteTables();
  RouteTables(const RouteTables&) = delete;
  RouteTables& operator=(const RouteTables&) = delete;

  /// As Cluster::next_hops, over the links that are up; empty if no way is left.
  std::span<const LinkId> next_hops(VertexId at, VertexId destination_nic) const;

 private:
  const Cluster& cluster_;
  std::unique_ptr<Cluster::Routes> routes_;
};

}  // namespace foresail::topologies
