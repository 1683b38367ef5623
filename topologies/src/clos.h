/// \file
/// How many switches and parallel links a folded Clos has for a number of nodes, and the laws that
/// a cluster must obey. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// The tiers as built. Leaf `group * rails + rail` serves the NICs of one rail in one group of
/// nodes. Spine `pod * spines_per_pod + plane` meets every leaf of its pod; core
/// `plane * cores_per_plane + c` meets the spines of its plane in every pod.
struct ClosShape {
  std::int64_t groups = 0;  ///< of nodes that share leaves
  std::int64_t leaves = 0;
  std::int64_t pods = 0;             ///< two tiers: 1
  std::int64_t pods_per_rail = 0;    ///< PodOrder::Rail only
  std::int64_t spines_per_pod = 0;   ///< 0: no tier 2
  std::int64_t leaf_parallel = 0;    ///< links between one leaf and one spine of its pod
  std::int64_t cores_per_plane = 0;  ///< 0: no tier 3
  std::int64_t spine_parallel = 0;   ///< links between one spine and one core of its plane

  std::int64_t spines() const { return pods * spines_per_pod; }
  std::int64_t cores() const { return spines_per_pod * cores_per_plane; }
};

ClosShape clos_shape(const Cluster::Options& options);

/// Pod of a leaf. Requires at least two tiers.
std::int64_t pod_of(std::int64_t leaf, const FabricSpec& fabric, const ClosShape& shape);

/// Devices, switches and NICs; links in both directions.
std::int64_t vertex_count(const Cluster::Options& options, const ClosShape& shape);
std::int64_t link_count(const Cluster::Options& options, const ClosShape& shape);

/// The first law that the parts break, with every term in it; nothing if they fit together.
std::optional<std::string> broken_law(const Cluster::Options& options);

}  // namespace foresail::topologies
