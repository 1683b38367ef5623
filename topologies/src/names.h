/// \file
/// From names back to vertices and links.
#pragma once

#include <optional>
#include <string_view>

#include "build.h"

namespace foresail::topologies {

/// How many vertices belong to nodes, which stand first, and how many to one.
struct NodeRange {
  std::uint32_t nodes = 0;
  std::uint32_t per_node = 0;
};

/// The vertex whose name() is `name`. O(1) in the number of nodes, O(switches).
std::optional<VertexId> find_vertex(const IdVector<VertexId, Vertex>& vertices,
                                    const NodeRange& range, std::string_view name);

/// A link "from->to" or "from->to#2" by its ends, in which `parallel` counts from 0.
struct LinkName {
  VertexId from, to;
  int parallel = 0;
};
std::optional<LinkName> parse_link_name(const IdVector<VertexId, Vertex>& vertices,
                                        const NodeRange& range, std::string_view name);

}  // namespace foresail::topologies
