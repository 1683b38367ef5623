/// \file
/// NCCL's published tuning model (NCCL 2.30, src/graph/tuning.cc): the time of a collective by
/// algorithm and protocol, and its choice, which is the least of them. Times are in microseconds,
/// bandwidths in GB/s, as there; formulas and tables: facts on NCCL, sections 4.1 and 4.2.
#pragma once

#include <limits>
#include <optional>

#include "foresail/base/kernel.h"
#include "foresail/base/units.h"
#include "foresail/topologies/cluster.h"
#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// A group of GPUs as NCCL's topology search sees it.
struct NcclShape {
  topologies::Generation generation = topologies::Generation::Ampere;
  topologies::CpuVendor cpu = topologies::CpuVendor::Intel;
  int ranks = 1;
  int nodes = 1;  ///< NVLink domains: hosts, or racks of GB200 NVL72
  int nics = 0;   ///< of a node, as far as the group uses them; 0 on one node
  bool has_nvlink = true;
  double nvlink = 0;          ///< GB/s per GPU and direction, as the graph counts it
  double nic = 0;             ///< GB/s per NIC and direction, as the graph counts it
  double nic_latency_us = 0;  ///< beyond the NIC of NCCL's tables (NodeSpec::nic_latency)
  /// What NCCL is told of it when it chooses (NodeSpec::nccl_latency); negative: nic_latency_us.
  double told_latency_us = -1;
  bool gpudirect = true;
  int channels = 0;  ///< set by the user; 0: found

  double ranks_per_node() const { return static_cast<double>(ranks) / nodes; }
};

/// What NCCL's graph counts on of the data sheet's NVLink: 20 of 25 GB/s per link of an A100, 20.6
/// of 25 of an H100, 40.1 of 50 of a B200.
double nvlink_fraction(topologies::Generation generation);
/// ... and of a NIC's line rate: 48 of 50 GB/s, 24 of 25, 12 of 12.5.
inline constexpr double kNicFraction = 0.96;

/// Rings that the topology search finds: the fastest rung of NCCL's ladder of speeds with the
/// largest product.
struct ChannelGraph {
  int channels = 1;
  double speed = 0;  ///< GB/s of one
  double bus() const { return channels * speed; }
};
ChannelGraph find_channels(const NcclShape& shape);

struct NcclCost {
  topologies::Algorithm algorithm = topologies::Algorithm::Ring;
  topologies::Protocol protocol = topologies::Protocol::Simple;
  double latency_us = 0;
  double bandwidth = 0;  ///< GB/s of the operation's bytes (not bus bandwidth), at this size
  /// What the GPUs' copies alone reach of it (protocol, NVLS efficiency, cap per channel); infinite
  /// where only links limit.
  double copy_bandwidth = std::numeric_limits<double>::infinity();
  /// Filling the pipeline: the first chunk passes stage after stage (Simple, trees and NVLS).
  double fill_us = 0;
  int channels = 1;
  /// Steps between nodes that follow one another (rings: rounds of nodes - 1; trees: 2 log2 nodes;
  /// pairwise: batches of eight peers). Each waits for the cables (Network::collective).
  double steps_between = 0;
  double time_us(Bytes bytes) const {
    return latency_us + static_cast<double>(bytes.count()) / (1000 * bandwidth);
  }
};

/// Empty where NCCL does not offer this combination (the rules of src/graph/tuning.cc).
std::optional<NcclCost> nccl_cost(Collective kind, topologies::Algorithm algorithm,
                                  topologies::Protocol protocol, Bytes bytes,
                                  const NcclShape& shape);
// The argument list mirrors NCCL's: ncclTopoGetAlgoTime(func, algorithm, protocol, bytes).

/// The fastest of what the options leave, by what NCCL is told of the NIC's latency; its cost by
/// what the latency is. Throws Error{InvalidInput} if they leave nothing.
NcclCost choose(Collective kind, Bytes bytes, const NcclShape& shape,
                const topologies::NcclOptions& options);

}  // namespace foresail::sim
