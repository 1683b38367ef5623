#include "foresail/topologies/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::topologies {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kGraph = R"(switches:
  - {name: left, tier: 1}
  - {name: "MF0;odd name:MQM9700/U1", tier: 1}
  - {name: top, tier: 2}
cables:
  - {from: node0.nic0, to: left, bandwidth: 200 Gb/s, latency: 1 us}
  - {from: node1.nic7, to: "MF0;odd name:MQM9700/U1", bandwidth: 200 Gb/s, latency: 1 us}
  - {from: left, to: top, bandwidth: 400 Gb/s, latency: 450 ns, count: 2}
  - {from: top, to: "MF0;odd name:MQM9700/U1", bandwidth: 50 GB/s, latency: 0 us}
)";

GraphSpec read_text(std::string_view text) {
  return read_graph(Yaml::parse(text, "graph.yaml"));
}

std::string complaint(std::string_view text) {
  try {
    read_text(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

/// kGraph with one piece of text replaced.
std::string with(std::string_view piece, std::string_view replacement) {
  std::string text(kGraph);
  const std::size_t at = text.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return text.replace(at, piece.size(), replacement);
}

TEST(Graph, SaysWhatTheFileSays) {
  const GraphSpec graph = read_text(kGraph);
  ASSERT_EQ(graph.switches.size(), 3U);
  EXPECT_EQ(graph.switches[1], (GraphSwitch{"MF0;odd name:MQM9700/U1", 1}));
  EXPECT_EQ(graph.switches[2], (GraphSwitch{"top", 2}));
  ASSERT_EQ(graph.cables.size(), 4U);
  EXPECT_EQ(graph.cables[1].a, (CableEnd{1, 7, ""}));
  const Cable expected{{-1, 0, "left"}, {-1, 0, "top"}, 400_Gbps, std::chrono::nanoseconds(450), 2};
  EXPECT_EQ(graph.cables[2], expected);
  EXPECT_EQ(graph.cables[3].bandwidth, 400_Gbps);  // 50 GB/s
}

TEST(Graph, TierOneAndOneCableAreTheDefaults) {
  const GraphSpec graph = read_text(
      "{switches: [{name: s}], cables: [{from: node0.nic0, to: s, bandwidth: 1 Gb/s, latency: 0 "
      "s}]}");
  EXPECT_EQ(graph.switches[0].tier, 1);
  EXPECT_EQ(graph.cables[0].count, 1);
}

// 200 random graphs, switches in random order and quantities that no round unit divides.
TEST(Graph, DocumentReadsBackEqual) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random = Rng(seed).stream("graph");
    GraphSpec graph;
    const int switches = 1 + static_cast<int>(random.below(9));
    for (int s = 0; s < switches; ++s) {
      const auto name = "s" + std::to_string((s * 7 + static_cast<int>(seed)) % 1009);
      graph.switches.push_back({name, 1 + static_cast<int>(random.below(4))});
      Cable cable;
      cable.a = {static_cast<int>(random.below(1000)), static_cast<int>(random.below(8)), ""};
      cable.b.switch_name = name;
      cable.bandwidth = Bandwidth::bps(1 + static_cast<std::int64_t>(random.below(1ULL << 49)));
      cable.latency = Duration(static_cast<std::int64_t>(random.below(1'000'000'000'000)));
      cable.count = 1 + static_cast<int>(random.below(4));
      graph.cables.push_back(cable);
    }
    EXPECT_EQ(read_text(to_yaml(to_document(graph))), graph) << "seed " << seed;
  }
}

TEST(Graph, ComplaintsNameFileLineAndKey) {
  EXPECT_THAT(complaint(with("tier: 2", "level: 2")),
              StartsWith("graph.yaml:4: switches[2].level: unknown key"));
  EXPECT_THAT(complaint(with("tier: 2", "tier: 0")),
              StartsWith("graph.yaml:4: switches[2].tier: 0 is outside [1, 8]"));
  EXPECT_EQ(complaint(with("name: top", "name: left")),
            "graph.yaml:4: switches[2].name: switch \"left\" stands twice");
  EXPECT_THAT(complaint(with("name: top", "name: \"\"")),
              StartsWith("graph.yaml:4: switches[2].name: is empty"));
  EXPECT_THAT(complaint(with("name: top", "name: a->b")), HasSubstr("holds \"->\" or \"#\""));
  EXPECT_THAT(complaint(with("name: top", "name: node3.nic1")),
              HasSubstr("reads like a part of a node"));
  EXPECT_THAT(complaint(with("name: top", "name: \"a\\tb\"")), HasSubstr("control character"));
  EXPECT_THAT(complaint(with("name: top", "name: " + std::string(300, 'x'))),
              HasSubstr("has more than 256 characters"));
  EXPECT_EQ(complaint(with("to: left", "to: lfet")),
            "graph.yaml:6: cables[0].to: \"lfet\" is neither a switch of this graph nor a NIC "
            "(node0.nic0)");
  EXPECT_THAT(complaint(with("node0.nic0", "node00.nic0")), HasSubstr("neither a switch"));
  EXPECT_THAT(complaint(with("node0.nic0", "node0.gpu0")), HasSubstr("neither a switch"));
  EXPECT_THAT(complaint(with("node0.nic0", "node131072.nic0")),
              HasSubstr("node 131072 is not in 0..131071"));
  EXPECT_THAT(complaint(with("node0.nic0", "node0.nic1024")),
              HasSubstr("NIC 1024 is not in 0..1023"));
  EXPECT_EQ(complaint(with("from: left, to: top", "from: left, to: left")),
            "graph.yaml:8: cables[2].to: \"left\" is cabled to itself");
  EXPECT_THAT(complaint(with("to: left", "to: node1.nic1")),
              HasSubstr("node0.nic0 is cabled to node1.nic1: put a switch between two NICs"));
}

TEST(Graph, QuantitiesHaveUnitsAndLimits) {
  EXPECT_THAT(complaint(with("200 Gb/s", "200")),
              StartsWith("graph.yaml:6: cables[0].bandwidth: \"200\" has no unit"));
  EXPECT_THAT(complaint(with("200 Gb/s", "0 Gb/s")), HasSubstr("bandwidth: must be positive"));
  EXPECT_THAT(complaint(with("200 Gb/s", "2000 Tb/s")), HasSubstr("bandwidth: is beyond any link"));
  EXPECT_THAT(complaint(with("450 ns", "2 s")),
              StartsWith("graph.yaml:8: cables[2].latency: must not exceed 1 s"));
  EXPECT_THAT(complaint(with("count: 2", "count: 0")),
              StartsWith("graph.yaml:8: cables[2].count: 0 is outside [1, 65536]"));
  EXPECT_THAT(complaint(with(", latency: 450 ns", "")),
              StartsWith("graph.yaml:8: cables[2]: the key \"latency\" is missing"));
  EXPECT_THAT(complaint(with("from: left, to: top, ", "from: left, ")),
              StartsWith("graph.yaml:8: cables[2]: the key \"to\" is missing"));
  std::string many(kGraph);
  for (int i = 0; i < 64; ++i) {
    many += "  - {from: left, to: top, bandwidth: 1 Gb/s, latency: 0 s, count: 65536}\n";
  }
  EXPECT_THAT(complaint(many), HasSubstr("more than 4194304 cables"));
}

TEST(Graph, EverySwitchIsCabled) {
  EXPECT_EQ(complaint(with("  - {name: top", "  - {name: spare}\n  - {name: top")),
            "graph.yaml:1: switches: no cable ends at switch \"spare\"");
  EXPECT_THAT(complaint("{switches: [], cables: []}"), HasSubstr("names no switch"));
  EXPECT_THAT(complaint("{switches: [{name: s}]}"), HasSubstr("the key \"cables\" is missing"));
  EXPECT_THAT(complaint("{switches: {s: {}}, cables: []}"), HasSubstr("expected a list"));
}

}  // namespace
}  // namespace foresail::topologies
