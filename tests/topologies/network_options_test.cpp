#include "foresail/topologies/network_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

NetworkOptions read_text(std::string_view text) {
  return read_network(Yaml::parse(text, "scenario.yaml"));
}

std::string complaint(std::string_view text) {
  try {
    read_text(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(NetworkOptions, AbsentKeysKeepTheDefaults) {
  NetworkOptions expected;
  expected.routing = Routing::Spray;
  EXPECT_EQ(read_text("{routing: spray}"), expected);
}

TEST(NetworkOptions, DocumentReadsBackEqual) {
  NetworkOptions options;
  options.routing = Routing::DModK;
  options.hash = Hash::Toeplitz;
  options.hash_seeds = HashSeeds::PerTier;
  options.qps_per_connection = 4;
  options.split_data = options.hash_queue_pair = true;
  options.lag = Lag::QueueAffinity;
  options.sharing = Sharing::Pfc;
  options.tolerance = 1e-3;
  options.nccl = {Algorithm::NvlsTree, Protocol::Ll128, false, 8, 0, false, false, 22, 5, true};
  EXPECT_EQ(read_text(to_yaml(to_document(options))), options);
}

TEST(NetworkOptions, ComplaintsNameTheKey) {
  using ::testing::StartsWith;
  EXPECT_THAT(complaint("{hash: md5}"),
              StartsWith("scenario.yaml:1: hash: \"md5\" is not one of crc, toeplitz, xor"));
  EXPECT_THAT(complaint("{qps_per_connection: 0}"),
              StartsWith("scenario.yaml:1: qps_per_connection: 0 is outside [1, 128]"));
  EXPECT_THAT(complaint("{nccl: {ib_timeout: 32}}"),
              StartsWith("scenario.yaml:1: nccl.ib_timeout: 32 is outside [1, 31]"));
  EXPECT_THAT(complaint("{tolerance: 0.5}"), StartsWith("scenario.yaml:1: tolerance: "));
  EXPECT_THAT(complaint("{route: ecmp}"), StartsWith("scenario.yaml:1: route: unknown key"));
}

}  // namespace
}  // namespace foresail::topologies
