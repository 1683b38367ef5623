#include "foresail/topologies/network_options.h"

#include <string>

namespace foresail::topologies {
namespace {

constexpr int kQueuePairsMax = 128;  // NCCL_IB_QPS_PER_CONNECTION

}  // namespace

NetworkOptions read_network(const Yaml& node) {
  node.allow_only({"routing", "hash", "hash_seeds", "qps_per_connection", "split_data"});
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
  return options;
}

Document to_document(const NetworkOptions& options) {
  return {{"routing", std::string(to_string(options.routing))},
          {"hash", std::string(to_string(options.hash))},
          {"hash_seeds", std::string(to_string(options.hash_seeds))},
          {"qps_per_connection", options.qps_per_connection},
          {"split_data", options.split_data}};
}

}  // namespace foresail::topologies
