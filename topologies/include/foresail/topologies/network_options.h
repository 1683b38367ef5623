/// \file
/// How the fabric spreads traffic: the scenario's `network` mapping.
#pragma once

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/yaml.h"

namespace foresail::topologies {

/// Ecmp hashes each queue pair onto one path; Spray splits every flow over all shortest paths.
enum class Routing { Ecmp, Spray };
enum class Hash { Crc, Toeplitz, Xor };
/// Equal seeds in consecutive tiers polarise: the same flows collide again and again.
enum class HashSeeds { PerSwitch, PerTier, One };

struct NetworkOptions {
  Routing routing = Routing::Ecmp;
  Hash hash = Hash::Crc;
  HashSeeds hash_seeds = HashSeeds::PerSwitch;
  int qps_per_connection = 1;
  /// true: every message is cut over all queue pairs, which advance together. false: messages take
  /// the queue pairs in turn, each at its own pace (NCCL_IB_SPLIT_DATA_ON_QPS).
  bool split_data = false;
  friend bool operator==(const NetworkOptions&, const NetworkOptions&) = default;
};

/// docs/reference/scenario.md; absent keys keep the defaults above. Throws Error{InvalidInput}.
NetworkOptions read_network(const Yaml& node);
Document to_document(const NetworkOptions& options);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::Routing> = std::to_array<Named<topologies::Routing>>(
    {{topologies::Routing::Ecmp, "ecmp"}, {topologies::Routing::Spray, "spray"}});
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
}  // namespace foresail
