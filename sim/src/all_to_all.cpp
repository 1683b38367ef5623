// Network::all_to_all: pairwise exchange, all pairs at once.
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
  std::size_t node, member;
};

bool is_uniform(const PairBytes& bytes) {
  for (std::size_t from = 0; from < bytes.ranks; ++from) {
    for (std::size_t to = 0; to < bytes.ranks; ++to) {
      if (from != to && bytes.at(from, to) != bytes.at(0, 1)) return false;
    }
  }
  return true;
}

}  // namespace

TransferPlan Network::all_to_all(const PairBytes& bytes, std::span<const DeviceId> devices,
                                 std::uint64_t connection) {
  const std::size_t ranks = devices.size();
  FORESAIL_EXPECT(ranks > 1 && bytes.ranks == ranks && bytes.bytes.size() == ranks * ranks);
  const CollectiveGroup group = group_of(devices, connection);
  const bool is_proxied = options_.nccl.pxn && group.nodes.size() > 1;
  const bool is_gathered = is_proxied && is_uniform(bytes);
  if (!is_gathered && ranks * ranks > kFlowsMax) {
    throw Error(ErrorCode::InvalidInput,
                "an all_to_all of more than 2000 ranks needs equal sizes and pxn: true");
  }
  std::map<DeviceId, Position> positions;
  for (std::size_t n = 0; n < group.nodes.size(); ++n) {
    for (std::size_t m = 0; m < group.nodes[n].size(); ++m) {
      positions[group.nodes[n][m]] = {n, m};
    }
  }
  std::vector<Load> loads;
  TransferPlan plan;
  // The GPU of from's node on the rail of `to`.
  const auto proxy = [&](DeviceId from, DeviceId to) {
    const std::vector<DeviceId>& members = group.nodes[positions[from].node];
    return is_proxied ? members[positions[to].member % members.size()] : from;
  };
  const auto pair = [&](DeviceId exit, DeviceId to) {
    return mix64(connection ^ mix64((std::uint64_t{exit.value} << 32u) | to.value)) << 8u;
  };
  for (std::size_t i = 0; i < ranks; ++i) {
    for (std::size_t j = 0; j < ranks; ++j) {
      const double amount = bytes.at(i, j);
      const bool is_inside = positions[devices[i]].node == positions[devices[j]].node;
      if (i == j || amount <= 0 || (is_gathered && !is_inside)) continue;
      Load load;
      if (is_inside) {
        routes_.inside(devices[i], devices[j], 1.0, load);
      } else {
        const DeviceId exit = proxy(devices[i], devices[j]);
        routes_.cross({devices[i], exit, devices[j], devices[j], pair(exit, devices[j]), 1.0},
                      load);
      }
      loads.push_back(std::move(load));
      plan.amounts.push_back(amount);
    }
  }
  // PXN aggregates: one flow per node and distant GPU, to which each GPU of the node adds.
  for (const std::vector<DeviceId>& members : group.nodes) {
    if (!is_gathered) break;
    const double part = 1.0 / static_cast<double>(members.size());
    for (const DeviceId to : devices) {
      if (cluster_.node_of(to) == cluster_.node_of(members.front())) continue;
      Load load;
      const DeviceId exit = proxy(members.front(), to);
      for (const DeviceId from : members) {
        if (from != exit) routes_.inside(from, exit, part, load);
      }
      routes_.cross({exit, exit, to, to, pair(exit, to), 1.0}, load);
      loads.push_back(std::move(load));
      plan.amounts.push_back(bytes.at(0, 1) * static_cast<double>(members.size()));
    }
  }
  const Channels channels = make_channels(loads, plan.amounts);
  plan.routes = channels.routes;
  plan.hops = channels.hops;
  plan.link_seconds = channels.pace;
  plan.algorithm = Algorithm::Pairwise;
  plan.protocol = options_.nccl.protocol == Protocol::Ll ? Protocol::Ll : Protocol::Simple;
  plan.channels = static_cast<int>(group.narrowest());
  plan.latency = pairwise_latency(group, plan.protocol);
  return plan;
}

Duration Network::pairwise_latency(const CollectiveGroup& group,
                                   topologies::Protocol protocol) const {
  if (is_fitted()) {
    const double batches = std::ceil(static_cast<double>(group.ranks() - 1) / kPeersPerBatch);
    const double step = group.nodes.size() > 1 ? pace_.fitted->between_nodes : pace_.fitted->inside;
    return duration_from_seconds(1e-6 * (pace_.fitted->base + batches * step));
  }
  topologies::NcclOptions nccl = options_.nccl;
  nccl.protocol = protocol;
  const NcclCost cost = choose(Collective::AllToAll, Bytes(1), shape_of(group), nccl);
  const topologies::NcclSpec& fitted = cluster_.device().nccl;
  return duration_from_seconds(1e-6 * (fitted.launch_us + fitted.latency_factor * cost.latency_us));
}

}  // namespace foresail::sim
