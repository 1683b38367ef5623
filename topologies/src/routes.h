/// \file
/// Shortest equal-cost routes between switches: one table per destination leaf, made when it is
/// first asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// Part of a vertex's out_links.
struct HopRange {
  std::uint32_t first = 0;  ///< position among the out-links of the whole cluster
  std::uint32_t count = 0;
};

/// Keeps no reference to the cluster, so that copies of one cluster can share it.
struct Cluster::Routes {
  explicit Routes(const Cluster& cluster);
  ~Routes();
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;

  /// Next hops from `at`, a switch other than `leaf`. `cluster` is the one it was made for, or a
  /// copy of it.
  HopRange next_hops(const Cluster& cluster, VertexId at, VertexId leaf);

 private:
  struct SwitchGraph;  // Boost.Graph stays in routes.cpp
  void make_table(const Cluster& cluster, VertexId leaf);

  std::uint32_t first_switch_ = 0;  // switches are numbered last, leaves first among them
  std::unique_ptr<const SwitchGraph> graph_;
  std::unique_ptr<std::once_flag[]> once_;     // by leaf
  std::vector<std::vector<HopRange>> tables_;  // by leaf, by switch
};

}  // namespace foresail::topologies
