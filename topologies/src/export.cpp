#include "foresail/topologies/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "check_parts.h"
#include "exact_text.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

constexpr int kDrawnNodesMax = 64;
/// base/yaml.h takes two million nodes: eleven of a cable, five of a switch.
constexpr std::size_t kYamlNodesMax = 1'900'000;

CableEnd end_of(const Vertex& vertex) {
  if (vertex.kind == VertexKind::Nic) return {vertex.node, vertex.index, ""};
  return {-1, 0, vertex.name()};
}

/// `text` as a quoted identifier of GraphViz.
std::string dot_name(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// How nodes are drawn: each by itself, or those with the same leaves as one.
class NodeDrawing {
 public:
  explicit NodeDrawing(const WiringView& view);
  std::string name_of(int node) const { return names_[group_[static_cast<std::size_t>(node)]]; }
  std::string text() const;

 private:
  std::vector<std::size_t> group_;  // by node
  std::vector<std::string> names_;  // by group
  std::vector<int> sizes_;
  bool is_collapsed_ = false;
};

NodeDrawing::NodeDrawing(const WiringView& view) {
  const int nodes = view.cluster().options().nodes;
  is_collapsed_ = nodes > kDrawnNodesMax;
  std::vector<std::set<VertexId>> leaves(static_cast<std::size_t>(nodes));
  for (const VertexId nic : view.tier_members(0)) {
    auto& of_node = leaves[static_cast<std::size_t>(view.vertex(nic).node)];
    for (const std::size_t p : view.up(nic)) of_node.insert(view.pair(p).upper);
  }
  std::map<std::set<VertexId>, std::size_t> known;
  for (int n = 0; n < nodes; ++n) {
    const auto& of_node = leaves[static_cast<std::size_t>(n)];
    std::size_t group = names_.size();
    if (is_collapsed_) group = known.try_emplace(of_node, group).first->second;
    if (group == names_.size()) {
      names_.push_back(fmt::format("node{}", n));
      sizes_.push_back(0);
    }
    ++sizes_[group];
    group_.push_back(group);
  }
}

std::string NodeDrawing::text() const {
  std::string text;
  if (is_collapsed_) {
    text += fmt::format("  // nodes with the same leaves are drawn as one ({} of {})\n",
                        names_.size(), group_.size());
  }
  text += "  { rank=max; node [shape=box];\n";
  for (std::size_t g = 0; g < names_.size(); ++g) {
    text += "    " + dot_name(names_[g]);
    if (sizes_[g] > 1) {
      text += fmt::format(" [label={}]",
                          dot_name(fmt::format("{} and {} more", names_[g], sizes_[g] - 1)));
    }
    text += ";\n";
  }
  return text + "  }\n";
}

/// Cables that are drawn as one line.
struct Drawn {
  int count = 0;
  std::set<std::int64_t> rates;
};

std::string label_of(const Drawn& drawn) {
  const std::string low = to_text(Bandwidth::bps(*drawn.rates.begin()));
  const std::string rate =
      drawn.rates.size() == 1
          ? low
          : fmt::format("{} to {}", low, to_text(Bandwidth::bps(*drawn.rates.rbegin())));
  return drawn.count == 1 ? rate : fmt::format("{} x {}", drawn.count, rate);
}

}  // namespace

GraphSpec to_graph(const Cluster& cluster) {
  const WiringView view(cluster);
  GraphSpec graph;
  for (int tier = 1; tier <= view.tier_max(); ++tier) {
    for (const VertexId id : view.tier_members(tier)) {
      const bool is_cabled =
          !view.up(id).empty() || !view.down(id).empty() || !view.beside(id).empty();
      if (is_cabled) graph.switches.push_back({view.name(id), tier});
    }
  }
  for (const CablePair& pair : view.pairs()) {
    const CableEnd a = end_of(view.vertex(pair.lower));
    const CableEnd b = end_of(view.vertex(pair.upper));
    const std::size_t first = graph.cables.size();
    for (const LinkId id : pair.links) {
      const Link& link = cluster.links()[id];
      const auto same =
          std::find_if(graph.cables.begin() + static_cast<std::ptrdiff_t>(first),
                       graph.cables.end(), [&](const Cable& cable) {
                         return cable.bandwidth == link.bandwidth && cable.latency == link.latency;
                       });
      if (same != graph.cables.end()) {
        ++same->count;
      } else {
        graph.cables.push_back({a, b, link.bandwidth, link.latency, 1});
      }
    }
  }
  return graph;
}

