#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"

namespace foresail::topologies {
namespace {

TEST(Summary, ShowsTiersBisectionAndPaths) {
  EXPECT_EQ(summary(cluster_of("{name: megascale, gpus: 12288}")),
            R"(megascale: 12288 devices on 1536 nodes
device   a100_80: 312 TFLOP/s (16-bit), 19.5 TFLOP/s (fp32), 80.0 GiB at 2039 GB/s, NVLink 300 GB/s
node     8 devices, 8 NICs of 200 Gb/s
tier     switches         ports down           ports up        down          up oversubscription
leaf          192      64 x 200 Gb/s      32 x 400 Gb/s   2458 Tb/s   2458 Tb/s           1.00:1
spine         192      32 x 400 Gb/s      32 x 400 Gb/s   2458 Tb/s   2458 Tb/s           1.00:1
core          128      48 x 400 Gb/s                  -   2458 Tb/s           -                -
bisection bandwidth (one direction): 1229 Tb/s
same rail, node0.nic0 -> node1535.nic0: 6 hops, 8192 equal-cost paths
farthest, node0.nic0 -> node1535.nic7: 6 hops, 8192 equal-cost paths
)");
}

TEST(Summary, AHostHasNoFabric) {
  EXPECT_EQ(summary(cluster_of("{name: host, gpus: 2}")),
            R"(host: 2 devices on 1 node
device   cpu: 80.0 GFLOP/s (16-bit), 80.0 GFLOP/s (fp32), 4.00 GiB at 10 GB/s
node     2 devices, 2 cores, 8.00 GiB
)");
}

TEST(Summary, DocumentHoldsTheSameInBaseUnits) {
  const Document document = summary_document(cluster_of("{name: dgx_a100_roce4, gpus: 512}"));
  EXPECT_EQ(document["devices"], 512);
  EXPECT_EQ(document["nodes"], 64);
  EXPECT_EQ(document["nic_bits_per_s"], 200'000'000'000);
  ASSERT_EQ(document["tiers"].size(), 2U);
  EXPECT_EQ(document["tiers"][0]["name"], "leaf");
  EXPECT_EQ(document["tiers"][0]["switches"], 8);
  EXPECT_EQ(document["tiers"][0]["ports_up"], 32);
  EXPECT_EQ(document["tiers"][0]["oversubscription"], 1.0);
  EXPECT_EQ(document["bisection_bits_per_s"], 64LL * 4 * 200'000'000'000 / 2);
  EXPECT_EQ(document["routes"]["same_rail"]["hops"], 4);
}

}  // namespace
}  // namespace foresail::topologies
