/// \file
/// How the fabric spreads traffic: the scenario's `network` mapping.
#pragma once

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/yaml.h"

namespace foresail::topologies {

/// Ecmp hashes each queue pair onto one path; Spray splits every flow evenly over all shortest
/// paths; Adaptive splits it by the free capacity that it meets; DModK takes at tier t the up-port
/// (d / ports of the tiers below) mod ports of a destination numbered d (Zahavi, D-mod-k).
enum class Routing { Ecmp, Spray, Adaptive, DModK };
enum class Hash { Crc, Toeplitz, Xor };
/// Equal seeds in consecutive tiers polarise: the same flows collide again and again.
enum class HashSeeds { PerSwitch, PerTier, One };
/// How flows share a link. MaxMin: by flow, as end-to-end congestion control achieves. Pfc: by
/// ingress port, with head-of-line blocking, as where priority flow control alone acts.
enum class Sharing { MaxMin, Pfc };
/// Which port of a NIC with several (RoCE LAG) a queue pair leaves by under Ecmp: hashed like a
/// switch's choice, or the ports in turn as queue pairs are made (Linux' mlx5:
/// lag_port_select_mode).
enum class Lag { Hash, QueueAffinity };

/// NCCL's algorithms and protocols; Auto asks its tuning model.
enum class Algorithm { Auto, Ring, Tree, Nvls, NvlsTree, Hierarchical, Pat, Pairwise };
enum class Protocol { Auto, Ll, Ll128, Simple };

/// NCCL's environment: names and defaults are NCCL 2.30's.
struct NcclOptions {
  Algorithm algorithm = Algorithm::Auto;  ///< NCCL_ALGO
  Protocol protocol = Protocol::Auto;     ///< NCCL_PROTO
  bool nvls = true;                       ///< NCCL_NVLS_ENABLE
  int channels = 0;                       ///< NCCL_{MIN,MAX}_NCHANNELS; 0: as NCCL counts them
  int cross_nic = 2;                     ///< NCCL_CROSS_NIC: 0 never, 1 allowed, 2 only if it helps
  bool pxn = true;                       ///< not NCCL_PXN_DISABLE
  bool gpudirect = true;                 ///< NCCL_NET_GDR_LEVEL: false bounces through the host
  int ib_timeout = 20;                   ///< NCCL_IB_TIMEOUT: 4.096 us * 2^n per attempt
  int ib_retry_count = 7;                ///< NCCL_IB_RETRY_CNT
  bool adaptive_retransmission = false;  ///< NIC firmware: first retries within milliseconds
  friend bool operator==(const NcclOptions&, const NcclOptions&) = default;
};

struct NetworkOptions {
  Routing routing = Routing::Ecmp;
  Hash hash = Hash::Crc;
  HashSeeds hash_seeds = HashSeeds::PerSwitch;
  int qps_per_connection = 1;
  /// true: every message is cut over all queue pairs, which advance together. false: messages take
  /// the queue pairs in turn, each at its own pace (NCCL_IB_SPLIT_DATA_ON_QPS).
  bool split_data = false;
  bool hash_queue_pair = false;  ///< enhanced ECMP: switches hash the destination queue pair too
  Lag lag = Lag::Hash;
  Sharing sharing = Sharing::MaxMin;
  double tolerance = 0;  ///< of the flow solver, relative rate error where it stops; 0: exact
  NcclOptions nccl;
  friend bool operator==(const NetworkOptions&, const NetworkOptions&) = default;
};

/// Throws Error{InvalidInput} if the options ask for sharing pfc together with a routing that
/// spreads a flow over many paths: pauses act on the links of one path.
void check_sharing(const NetworkOptions& options);

/// docs/reference/scenario.md; absent keys keep the defaults above. Throws Error{InvalidInput}.
NetworkOptions read_network(const Yaml& node);
Document to_document(const NetworkOptions& options);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::Routing> =
    std::to_array<Named<topologies::Routing>>({{topologies::Routing::Ecmp, "ecmp"},
                                               {topologies::Routing::Spray, "spray"},
                                               {topologies::Routing::Adaptive, "adaptive"},
                                               {topologies::Routing::DModK, "d_mod_k"}});
template <>
inline constexpr auto kNames<topologies::Hash> =
    std::to_array<Named<topologies::Hash>>({{topologies::Hash::Crc, "crc"},
                                            {topologies::Hash::Toeplitz, "toeplitz"},
                                            {topologies::Hash::Xor, "xor"}});
template <>
inline constexpr auto kNames<topologies::HashSeeds> =
    std::to_array<Named<topologies::HashSeeds>>({{topologies::HashSeeds::PerSwitch, "per_switch"},
                                                 {topologies::HashSeeds::PerTier, "per_tier"},
                                                 {topologies::HashSeeds::One, "one"}});
template <>
inline constexpr auto kNames<topologies::Sharing> = std::to_array<Named<topologies::Sharing>>(
    {{topologies::Sharing::MaxMin, "max_min"}, {topologies::Sharing::Pfc, "pfc"}});
template <>
inline constexpr auto kNames<topologies::Lag> = std::to_array<Named<topologies::Lag>>(
    {{topologies::Lag::Hash, "hash"}, {topologies::Lag::QueueAffinity, "queue_affinity"}});
template <>
inline constexpr auto kNames<topologies::Algorithm> = std::to_array<Named<topologies::Algorithm>>(
    {{topologies::Algorithm::Auto, "auto"},
     {topologies::Algorithm::Ring, "ring"},
     {topologies::Algorithm::Tree, "tree"},
     {topologies::Algorithm::Nvls, "nvls"},
     {topologies::Algorithm::NvlsTree, "nvls_tree"},
     {topologies::Algorithm::Hierarchical, "hierarchical"},
     {topologies::Algorithm::Pat, "pat"},
     {topologies::Algorithm::Pairwise, "pairwise"}});
template <>
inline constexpr auto kNames<topologies::Protocol> =
    std::to_array<Named<topologies::Protocol>>({{topologies::Protocol::Auto, "auto"},
                                                {topologies::Protocol::Ll, "ll"},
                                                {topologies::Protocol::Ll128, "ll128"},
                                                {topologies::Protocol::Simple, "simple"}});
}  // namespace foresail