Cluster::Options as_graph(const Cluster& cluster) {
  Cluster::Options options = cluster.options();
  if (!options.fabric.has_fabric()) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: a single host has no fabric to export", options.name));
  }
  const Duration latency = options.fabric.link_latency;
  options.fabric = {};
  options.fabric.kind = FabricKind::Graph;
  options.fabric.link_latency = latency;
  options.fabric.graph = to_graph(cluster);
  options.wiring.clear();
  const GraphSpec& graph = options.fabric.graph;
  if (11 * graph.cables.size() + 5 * graph.switches.size() > kYamlNodesMax) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: {} cables and {} switches are more than a YAML file may hold; "
                            "export as json or dot, or fewer gpus",
                            options.name, graph.cables.size(), graph.switches.size()));
  }
  return options;
}

std::string to_dot(const Cluster& cluster) {
  const WiringView view(cluster);
  const NodeDrawing nodes(view);
  std::string text = fmt::format("graph {} {{\n  rankdir=TB; ranksep=1.5; node [shape=ellipse];\n",
                                 dot_name(cluster.name()));
  for (int tier = view.tier_max(); tier >= 1; --tier) {
    text += fmt::format("  {{ rank=same; // tier {}\n", tier);
    for (const VertexId id : view.tier_members(tier)) {
      text += fmt::format("    {};\n", dot_name(view.name(id)));
    }
    text += "  }\n";
  }
  text += nodes.text();
  // Upper ends first, so that GraphViz ranks them above.
  std::map<std::pair<std::string, std::string>, std::size_t> index;
  std::vector<std::pair<std::pair<std::string, std::string>, Drawn>> lines;
  for (const CablePair& pair : view.pairs()) {
    const Vertex& lower = view.vertex(pair.lower);
    const std::string below =
        lower.kind == VertexKind::Nic ? nodes.name_of(lower.node) : lower.name();
    const std::pair ends(view.name(pair.upper), below);
    const auto [at, is_new] = index.try_emplace(ends, lines.size());
    if (is_new) lines.push_back({ends, {}});
    Drawn& drawn = lines[at->second].second;
    drawn.count += static_cast<int>(pair.links.size());
    for (const LinkId id : pair.links) {
      drawn.rates.insert(cluster.links()[id].bandwidth.bits_per_second());
    }
  }
  for (const auto& [ends, drawn] : lines) {
    text += fmt::format("  {} -- {} [label={}];\n", dot_name(ends.first), dot_name(ends.second),
                        dot_name(label_of(drawn)));
  }
  return text + "}\n";
}

Document graph_document(const Cluster& cluster) {
  Document document = {
      {"name", cluster.name()}, {"vertices", Document::array()}, {"links", Document::array()}};
  for (const Vertex& vertex : cluster.vertices()) {
    document["vertices"].push_back({{"name", vertex.name()},
                                    {"kind", std::string(to_string(vertex.kind))},
                                    {"node", vertex.node},
                                    {"index", vertex.index},
                                    {"tier", vertex.tier}});
  }
  for (std::uint32_t l = 0; l < cluster.links().size(); ++l) {
    const Link& link = cluster.links()[LinkId{l}];
    document["links"].push_back({{"name", cluster.link_name(LinkId{l})},
                                 {"from", cluster.vertices()[link.from].name()},
                                 {"to", cluster.vertices()[link.to].name()},
                                 {"bits_per_s", link.bandwidth.bits_per_second()},
                                 {"latency_s", to_seconds(link.latency)}});
  }
  return document;
}

}  // namespace foresail::topologies
