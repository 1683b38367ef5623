#include "foresail/sim/collective_routes.h"

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::sim {
namespace {

// Rings' connections are numbered past those of both trees.
constexpr std::size_t kRingChannels = 4096;
constexpr unsigned kPairBits = 8;  // queue pairs of a connection

// Parent in the tree by lowest set bit.
int parent_of(int nodes, int node) {
  if (node == 0) return -1;
  int bit = 1;
  while ((node & bit) == 0) bit <<= 1;
  const int up = (node ^ bit) | (bit << 1);
  return up >= nodes ? node ^ bit : up;
}

std::size_t neighbour(std::size_t position, std::size_t count) {
  const std::size_t other = position ^ std::size_t{1};
  return other < count ? other : position;
}

}  // namespace

std::size_t CollectiveGroup::ranks() const {
  std::size_t count = 0;
  for (const auto& members : nodes) count += members.size();
  return count;
}

std::size_t CollectiveGroup::narrowest() const {
  std::size_t least = nodes.front().size();
  for (const auto& members : nodes) least = std::min(least, members.size());
  return least;
}

std::vector<int> tree_parents(int nodes, int tree) {
  std::vector<int> parents;
  for (int node = 0; node < nodes; ++node) {
    if (tree == 0) {
      parents.push_back(parent_of(nodes, node));
    } else if (nodes % 2 == 0) {
      const int up = parent_of(nodes, nodes - 1 - node);
      parents.push_back(up < 0 ? -1 : nodes - 1 - up);
    } else {
      const int up = parent_of(nodes, (node - 1 + nodes) % nodes);
      parents.push_back(up < 0 ? -1 : (up + 1) % nodes);
    }
  }
  return parents;
}

std::uint64_t CollectiveRoutes::pair_of(const CollectiveGroup& group, std::size_t channel) const {
  return mix64(group.connection + 1) + (std::uint64_t{channel} << kPairBits);
}

void CollectiveRoutes::inside(DeviceId from, DeviceId to, double weight, Load& load) {
  paths_.add(from, to, 0, weight, load);
}

void CollectiveRoutes::cross(const Crossing& crossing, Load& load) {
  DeviceId exit = crossing.exit;
  if (exit != crossing.from) {
    if (options_.nccl.pxn) {
      inside(crossing.from, exit, crossing.weight, load);
    } else {
      exit = crossing.from;
    }
  }
  const int pairs = options_.qps_per_connection;
  for (int q = 0; q < pairs; ++q) {
    paths_.add(exit, crossing.entry, crossing.pair + static_cast<std::uint64_t>(q),
               crossing.weight / pairs, load);
  }
  if (crossing.entry != crossing.to) inside(crossing.entry, crossing.to, crossing.weight, load);
}

CollectiveRoutes::Ends CollectiveRoutes::ring_ends(const CollectiveGroup& group, std::size_t node,
                                                   std::size_t rail) const {
  const std::size_t members = group.nodes[node].size();
  const std::size_t here = rail % members;
  const std::size_t other = neighbour(here, members);
  const int cross_nic = options_.nccl.cross_nic;
  const bool is_even = members % 2 == 0 && group.nodes.size() % 2 == 0;
  if (cross_nic == 1) return {here, other};
  if (cross_nic == 0 || !is_even) return {here, here};
  return node % 2 == 0 ? Ends{here, other} : Ends{other, here};
}

std::vector<Load> CollectiveRoutes::ring(const CollectiveGroup& group) {
  std::vector<Load> loads;
  for (std::size_t c = 0; c < group.heads.size(); ++c) {
    const auto rail = static_cast<std::size_t>(group.heads[c]);
    Load load;
    for (std::size_t i = 0; i < group.nodes.size(); ++i) {
      const std::vector<DeviceId>& here = group.nodes[i];
      const Ends ends = ring_ends(group, i, rail);
      // The chain from the GPU that receives to the one that sends, all members on the way.
      std::vector<std::size_t> chain = {ends.in};
      for (std::size_t j = 1; j < here.size(); ++j) {
        const std::size_t member = (ends.in + j) % here.size();
        if (member != ends.out) chain.push_back(member);
      }
      if (ends.out != ends.in) chain.push_back(ends.out);
      for (std::size_t j = 0; j + 1 < chain.size(); ++j) {
        inside(here[chain[j]], here[chain[j + 1]], 1.0, load);
      }
      if (group.nodes.size() == 1) {
        inside(here[chain.back()], here[chain.front()], 1.0, load);
        break;
      }
      const std::size_t next = (i + 1) % group.nodes.size();
      const DeviceId entry = group.nodes[next][ring_ends(group, next, rail).in];
      const std::uint64_t pair = pair_of(group, kRingChannels + c);
      cross({here[chain.back()], here[ends.out], entry, entry, pair, 1.0}, load);
    }
    loads.push_back(std::move(load));
  }
  return loads;
}

void CollectiveRoutes::tree_network(const CollectiveGroup& group, int tree, std::size_t channel,
                                    Load& load) {
  const auto rail = static_cast<std::size_t>(group.heads[channel]);
  const std::vector<int> parents = tree_parents(static_cast<int>(group.nodes.size()), tree);
  const auto head = [&](std::size_t node) {
    return group.nodes[node][rail % group.nodes[node].size()];
  };
  const std::uint64_t pair =
      pair_of(group, channel + group.heads.size() * static_cast<std::size_t>(1 + tree));
  for (std::size_t node = 0; node < parents.size(); ++node) {
    if (parents[node] < 0) continue;
    const DeviceId child = head(node);
    const DeviceId parent = head(static_cast<std::size_t>(parents[node]));
    cross({child, child, parent, parent, pair, 1.0}, load);
    cross({parent, parent, child, child, pair, 1.0}, load);
  }
}

std::vector<Load> CollectiveRoutes::tree(const CollectiveGroup& group) {
  std::vector<Load> loads;
  for (std::size_t c = 0; c < group.heads.size(); ++c) {
    for (int tree = 0; tree < 2; ++tree) {
      Load load;
      for (const std::vector<DeviceId>& members : group.nodes) {
        const auto first = static_cast<std::size_t>(group.heads[c]) % members.size();
        for (std::size_t j = 0; j + 1 < members.size(); ++j) {
          const DeviceId upper = members[(first + j) % members.size()];
          const DeviceId lower = members[(first + j + 1) % members.size()];
          inside(lower, upper, 1.0, load);
          inside(upper, lower, 1.0, load);
        }
      }
      tree_network(group, tree, c, load);
      loads.push_back(std::move(load));
    }
  }
  return loads;
}

namespace {

// Adds `out` and `in` per byte to the links of `member` to and from its NVSwitch.
struct SwitchLoad {
  double out = 1, in = 1;
};
void add_to_switch(const topologies::Cluster& cluster, Paths& paths,
                   const std::vector<DeviceId>& members, std::size_t member,
                   const SwitchLoad& weights, Load& load) {
  const DeviceId other = members[member == 0 ? 1 : 0];
  const LinkId up = cluster.intra_node_path(members[member], other).front();
  const LinkId down = cluster.intra_node_path(other, members[member]).back();
  load.pipes[paths.pipe_of(up).value] += weights.out;
  load.pipes[paths.pipe_of(down).value] += weights.in;
}

}  // namespace

std::vector<Load> CollectiveRoutes::nvls(const CollectiveGroup& group, Collective kind) {
  const std::vector<DeviceId>& members = group.nodes.front();
  const double part = 1.0 / static_cast<double>(members.size());
  SwitchLoad weights{1 + part, 1 + part};
  if (kind == Collective::AllGather) weights = {part, 1};
  if (kind == Collective::ReduceScatter) weights = {1, part};
  Load load;
  for (std::size_t m = 0; m < members.size(); ++m) {
    add_to_switch(cluster_, paths_, members, m, weights, load);
  }
  return {load};
}

std::vector<Load> CollectiveRoutes::nvls_tree(const CollectiveGroup& group) {
  std::vector<Load> loads;
  for (std::size_t c = 0; c < group.heads.size(); ++c) {
    for (int tree = 0; tree < 2; ++tree) {
      Load load;
      for (const std::vector<DeviceId>& members : group.nodes) {
        const auto head = static_cast<std::size_t>(group.heads[c]) % members.size();
        for (std::size_t m = 0; m < members.size(); ++m) {
          const double times = m == head ? 2.0 : 1.0;
          add_to_switch(cluster_, paths_, members, m, {times, times}, load);
        }
      }
      tree_network(group, tree, c, load);
      loads.push_back(std::move(load));
    }
  }
  return loads;
}

std::vector<Load> CollectiveRoutes::hierarchical(const CollectiveGroup& group, Collective kind) {
  const double rounds = kind == Collective::AllReduce ? 2 : 1;
  const auto count = static_cast<double>(group.nodes.size());
  std::vector<Load> loads;
  for (std::size_t c = 0; c < group.heads.size(); ++c) {
    const auto rail = static_cast<std::size_t>(group.heads[c]);
    Load load;
    for (std::size_t i = 0; i < group.nodes.size(); ++i) {
      const std::vector<DeviceId>& here = group.nodes[i];
      const auto members = static_cast<double>(here.size());
      for (std::size_t j = 0; j < here.size(); ++j) {
        inside(here[j], here[(j + 1) % here.size()], rounds * (members - 1) / members, load);
      }
      const std::vector<DeviceId>& next = group.nodes[(i + 1) % group.nodes.size()];
      const DeviceId from = here[rail % here.size()];
      const DeviceId to = next[rail % next.size()];
      cross({from, from, to, to, pair_of(group, c), rounds * (count - 1) / count}, load);
    }
    loads.push_back(std::move(load));
  }
  return loads;
}

std::vector<Load> CollectiveRoutes::pat(const CollectiveGroup& group) {
  const std::size_t ranks = group.nodes.size();
  FORESAIL_EXPECT(group.ranks() == ranks);
  Load load;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t step = 1; step < ranks; step *= 2) {
      const std::size_t blocks = std::min(step, ranks - step);
      const DeviceId from = group.nodes[r].front();
      const DeviceId to = group.nodes[(r + step) % ranks].front();
      const double weight = static_cast<double>(blocks) / static_cast<double>(ranks);
      cross({from, from, to, to, pair_of(group, 0), weight}, load);
    }
  }
  return {load};
}

}  // namespace foresail::sim
