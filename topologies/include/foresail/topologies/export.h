/// \file
/// A cluster's graph for other tools: YAML that reads back, GraphViz, JSON.
#pragma once

#include <string>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/graph.h"

namespace foresail::topologies {

enum class ExportFormat { Yaml, Dot, Json };

/// The fabric cable by cable: what the builder and the wiring made of the cluster's description.
GraphSpec to_graph(const Cluster& cluster);

/// The cluster with its fabric as a graph and no wiring left: Cluster(result) has the same
/// vertices, names and cables of the fabric, in an order of its own. Throws Error{InvalidInput}
/// without a fabric, or where the graph is larger than a YAML file may be (some 170,000 cables).
Cluster::Options as_graph(const Cluster& cluster);

/// GraphViz: switches ranked by tier, cables undirected with their bandwidth as label; above 64
/// nodes, the nodes that are cabled to the same leaves are drawn as one.
std::string to_dot(const Cluster& cluster);

/// `{name, vertices: [{name, kind, node, index, tier}], links: [{name, from, to, bits_per_s,
/// latency_s}]}`; each direction of a cable is a link, vertices and links in the cluster's order.
Document graph_document(const Cluster& cluster);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::ExportFormat> =
    std::to_array<Named<topologies::ExportFormat>>({{topologies::ExportFormat::Yaml, "yaml"},
                                                    {topologies::ExportFormat::Dot, "dot"},
                                                    {topologies::ExportFormat::Json, "json"}});
}  // namespace foresail
