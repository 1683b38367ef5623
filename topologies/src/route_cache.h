/// \file
/// Route tables of one cluster with some links down, filled as they are asked for.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

/// Keeps no reference to the cluster, so that copies of one cluster can share it; every call gets
/// the cluster it was made for, or a copy of it.
///
/// One table per set of switches from which a NIC is reached. The search starts from all of them
/// and goes outwards by whole levels (hops), only until the switch that was asked for; an entry
/// holds the level and, once asked for, where the closer links stand. So an answer depends on the
/// graph alone, not on earlier questions.
class Cluster::Routes {
 public:
  Routes(const Cluster& cluster, const std::vector<LinkId>& down);
  ~Routes();
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;

  std::span<const LinkId> next_hops(const Cluster& cluster, VertexId at, VertexId nic);

 private:
  struct Table;

  bool is_up(LinkId link) const { return down_.empty() || !down_[link.value]; }
  bool is_switch(VertexId vertex) const { return vertex.value >= first_switch_; }
  void index_neighbours(const Cluster& cluster);
  void index_tables(const Cluster& cluster);
  std::vector<std::uint32_t> attachments(const Cluster& cluster, VertexId nic) const;

  void open(Table& table) const;
  bool advance(Table& table) const;
  std::uint32_t level_of(Table& table, std::uint32_t row) const;
  std::span<const LinkId> from_nic(const Cluster& cluster, VertexId at, VertexId nic, Table& table);
  std::span<const LinkId> to_attached(const Cluster& cluster, VertexId at, VertexId nic);
  std::span<const LinkId> fill(const Cluster& cluster, VertexId at, Table& table);
  std::span<const LinkId> list(std::uint32_t index) const;
  template <class Predicate>
  std::span<const LinkId> pick(std::span<const LinkId> links, const Predicate& is_wanted);

  std::uint32_t first_switch_ = 0;  // switches are numbered last; rows count from here
  std::uint32_t switches_ = 0;
  std::vector<bool> down_;                 // by link; empty if none is down
  std::vector<std::uint32_t> in_offsets_;  // by row, into in_rows_
  std::vector<std::uint32_t> in_rows_;     // rows with a link to this row, each once
  /// By out-link of a switch, in order: the row that it leads to; none if to a NIC, or down.
  std::vector<std::uint32_t> row_of_out_link_;
  std::vector<std::uint32_t> table_of_;  // by vertex below first_switch_: of NICs
  std::vector<std::unique_ptr<Table>> tables_;

  // Lists that are no part of out_links, each kept once.
  mutable std::shared_mutex lists_mutex_;
  std::map<std::vector<LinkId>, std::uint32_t> index_of_list_;
  std::vector<const std::vector<LinkId>*> lists_;
};

}  // namespace foresail::topologies
