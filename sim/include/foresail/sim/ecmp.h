/// \file
/// What a switch hashes: the RoCEv2 five-tuple, with the UDP source port that Linux derives from
/// the queue pair numbers, and a seed.
#pragma once

#include <cstdint>

#include "foresail/topologies/network_options.h"

namespace foresail::sim {

/// One queue pair's packets in one direction.
struct FiveTuple {
  std::uint32_t source = 0, destination = 0;  ///< addresses (NIC numbers)
  std::uint16_t source_port = 0;
  std::uint16_t destination_port = 4791;  ///< RoCEv2
  std::uint32_t queue_pair = 0;  ///< of the destination, where switches hash it too; 0: they do not
};

/// UDP source port of a RoCEv2 queue pair without a flow label (Linux rdma_flow_label_to_udp_sport
/// over rdma_calc_flow_label): 14 bits of entropy from lqpn * rqpn, range 49152-65535.
std::uint16_t roce_source_port(std::uint32_t local_qpn, std::uint32_t remote_qpn);

/// CRC-32 (IEEE) or Toeplitz (RSS key) of the tuple and `seed`, read from bit `seed` mod 32 on.
/// Both are linear, so that another seed alone would only rename the ways and the same flows would
/// meet again at every tier; switches set up against that read other bits. XOR folding has no such
/// choice: whatever the seeds, flows that met once meet again (polarisation).
std::uint32_t hash_tuple(topologies::Hash kind, const FiveTuple& tuple, std::uint32_t seed);

}  // namespace foresail::sim
