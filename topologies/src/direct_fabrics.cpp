#include <fmt/format.h>

#include <map>
#include <string>

#include "build.h"
#include "laws.h"

namespace foresail::topologies {
namespace {

void add_routers(std::int64_t count, GraphParts& parts) {
  for (int i = 0; i < count; ++i) {
    parts.vertices.push_back({VertexKind::Switch, -1, i, 1, fmt::format("router{}", i)});
  }
}

void connect_nics(const Cluster::Options& options, const NodeShape& shape, std::int64_t first,
                  GraphParts& parts) {
  const std::int64_t per_router = options.fabric.kind == FabricKind::Torus
                                      ? options.node.nics
                                      : options.fabric.dragonfly.nics_per_router;
  const std::int64_t nics = std::int64_t{options.nodes} * options.node.nics;
  for (std::int64_t nic = 0; nic < nics; ++nic) {
    parts.connect(nic_position(shape, nic / options.node.nics, nic % options.node.nics),
                  first + nic / per_router, options.node.nic_bandwidth,
                  options.fabric.link_latency);
  }
}

/// Global port c * (g - 1) + o of a group leads to the group o + 1 further on, modulo g; ports are
/// numbered router by router. Seen from there, this group is g - 2 - o + 1 further on.
void connect_dragonfly(const FabricSpec& fabric, std::int64_t first, GraphParts& parts) {
  const DragonflySpec& spec = fabric.dragonfly;
  for (std::int64_t group = 0; group < spec.groups; ++group) {
    const std::int64_t own = first + group * spec.routers_per_group;
    for (int i = 0; i < spec.routers_per_group; ++i) {
      for (int j = i + 1; j < spec.routers_per_group; ++j) {
        parts.connect(own + i, own + j, spec.local_bandwidth, fabric.link_latency);
      }
    }
  }
  if (spec.groups == 1) return;
  const std::int64_t others = spec.groups - 1;
  const std::int64_t copies = spec.routers_per_group * spec.global_links / others;
  for (std::int64_t group = 0; group < spec.groups; ++group) {
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      for (std::int64_t offset = 0; group + offset + 1 < spec.groups; ++offset) {
        const std::int64_t port = copy * others + offset;
        const std::int64_t far_port = copy * others + (others - 1 - offset);
        const std::int64_t far = group + offset + 1;
        parts.connect(first + group * spec.routers_per_group + port / spec.global_links,
                      first + far * spec.routers_per_group + far_port / spec.global_links,
                      spec.global_bandwidth, fabric.link_latency);
      }
    }
  }
}

void connect_torus(const FabricSpec& fabric, std::int64_t first, GraphParts& parts) {
  std::int64_t routers = 1;
  for (const int size : fabric.torus.dimensions) routers *= size;
  for (std::int64_t router = 0; router < routers; ++router) {
    std::int64_t stride = 1;
    for (const int size : fabric.torus.dimensions) {
      const std::int64_t at = router / stride % size;
      const bool is_last = at + 1 == size;
      // A ring: the last meets the first again, unless they already share their only cable.
      if (!is_last || size > 2) {
        const std::int64_t next = is_last ? router - at * stride : router + stride;
        parts.connect(first + router, first + next, fabric.torus.bandwidth, fabric.link_latency);
      }
      stride *= size;
    }
  }
}

class GraphBuilder {
 public:
  GraphBuilder(const Cluster::Options& options, const NodeShape& shape, GraphParts& parts)
      : graph_(options.fabric.graph), shape_(shape), parts_(parts) {}

  void add_switches() {
    std::map<int, int> of_tier;
    for (const GraphSwitch& item : graph_.switches) {
      position_[item.name] = static_cast<std::int64_t>(parts_.vertices.size());
      parts_.vertices.push_back(
          {VertexKind::Switch, -1, of_tier[item.tier]++, item.tier, item.name});
    }
  }
  void connect() {
    for (const Cable& cable : graph_.cables) {
      for (int i = 0; i < cable.count; ++i) {
        parts_.connect(end(cable.a), end(cable.b), cable.bandwidth, cable.latency);
      }
    }
  }

 private:
  std::int64_t end(const CableEnd& item) const {
    if (item.switch_name.empty()) return nic_position(shape_, item.node, item.nic);
    return position_.at(item.switch_name);
  }

  const GraphSpec& graph_;
  const NodeShape& shape_;
  GraphParts& parts_;
  std::map<std::string, std::int64_t> position_;
};

}  // namespace

void add_direct_fabric(const Cluster::Options& options, const NodeShape& shape, GraphParts& parts) {
  const FabricSpec& fabric = options.fabric;
  const auto first = static_cast<std::int64_t>(parts.vertices.size());
  if (fabric.kind == FabricKind::Graph) {
    GraphBuilder graph(options, shape, parts);
    graph.add_switches();
    graph.connect();
    return;
  }
  add_routers(switch_count(options), parts);
  connect_nics(options, shape, first, parts);
  if (fabric.kind == FabricKind::Dragonfly) {
    connect_dragonfly(fabric, first, parts);
  } else {
    connect_torus(fabric, first, parts);
  }
}

}  // namespace foresail::topologies
