/// \file
/// nccl-tests without GPUs: the time and bus bandwidth of a collective over a range of sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/sim/simulator.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::scenarios {

/// As nccl-tests names its programs. SendRecv: every rank sends to the next one.
enum class Operation { AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, SendRecv };

/// Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): 2(n-1)/n of all_reduce,
/// (n-1)/n of all_gather, reduce_scatter and all_to_all, 1 of the others.
double bus_factor(Operation operation, int ranks);

/// What is wrong with the machine, beside what the cluster and the network's options say.
struct Impairment {
  double nic_of_rail_0 = 1;    ///< of the rate of the first NIC of every node
  double links_of_a_node = 1;  ///< of the rate of NVLink and NICs of one node in the middle
  int nics_missing = 0;        ///< of every node, from the last
};

/// Which nodes take part.
enum class Spread { Packed, Random };

struct SweepOptions {
  Operation operation = Operation::AllReduce;
  std::vector<Bytes> sizes;  ///< as nccl-tests counts them: the larger of both buffers
  topologies::NetworkOptions network;
  sim::Fidelity fidelity = sim::Fidelity::Flow;
  std::uint64_t seed = 1;
  int seeds = 1;  ///< draws of the switches' hashes: seed, seed + 1, ...
  /// So many groups do the operation at once: of the devices that take part, the i-th belongs to
  /// group i mod groups, so that with one group per GPU of a node each stays on its rail.
  int groups = 1;
  int devices = 0;  ///< that take part, whole nodes' in order of number; 0: all
  /// Random: on nodes drawn anew for every seed, and in that order.
  Spread spread = Spread::Packed;
  Impairment impairment;
};

/// How unevenly links that could share carried an operation's bytes: the most loaded over the mean,
/// 1: even; averaged over the places that carried any. 1 where nothing was loaded or the routing
/// spreads packets over all links.
struct LinkBalance {
  double uplinks = 1;        ///< upward links of one switch
  double uplinks_worst = 1;  ///< of the worst switch
  double uplinks_least = 1;  ///< the least loaded over the mean
  double ports_in = 1;       ///< links into the ports of one NIC
  double ports_in_worst = 1;
};

struct SweepPoint {
  Bytes size;
  Duration time{};  ///< mean over the seeds
  Duration time_min{}, time_max{};
  double algorithm_bandwidth = 0;  ///< GB/s
  double bus_bandwidth = 0;        ///< GB/s
  topologies::Algorithm algorithm = topologies::Algorithm::Auto;
  topologies::Protocol protocol = topologies::Protocol::Auto;
  int channels = 0;
  Duration latency{};  ///< of the time: launch and NCCL's steps
  Duration copies{};   ///< of the time: what copies and filling the pipeline take beyond links
  std::string bound;   ///< "latency", "copies", "NVLink", "NIC", "link leaf0->spine3"
  double nic_bytes_max = 0;  ///< most bytes that one NIC's link to the fabric carried, one way
  LinkBalance balance;       ///< of the slowest draw
};

struct Sweep {
  Operation operation = Operation::AllReduce;
  int ranks = 0;  ///< of one group
  int nodes = 0, groups = 1;
  std::string cluster;
  int seeds = 1;
  std::vector<SweepPoint> points;
  double average_bus_bandwidth() const;
};

/// A point's time is the mean of the groups', as nccl-tests averages over all ranks by default
/// (its README, --average 1). Throws Error{InvalidInput} if the options name what
/// NCCL lacks (sendrecv: any algorithm but pairwise, protocol but Simple, or channels; all_to_all:
/// LL128), the cluster is smaller than `devices`, or the groups do not share them in twos or more.
Sweep sweep(const topologies::Cluster& cluster, const SweepOptions& options);

/// In nccl-tests' columns, then what bounds each size.
std::string to_text(const Sweep& sweep);
Document to_document(const Sweep& sweep);

/// min, min * factor, ... up to max (nccl-tests' -b, -e, -f); factor above 1, up to 10^6. Throws
/// Error{InvalidInput}.
std::vector<Bytes> sizes_between(Bytes min, Bytes max, double factor);
/// Floats that one rank sends (all_gather, all_to_all: to each) or receives (reduce_scatter), as
/// nccl-tests counts them; 0: too small for the ranks to share.
std::int64_t element_count(Operation operation, Bytes size, int ranks);
/// "8", "512K", "1MiB", "1.5G", "2T", "1PiB": binary multiples as nccl-tests reads them, whole
/// bytes, 1 to 1 PiB. Throws Error{InvalidInput}, whose message begins with `option`.
Bytes parse_size(const std::string& text, const std::string& option = "size");

}  // namespace foresail::scenarios

namespace foresail {
template <>
inline constexpr auto kNames<scenarios::Operation> = std::to_array<Named<scenarios::Operation>>(
    {{scenarios::Operation::AllReduce, "all_reduce"},
     {scenarios::Operation::AllGather, "all_gather"},
     {scenarios::Operation::ReduceScatter, "reduce_scatter"},
     {scenarios::Operation::Broadcast, "broadcast"},
     {scenarios::Operation::AllToAll, "all_to_all"},
     {scenarios::Operation::SendRecv, "sendrecv"}});
template <>
inline constexpr auto kNames<scenarios::Spread> = std::to_array<Named<scenarios::Spread>>(
    {{scenarios::Spread::Packed, "packed"}, {scenarios::Spread::Random, "random"}});
}  // namespace foresail
