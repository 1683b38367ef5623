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
tier      switches     ports down       down       ports up         up  oversubscription
leaf           192  64 x 200 Gb/s  2458 Tb/s  32 x 400 Gb/s  2458 Tb/s            1.00:1
spine          192  32 x 400 Gb/s  2458 Tb/s  32 x 400 Gb/s  2458 Tb/s            1.00:1
core           128  48 x 400 Gb/s  2458 Tb/s              -          -                 -
bisection bandwidth (one direction): 1229 Tb/s
  half of the narrowest tier: nodes 1229 Tb/s, leaf 1229 Tb/s, spine 1229 Tb/s
same rail, node0.nic0 -> node1535.nic0: 6 hops, 8192 equal-cost paths, 32 of any length disjoint
farthest, node0.nic0 -> node1535.nic7: 6 hops, 8192 equal-cost paths, 32 of any length disjoint
)");
}

/// Without the lines of device and node.
std::string fabric_part(const std::string& cluster) {
  const std::string text = summary(cluster_of(cluster));
  return text.substr(text.find('\n', text.find("\nnode ") + 1) + 1);
}

TEST(Summary, ShowsWhatIsSpecialOfEachKind) {
  EXPECT_EQ(fabric_part("{name: hpn, gpus: 3072}"), R"(fabric   2 ports per NIC, 2 planes
tier      switches      ports down       down       ports up         up  oversubscription
leaf            48  128 x 200 Gb/s  1229 Tb/s  60 x 400 Gb/s  1152 Tb/s            1.07:1
spine          120   24 x 400 Gb/s  1152 Tb/s              -          -                 -
bisection bandwidth (one direction): 576 Tb/s
  half of the narrowest tier: nodes 614 Tb/s, leaf 576 Tb/s
same rail, node0.nic0 -> node383.nic0: 4 hops, 120 equal-cost paths, 120 of any length disjoint
farthest, node0.nic0 -> node383.nic7: 4 hops, 120 equal-cost paths, 120 of any length disjoint
)");
  EXPECT_EQ(fabric_part("dragonfly"), R"(fabric   dragonfly: 33 groups of 8 routers with 4 NICs
tier      switches    ports down      down   ports across     across
router         264  4 x 400 Gb/s  422 Tb/s  11 x 400 Gb/s  1162 Tb/s
bisection bandwidth (one direction): 115 Tb/s
  greatest flow from the first half of the nodes to the second
same rail, node0.nic0 -> node131.nic0: 5 hops, 7 equal-cost paths, 11 of any length disjoint
farthest, node0.nic0 -> node131.nic7: 5 hops, 10 equal-cost paths, 11 of any length disjoint
)");
  EXPECT_EQ(fabric_part("torus_3d"), R"(fabric   torus: 8 x 8 x 8
tier      switches     ports down       down  ports across     across
router         512  1 x 2.40 Tb/s  1229 Tb/s  6 x 400 Gb/s  1229 Tb/s
bisection bandwidth (one direction): 51.2 Tb/s
  greatest flow between halves along the longest dimension
same rail, node0.nic0 -> node511.nic0: 5 hops, 6 equal-cost paths, 6 of any length disjoint
farthest, node0.nic0 -> node511.nic0: 5 hops, 6 equal-cost paths, 6 of any length disjoint
)");
}

// A NIC without a cable has no way.
TEST(Summary, SaysThatTheWiringDiffers) {
  const std::string text =
      fabric_part("{name: jeanzay_like, gpus: 96, wiring: [{remove: \"leaf1->node11.nic3\"}]}");
  EXPECT_THAT(text, ::testing::StartsWith("wiring   1 change from the plan\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("farthest, node0.nic0 -> node11.nic3: no way\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("greatest flow from the first half"));
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
  EXPECT_EQ(document["routes"]["same_rail"]["disjoint_paths"], 32);
  EXPECT_EQ(document["fabric"], "clos");
  EXPECT_EQ(document["wiring_changes"], 0);
  EXPECT_EQ(document["bisection_by_tier_bits_per_s"]["leaf"], 64LL * 4 * 200'000'000'000 / 2);
}

}  // namespace
}  // namespace foresail::topologies
