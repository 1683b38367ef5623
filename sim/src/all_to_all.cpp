// Network::all_to_all and send_recv: pairwise exchange, all pairs at once.
#include <algorithm>
#include <cmath>
#include <map>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/network.h"

namespace foresail::sim {
namespace {

using topologies::Algorithm;
using topologies::Protocol;

// Flows that one operation may make: beyond, ask for PXN, which needs one per node and GPU.
constexpr std::size_t kFlowsMax = 4'000'000;
constexpr double kPeersPerBatch = 8;

struct Position {
  std::size_t node = 0, member = 0;
};

bool is_uniform(const PairBytes& bytes) {
  for (std::size_t from = 0; from < bytes.ranks; ++from) {
    for (std::size_t to = 0; to < bytes.ranks; ++to) {
      if (from != to && bytes.at(from, to) != bytes.at(0, 1)) return false;
    }
  }
  return true;
}

// Lays the flows of one exchange.
class Exchange {
 public:
  Exchange(const CollectiveGroup& group, CollectiveRoutes& routes, bool is_proxied)
      : group_(group), routes_(routes), is_proxied_(is_proxied) {
    for (std::size_t n = 0; n < group.nodes.size(); ++n) {
      for (std::size_t m = 0; m < group.nodes[n].size(); ++m) {
        positions_[group.nodes[n][m]] = {n, m};
      }
    }
  }

  bool is_inside(DeviceId from, DeviceId to) const {
    return positions_.at(from).node == positions_.at(to).node;
  }

  void add_pair(DeviceId from, DeviceId to, double amount) {
    Load load;
    if (is_inside(from, to)) {
      routes_.inside(from, to, 1.0, load);
    } else {
      const DeviceId exit = proxy(from, to);
      routes_.cross({from, exit, to, to, pair(exit, to), 1.0}, load);
    }
    add(std::move(load), amount);
  }

  // PXN aggregates: one flow from a node to a distant GPU, to which each of the node's adds.
  void add_gathered(const std::vector<DeviceId>& members, DeviceId to, double each) {
    Load load;
    const DeviceId exit = proxy(members.front(), to);
    const double part = 1.0 / static_cast<double>(members.size());
    for (const DeviceId from : members) {
      if (from != exit) routes_.inside(from, exit, part, load);
    }
    routes_.cross({exit, exit, to, to, pair(exit, to), 1.0}, load);
    add(std::move(load), each * static_cast<double>(members.size()));
  }

  std::vector<Load> loads;
  std::vector<double> amounts;

 private:
  // The GPU of from's node on the rail of `to`.
  DeviceId proxy(DeviceId from, DeviceId to) const {
    if (!is_proxied_) return from;
    const std::vector<DeviceId>& members = group_.nodes[positions_.at(from).node];
    return members[positions_.at(to).member % members.size()];
  }
  std::uint64_t pair(DeviceId exit, DeviceId to) const {
    const std::uint64_t ends = mix64((std::uint64_t{exit.value} << 32u) | to.value);
    return mix64(group_.connection ^ ends) << 8u;
  }
  void add(Load load, double amount) {
    loads.push_back(std::move(load));
    amounts.push_back(amount);
  }

  const CollectiveGroup& group_;
  CollectiveRoutes& routes_;
  bool is_proxied_;
  std::map<DeviceId, Position> positions_;
};

}  // namespace

TransferPlan Network::all_to_all(const PairBytes& bytes, std::span<const DeviceId> devices,
                                 std::uint64_t connection) {
  return exchange(bytes, devices, connection, devices.size() - 1);
}

TransferPlan Network::send_recv(Bytes bytes, std::span<const DeviceId> devices,
                                std::uint64_t connection) {
  const std::size_t ranks = devices.size();
  FORESAIL_EXPECT(ranks > 1);
  PairBytes pairs{ranks, std::vector<double>(ranks * ranks, 0.0)};
  for (std::size_t from = 0; from < ranks; ++from) {
    pairs.bytes[from * ranks + (from + 1) % ranks] = static_cast<double>(bytes.count());
  }
  return exchange(pairs, devices, connection, 1);
}

// `peers`: with whom each rank exchanges anything.
TransferPlan Network::exchange(const PairBytes& bytes, std::span<const DeviceId> devices,
                               std::uint64_t connection, std::size_t peers) {
  const std::size_t ranks = devices.size();
  FORESAIL_EXPECT(ranks > 1 && bytes.ranks == ranks && bytes.bytes.size() == ranks * ranks);
  const CollectiveGroup group = group_of(devices, connection);
  const bool is_proxied = options_.nccl.pxn && group.nodes.size() > 1;
  const bool is_gathered = is_proxied && is_uniform(bytes);
  if (!is_gathered && ranks * ranks > kFlowsMax) {
    throw Error(ErrorCode::InvalidInput,
                "an all_to_all of more than 2000 ranks needs equal sizes and pxn: true");
  }
  Exchange exchange(group, routes_, is_proxied);
  for (std::size_t i = 0; i < ranks; ++i) {
    for (std::size_t j = 0; j < ranks; ++j) {
      if (i == j || bytes.at(i, j) <= 0) continue;
      if (is_gathered && !exchange.is_inside(devices[i], devices[j])) continue;
      exchange.add_pair(devices[i], devices[j], bytes.at(i, j));
    }
  }
  for (const std::vector<DeviceId>& members : group.nodes) {
    for (const DeviceId to : devices) {
      if (!is_gathered || exchange.is_inside(members.front(), to)) continue;
      exchange.add_gathered(members, to, bytes.at(0, 1));
    }
  }
  TransferPlan plan;
  const Channels channels = make_channels(exchange.loads, exchange.amounts);
  plan.amounts = std::move(exchange.amounts);
  plan.routes = channels.routes;
  plan.hops = channels.hops;
  plan.link_seconds = channels.pace;
  plan.algorithm = Algorithm::Pairwise;
  plan.protocol = options_.nccl.protocol == Protocol::Ll ? Protocol::Ll : Protocol::Simple;
  plan.channels = static_cast<int>(group.narrowest());
  if (is_fitted()) {
    const double batches = std::ceil(static_cast<double>(peers) / kPeersPerBatch);
    const double step = group.nodes.size() > 1 ? pace_.fitted->between_nodes : pace_.fitted->inside;
    plan.latency = duration_from_seconds(1e-6 * (pace_.fitted->base + batches * step));
    return plan;
  }
  topologies::NcclOptions nccl = options_.nccl;
  nccl.protocol = plan.protocol;
  const NcclCost cost = choose(Collective::AllToAll, Bytes(1), shape_of(group), nccl);
  const topologies::NcclSpec& fitted = cluster_.device().nccl;
  plan.latency =
      duration_from_seconds(1e-6 * (fitted.launch_us + fitted.latency_factor * cost.latency_us)) +
      delay_of(cost, group);
  return plan;
}

}  // namespace foresail::sim
