#include "foresail/topologies/network_options.h"

#include <string>

#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

constexpr int kQueuePairsMax = 128;  // NCCL_IB_QPS_PER_CONNECTION
constexpr int kChannelsMax = 64;     // NCCL's MAXCHANNELS

NcclOptions read_nccl(const Yaml& node) {
  node.allow_only({"algorithm", "protocol", "nvls", "channels", "cross_nic", "pxn", "gpudirect",
                   "ib_timeout", "ib_retry_count", "adaptive_retransmission"});
  NcclOptions options;
  const auto read_count = [&](const char* key, int& to, int low, int high) {
    if (const auto value = node.find(key)) to = static_cast<int>(value->as_integer(low, high));
  };
  const auto read_flag = [&](const char* key, bool& to) {
    if (const auto value = node.find(key)) to = value->as_bool();
  };
  if (const auto value = node.find("algorithm")) options.algorithm = value->as_choice<Algorithm>();
  if (const auto value = node.find("protocol")) options.protocol = value->as_choice<Protocol>();
  read_flag("nvls", options.nvls);
  read_count("channels", options.channels, 0, kChannelsMax);
  read_count("cross_nic", options.cross_nic, 0, 2);
  read_flag("pxn", options.pxn);
  read_flag("gpudirect", options.gpudirect);
  read_count("ib_timeout", options.ib_timeout, 1, 31);
  read_count("ib_retry_count", options.ib_retry_count, 0, 7);
  read_flag("adaptive_retransmission", options.adaptive_retransmission);
  return options;
}

Document nccl_document(const NcclOptions& options) {
  return {{"algorithm", std::string(to_string(options.algorithm))},
          {"protocol", std::string(to_string(options.protocol))},
          {"nvls", options.nvls},
          {"channels", options.channels},
          {"cross_nic", options.cross_nic},
          {"pxn", options.pxn},
          {"gpudirect", options.gpudirect},
          {"ib_timeout", options.ib_timeout},
          {"ib_retry_count", options.ib_retry_count},
          {"adaptive_retransmission", options.adaptive_retransmission}};
}

}  // namespace

namespace {

// Empty if the sharing goes with the routing.
std::string why_not_shared(const NetworkOptions& options) {
  const bool is_split = options.routing == Routing::Spray || options.routing == Routing::Adaptive;
  if (options.sharing != Sharing::Pfc || !is_split) return {};
  return "pfc needs one path per queue pair (routing ecmp or d_mod_k), but routing is " +
         std::string(to_string(options.routing));
}

}  // namespace

void check_sharing(const NetworkOptions& options) {
  const std::string reason = why_not_shared(options);
  if (reason.empty()) return;
  throw Error(ErrorCode::InvalidInput, "network.sharing: " + reason);
}

NetworkOptions read_network(const Yaml& node) {
  node.allow_only({"routing", "hash", "hash_seeds", "qps_per_connection", "split_data",
                   "hash_queue_pair", "lag", "sharing", "tolerance", "nccl"});
  NetworkOptions options;
  if (const auto value = node.find("routing")) options.routing = value->as_choice<Routing>();
  if (const auto value = node.find("hash")) options.hash = value->as_choice<Hash>();
  if (const auto value = node.find("hash_seeds")) {
    options.hash_seeds = value->as_choice<HashSeeds>();
  }
  if (const auto value = node.find("qps_per_connection")) {
    options.qps_per_connection = static_cast<int>(value->as_integer(1, kQueuePairsMax));
  }
  if (const auto value = node.find("split_data")) options.split_data = value->as_bool();
  if (const auto value = node.find("hash_queue_pair")) options.hash_queue_pair = value->as_bool();
  if (const auto value = node.find("lag")) options.lag = value->as_choice<Lag>();
  if (const auto value = node.find("sharing")) options.sharing = value->as_choice<Sharing>();
  if (const auto value = node.find("tolerance")) {
    options.tolerance = value->as_number();
    if (!(options.tolerance >= 0 && options.tolerance <= 0.1)) value->fail("is outside [0, 0.1]");
  }
  if (const auto value = node.find("nccl")) options.nccl = read_nccl(*value);
  const std::string reason = why_not_shared(options);
  if (!reason.empty()) node.at("sharing").fail(reason);
  return options;
}

Document to_document(const NetworkOptions& options) {
  return {{"routing", std::string(to_string(options.routing))},
          {"hash", std::string(to_string(options.hash))},
          {"hash_seeds", std::string(to_string(options.hash_seeds))},
          {"qps_per_connection", options.qps_per_connection},
          {"split_data", options.split_data},
          {"hash_queue_pair", options.hash_queue_pair},
          {"lag", std::string(to_string(options.lag))},
          {"sharing", std::string(to_string(options.sharing))},
          {"tolerance", options.tolerance},
          {"nccl", nccl_document(options.nccl)}};
}

}  // namespace foresail::topologies
