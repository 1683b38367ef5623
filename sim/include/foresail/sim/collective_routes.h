/// \file
/// Which links each channel of a collective loads, algorithm by algorithm, as NCCL lays them.
#pragma once

#include <cstdint>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/base/kernel.h"
#include "foresail/sim/paths.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// The devices of a communicator by node, and the channels through them.
struct CollectiveGroup {
  std::vector<std::vector<DeviceId>> nodes;  ///< in order of number
  /// Position within the node, by channel, of the GPU whose NIC carries it between nodes.
  std::vector<int> heads;
  std::uint64_t connection = 0;  ///< equal numbers share queue pairs

  std::size_t ranks() const;
  std::size_t narrowest() const;  ///< members of the smallest node
};

/// Parent of each node in one of the two trees over `nodes` nodes (-1: the root), in which every
/// node but one is a leaf of one tree and inside the other: the tree by lowest set bit, and its
/// mirror image (an even number of nodes) or its shift by one (odd). NCCL: src/graph/trees.cc.
std::vector<int> tree_parents(int nodes, int tree);

/// Every function answers one Load per coupled flow: the data that advances together. Weights are
/// bytes on the link per byte of the flow's amount, which is said for each.
class CollectiveRoutes {
 public:
  /// All must outlive this object.
  CollectiveRoutes(const topologies::Cluster& cluster, const topologies::NetworkOptions& options,
                   Paths& paths)
      : cluster_(cluster), options_(options), paths_(paths) {}

  /// One per channel; amount: the bytes of one edge. Between nodes a channel leaves by the NIC that
  /// NCCL_CROSS_NIC allows: 0, by which it came; 2, by its neighbour's and back on the next node,
  /// so that rails are kept, where the numbers are even; 1, by its neighbour's on every node.
  std::vector<Load> ring(const CollectiveGroup& group);
  /// Two per channel, one in each tree; amount: the bytes that go up (and come down).
  std::vector<Load> tree(const CollectiveGroup& group);
  /// One; amount: the operation's bytes. Of all_reduce each GPU's link carries 1 + 1/n each way.
  std::vector<Load> nvls(const CollectiveGroup& group, Collective kind);
  /// Two per head, one in each tree; amount: the bytes of that head and tree.
  std::vector<Load> nvls_tree(const CollectiveGroup& group);
  /// One per head: scatter within the node, ring between nodes, gather within the node, pipelined;
  /// amount: the operation's bytes over the members of a node.
  std::vector<Load> hierarchical(const CollectiveGroup& group, Collective kind);
  /// One; amount: the operation's bytes. Step k sends 2^k of n blocks to the rank 2^k further.
  std::vector<Load> pat(const CollectiveGroup& group);

  /// `weight` per byte from one device to another of another node, over all queue pairs of the
  /// connection, out by the NIC of `exit` (a device of from's node) and in by that of `entry`. With
  /// PXN data reach the NIC of another GPU over NVLink; without, they leave by from's own NIC.
  struct Crossing {
    DeviceId from, exit, entry, to;
    std::uint64_t pair = 0;  ///< of its queue pairs, the first
    double weight = 1;
  };
  void cross(const Crossing& crossing, Load& load);
  /// Within a node.
  void inside(DeviceId from, DeviceId to, double weight, Load& load);

 private:
  struct Ends {
    std::size_t in = 0, out = 0;
  };
  Ends ring_ends(const CollectiveGroup& group, std::size_t node, std::size_t rail) const;
  void tree_network(const CollectiveGroup& group, int tree, std::size_t rail, Load& load);
  std::uint64_t pair_of(const CollectiveGroup& group, std::size_t channel) const;

  const topologies::Cluster& cluster_;
  const topologies::NetworkOptions& options_;
  Paths& paths_;
};

}  // namespace foresail::sim
