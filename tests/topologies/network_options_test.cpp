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
  const NetworkOptions options{Routing::Ecmp, Hash::Toeplitz, HashSeeds::PerTier, 4, true};
  EXPECT_EQ(read_text(to_yaml(to_document(options))), options);
}

TEST(NetworkOptions, ComplaintsNameTheKey) {
  using ::testing::StartsWith;
  EXPECT_THAT(complaint("{hash: md5}"),
              StartsWith("scenario.yaml:1: hash: \"md5\" is not one of crc, toeplitz, xor"));
  EXPECT_THAT(complaint("{qps_per_connection: 0}"),
              StartsWith("scenario.yaml:1: qps_per_connection: 0 is outside [1, 128]"));
  EXPECT_THAT(complaint("{route: ecmp}"), StartsWith("scenario.yaml:1: route: unknown key"));
}

}  // namespace
}  // namespace foresail::topologies
