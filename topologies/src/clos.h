/// \file
/// How many switches and parallel links a folded Clos has for a number of nodes, and the laws that
/// it must obey. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// The tiers as built. Leaf `(group * rails + rail) * nic_ports + port` serves that port of the
/// NICs of one rail in one group of nodes. Spine `pod * spines_per_pod + plane * spines_per_plane +
/// s` meets every leaf of its pod and plane; core `j * cores_per_spine + c` meets spine j of each
/// pod.
struct ClosShape {
  std::int64_t groups = 0;  ///< of nodes that share leaves
  std::int64_t leaves = 0;
  std::int64_t pods = 0;              ///< two tiers: 1
  std::int64_t pods_per_rail = 0;     ///< PodOrder::Rail only
  std::int64_t spines_per_pod = 0;    ///< 0: no tier 2
  std::int64_t spines_per_plane = 0;  ///< of one pod
  std::int64_t leaf_parallel = 0;     ///< links between one leaf and one spine of its pod and plane
  std::int64_t cores_per_spine = 0;   ///< 0: no tier 3
  std::int64_t spine_parallel = 0;    ///< links between one spine and one of its cores

  std::int64_t spines() const { return pods * spines_per_pod; }
  std::int64_t cores() const { return spines_per_pod * cores_per_spine; }
};

ClosShape clos_shape(const Cluster::Options& options);

/// Pod of a leaf. Requires at least two tiers.
std::int64_t pod_of(std::int64_t leaf, const FabricSpec& fabric, const ClosShape& shape);
/// Plane of a leaf: 0 unless the ports of a NIC lead to planes that do not meet.
std::int64_t plane_of(std::int64_t leaf, const FabricSpec& fabric);

/// Links of the fabric, both directions.
std::int64_t clos_links(const Cluster::Options& options);

/// The first law that the fabric breaks, with every term in it; nothing if all hold.
std::optional<std::string> clos_law(const Cluster::Options& options);

}  // namespace foresail::topologies
