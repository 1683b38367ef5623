#include "routes.h"

#include <algorithm>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <limits>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

constexpr std::uint32_t kUnreached = std::numeric_limits<std::uint32_t>::max();

using Graph =
    boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                       boost::no_property, std::uint32_t, std::uint32_t>;

}  // namespace

/// Switches alone, parallel links merged.
struct Cluster::Routes::SwitchGraph {
  Graph graph;
};

Cluster::Routes::Routes(const Cluster& cluster) {
  std::uint32_t vertex = 0;
  std::size_t leaves = 0;
  for (const Vertex& item : cluster.vertices()) {
    if (item.kind != VertexKind::Switch) first_switch_ = vertex + 1;
    if (item.kind == VertexKind::Switch && item.tier == 1) ++leaves;
    ++vertex;
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (const Link& link : cluster.links()) {
    if (link.from.value < first_switch_ || link.to.value < first_switch_) continue;
    edges.emplace_back(link.from.value - first_switch_, link.to.value - first_switch_);
  }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  graph_ = std::make_unique<const SwitchGraph>(SwitchGraph{
      Graph(boost::edges_are_sorted, edges.begin(), edges.end(), vertex - first_switch_)});
  once_ = std::make_unique<std::once_flag[]>(leaves);
  tables_.resize(leaves);
}

Cluster::Routes::~Routes() = default;

void Cluster::Routes::make_table(const Cluster& cluster, VertexId leaf) {
  const std::uint32_t root = leaf.value - first_switch_;
  std::vector<std::uint32_t> distance(boost::num_vertices(graph_->graph), kUnreached);
  distance[root] = 0;
  const auto distances =
      boost::make_iterator_property_map(distance.begin(), get(boost::vertex_index, graph_->graph));
  // Every cable has two directions, so the distance from the leaf is that to it.
  boost::breadth_first_search(graph_->graph, root,
                              boost::visitor(boost::make_bfs_visitor(
                                  boost::record_distances(distances, boost::on_tree_edge()))));

  std::vector<HopRange> table(distance.size());
  for (std::uint32_t at = 0; at < distance.size(); ++at) {
    if (at == root) continue;
    FORESAIL_EXPECT(distance[at] != kUnreached);
    const VertexId vertex{first_switch_ + at};
    HopRange range{cluster.out_offsets_[vertex.value], 0};
    for (const LinkId link : cluster.out_links(vertex)) {
      const std::uint32_t to = cluster.links()[link].to.value;
      const bool is_closer =
          to >= first_switch_ && distance[to - first_switch_] + 1 == distance[at];
      if (is_closer) {
        ++range.count;
      } else if (range.count == 0) {
        ++range.first;
      }
    }
    // In a folded Clos the closer links stand together: all uplinks, or the parallel links to one
    // switch below. So a range says which they are.
    for (std::uint32_t i = 0; i < range.count; ++i) {
      const std::uint32_t to = cluster.links()[cluster.out_links_[range.first + i]].to.value;
      FORESAIL_EXPECT(to >= first_switch_ && distance[to - first_switch_] + 1 == distance[at]);
    }
    table[at] = range;
  }
  tables_[root] = std::move(table);
}

HopRange Cluster::Routes::next_hops(const Cluster& cluster, VertexId at, VertexId leaf) {
  const std::uint32_t row = leaf.value - first_switch_;
  std::call_once(once_[row], [&] { make_table(cluster, leaf); });
  return tables_[row][at.value - first_switch_];
}

}  // namespace foresail::topologies
