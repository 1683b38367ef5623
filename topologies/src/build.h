/// \file
/// Lays down the vertices and cables of a cluster in the documented order.
#pragma once

#include <cstdint>

#include "foresail/topologies/cluster.h"
#include "node_shape.h"

namespace foresail::topologies {

struct GraphParts {
  IdVector<VertexId, Vertex> vertices;
  IdVector<LinkId, Link> links;

  /// Of rewired fabrics: which of the links with the same ends each one is, from 0. Empty: as they
  /// stand.
  std::vector<int> parallels;

  /// Both directions, `from` -> `to` first.
  void connect(std::int64_t from, std::int64_t to, Bandwidth bandwidth, Duration latency);
};

/// Nodes, fabric as planned, then the changes of the wiring. Requires options that obey all laws;
/// throws Error{InvalidInput} if the wiring names what is not there.
GraphParts build_graph(const Cluster::Options& options, const NodeShape& shape);

/// Adds the switches and cables between NICs of a dragonfly, a torus or a graph.
void add_direct_fabric(const Cluster::Options& options, const NodeShape& shape, GraphParts& parts);

/// Vertex of NIC `nic` of node `node`.
inline std::int64_t nic_position(const NodeShape& shape, std::int64_t node, std::int64_t nic) {
  return node * shape.size + shape.first_nic + nic;
}

}  // namespace foresail::topologies
