// What people have, read: expected numbers can be counted in the files of data/.
#include "foresail/topologies/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string data(const std::string& name) {
  return read_file(std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/topologies/data" / name);
}

ImportedTopology import_data(const std::string& name) {
  return import_topology(data(name), name, {});
}

std::string complaint(std::string_view text, std::optional<TopologyFormat> format) {
  try {
    ImportOptions options;
    options.format = format;
    import_topology(text, "f", options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

std::map<std::string, int> tiers(const GraphSpec& graph) {
  std::map<std::string, int> tiers;
  for (const GraphSwitch& one : graph.switches) tiers[one.name] = one.tier;
  return tiers;
}

int cable_count(const GraphSpec& graph) {
  int count = 0;
  for (const Cable& cable : graph.cables) count += cable.count;
  return count;
}

TEST(DetectFormat, ByTheFirstLineThatSaysSomething) {
  EXPECT_EQ(detect_format(data("ibnetdiscover.txt")), TopologyFormat::Ibnetdiscover);
  EXPECT_EQ(detect_format(data("nccl_hgx.xml")), TopologyFormat::Nccl);
  EXPECT_EQ(detect_format(data("astra_sim_analytical.yml")), TopologyFormat::AstraSim);
  EXPECT_EQ(detect_format(data("astra_sim_ring.txt")), TopologyFormat::AstraSim);
  EXPECT_EQ(detect_format(data("simai.txt")), TopologyFormat::Simai);
  EXPECT_EQ(detect_format("vendid=0x2c9\n"), TopologyFormat::Ibnetdiscover);
  for (const char* text : {"", "\n\n# nothing\n", "name: mine\n", "1 2 3 4 5\n", "hello"}) {
    EXPECT_EQ(detect_format(text), std::nullopt) << text;
  }
  EXPECT_THAT(complaint("hello", std::nullopt),
              StartsWith("f: the format is not recognised; give one of ibnetdiscover, nccl"));
}

TEST(Ibnetdiscover, HostsAreNodesInNaturalOrderAndAdaptersAreRails) {
  const ImportedTopology fabric = import_data("ibnetdiscover.txt");
  EXPECT_THAT(fabric.nodes, ElementsAre("gpu1", "gpu2", "gpu3", "gpu10"));
  EXPECT_EQ(fabric.nics, 3);
  EXPECT_EQ(fabric.nic_bandwidth, 400_Gbps);
  EXPECT_EQ(fabric.devices, 0);
  EXPECT_EQ(fabric.graph.switches.size(), 4U);  // the spare one is cabled to nothing
  const auto tier = tiers(fabric.graph);
  EXPECT_EQ(tier.at("MF0;ib-leaf01:MQM9700/U1"), 1);
  EXPECT_EQ(tier.at("Quantum Mellanox Technologies S-fc6a1c0300bb0001"), 2);
  EXPECT_EQ(cable_count(fabric.graph), 4 * 3 + 2 * 2 * 2);
  const auto slow = std::ranges::find_if(fabric.graph.cables, [](const Cable& cable) {
    return cable.a == CableEnd{2, 1, ""};  // gpu3 mlx5_3, the second of mlx5_0, _3, _10
  });
  ASSERT_NE(slow, fabric.graph.cables.end());
  EXPECT_EQ(slow->bandwidth, 200_Gbps);  // 4xHDR
  EXPECT_EQ(slow->b.switch_name, "MF0;ib-leaf02:MQM9700/U1");
}

TEST(Ibnetdiscover, SaysWhatItLeftOutAndAssumed) {
  const ImportedTopology fabric = import_data("ibnetdiscover.txt");
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("1 routers; left out")));
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("1 aggregation nodes")));
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("\"storage7\" is the first); left out")));
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("1 cables are listed by one end only")));
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("1 of 5 switches are cabled to no node")));
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("1 of 12 NICs do not have the most common")));
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("mlx5_0, mlx5_3, mlx5_10")));
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("450 ns per cable")));
}

// A dump without the blocks of the adapters tells the same fabric.
TEST(Ibnetdiscover, TheSwitchesAloneSuffice) {
  std::string text = data("ibnetdiscover.txt");
  text.resize(text.find("rtguid"));
  const ImportedTopology fabric = import_topology(text, "f", {});
  EXPECT_EQ(fabric.graph, import_data("ibnetdiscover.txt").graph);
}

TEST(Ibnetdiscover, EverySpeedIsTheDataRate) {
  const auto rate = [](const std::string& speed) {
    const std::string text =
        "Switch\t2 \"S-1\"\t# \"s\" base port 0 lid 1 lmc 0\n[1]\t\"H-2\"[1](2)"
        "\t# \"a HCA-1\" lid 2 " +
        speed + "\n[2]\t\"H-3\"[1](3)\t# \"b HCA-1\" lid 3 " + speed + "\n";
    return import_topology(text, "f", {}).nic_bandwidth;
  };
  EXPECT_EQ(rate("4xSDR"), 8_Gbps);
  EXPECT_EQ(rate("4xQDR"), 32_Gbps);
  EXPECT_EQ(rate("4xFDR10"), 40_Gbps);
  EXPECT_EQ(rate("4xEDR"), 100_Gbps);
  EXPECT_EQ(rate("2xHDR"), 100_Gbps);
  EXPECT_EQ(rate("4xNDR s=4 w=2 v=8"), 400_Gbps);
  EXPECT_EQ(rate("4xXDR"), 800_Gbps);
}

TEST(Ibnetdiscover, ComplaintsNameTheLine) {
  const auto of = [](std::string_view text) {
    return complaint(text, TopologyFormat::Ibnetdiscover);
  };
  const std::string head = "Switch\t2 \"S-1\"\t# \"s\" base port 0 lid 1 lmc 0\n";
  EXPECT_EQ(of(""), "f:1: holds no Switch, Ca or Rt line");
  EXPECT_EQ(of("\n[1] \"H-2\"[1]"), "f:2: a port stands before the first Switch, Ca or Rt line");
  EXPECT_EQ(of("Switch\t2 \"X-1\"\t# \"s\""), "f:1: \"X-1\" is neither S-, H- nor R-<GUID>");
  EXPECT_EQ(of("Switch\t2 \"S-zz\"\t# \"s\""), "f:1: \"S-zz\" holds no GUID");
  EXPECT_THAT(of("Switch\tmany \"S-1\""), StartsWith("f:1: expected a number of ports"));
  EXPECT_EQ(of(head + head), "f:2: \"S-1\" stands twice");
  EXPECT_THAT(of(head + "[one] \"H-2\"[1]"), StartsWith("f:2: \"one\" is no port number"));
  EXPECT_THAT(of(head + "[1] \"H-2\"[1](2)"), StartsWith("f:2: has no comment"));
  EXPECT_THAT(of(head + "[1] \"H-2\"[1](2) # \"a HCA-1\" lid 2 4xWDR"),
              StartsWith("f:2: \"4xWDR\" is no link width and speed (such as 4xNDR; known: SDR"));
  EXPECT_THAT(of(head + "[1] \"H-2\"[1](2) # \"a HCA-1\" 4xNDR"),
              StartsWith("f:2: expected a lid, width and speed"));
  EXPECT_THAT(of(head + "[1] H-2[1]"), StartsWith("f:2: expected \"...\""));
  EXPECT_EQ(of(head), "f:1: describes no host");
}

TEST(NcclTopology, DescribesTheNode) {
  const ImportedTopology node = import_data("nccl_hgx.xml");
  EXPECT_TRUE(node.graph.empty());
  EXPECT_EQ(node.nodes.size(), 1U);
  EXPECT_EQ(node.devices, 4);
  EXPECT_EQ(node.device, "h100");
  EXPECT_EQ(node.nvlink, Bandwidth::gigabytes_per_second(18 * 25));
  EXPECT_EQ(node.nics, 2);
  EXPECT_EQ(node.nic_bandwidth, 400_Gbps);
  // 32 GT/s * 16 lanes * 128/130 = 504.1 Gb/s
  EXPECT_NEAR(static_cast<double>(node.pcie.bits_per_second()), 504.123e9, 1e6);
  // Nested switches below one port of a CPU count as one.
  EXPECT_THAT(node.pcie_switches,
              ElementsAre(ImportedPcieSwitch{{0}, {0}}, ImportedPcieSwitch{{1}, {1}},
                          ImportedPcieSwitch{{2, 3}, {}}));
}

TEST(NcclTopology, NamesWhatLooksWrong) {
  const ImportedTopology node = import_data("nccl_hgx.xml");
  EXPECT_THAT(node.remarks, Contains("gpu 2 has 16 NVLinks, the others 18"));
  EXPECT_THAT(node.remarks, Contains("gpu 3 has a PCIe link of 252 Gb/s, the others 504 Gb/s"));
  EXPECT_THAT(node.remarks, Contains("NIC \"mlx5_3\" of 400 Gb/s sits on a PCIe link of 252 Gb/s"));
  EXPECT_THAT(node.remarks, Contains(HasSubstr("\"mlx5_3\" reports no GPUDirect RDMA")));
  EXPECT_THAT(node.remarks, Contains(HasSubstr("\"mlx5_8\" of 100 Gb/s is much slower")));
}

TEST(NcclTopology, WithoutSpeedsOrAKnownDeviceItSaysSo) {
  const std::string text =
      "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:00:05.0\" link_speed=\"Unknown "
      "speed\" "
      "link_width=\"255\"><gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\"/></pci></cpu></system>";
  const ImportedTopology node = import_topology(text, "f", {});
  EXPECT_TRUE(node.pcie_switches.empty());
  EXPECT_EQ(node.device, "a100_80");
  EXPECT_THAT(node.remarks, Contains(HasSubstr("a virtual machine?")));
  EXPECT_THAT(node.remarks, Contains(HasSubstr("a100_80 is assumed from sm 80")));
}

// A GPU drives one NIC; storage cards hang apart from the GPUs.
TEST(NcclTopology, OfMoreNicsThanGpusTheFarOnesAreLeftOut) {
  const auto nic = [](const std::string& name, int dev) {
    return "<pci busid=\"" + name + "\"><nic><net name=\"" + name + "\" dev=\"" +
           std::to_string(dev) + "\" speed=\"200000\"/></nic></pci>";
  };
  const std::string text = "<system><cpu>" + nic("storage", 0) +
                           "<pci busid=\"s\"><pci busid=\"g\"><gpu dev=\"0\" sm=\"90\"/></pci>" +
                           nic("near", 1) + nic("second", 2) + "</pci></cpu></system>";
  const ImportedTopology node = import_topology(text, "f", {});
  EXPECT_EQ(node.nics, 1);
  EXPECT_THAT(node.remarks, Contains("more NICs than GPUs: \"storage\" is left out"));
  EXPECT_THAT(node.remarks, Contains("more NICs than GPUs: \"second\" is left out"));
}

TEST(NcclTopology, GarbageIsRefused) {
  const auto of = [](const std::string& text) { return complaint(text, TopologyFormat::Nccl); };
  const std::string gpu =
      "<pci busid=\"a\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n<gpu dev=\"0\" "
      "sm=\"90\"/></pci>";
  const auto in_cpu = [&](const std::string& more) {
    return "<system>\n<cpu>" + gpu + "\n" + more + "</cpu></system>";
  };
  EXPECT_EQ(of(in_cpu("")), "accepted");
  EXPECT_EQ(of(in_cpu("rubbish")), "f:4: not valid XML: text inside of an element");
  EXPECT_EQ(of(in_cpu("") + "\nrubbish"), "f:5: not valid XML: text outside of elements");
  EXPECT_EQ(of("<system><cpu>" + gpu + "</system></cpu>"),
            "f:2: not valid XML: \"cpu\" is closed by \"system\"");
  EXPECT_EQ(of(in_cpu("") + "<system/>"), "f:4: not valid XML: a second root, \"system\"");
  EXPECT_EQ(of(in_cpu("<pci busid=\"b\">")), "f:4: not valid XML: \"pci\" is closed by \"cpu\"");
  EXPECT_EQ(of("<system><cpu>"), "f:1: not valid XML: <cpu> is never closed");
  EXPECT_THAT(of("<system><gpu dev=\"0\" sm=\"90\"/></system>"),
              HasSubstr("\"gpu\" stands below <system>, where CPUs do"));
  EXPECT_THAT(of(in_cpu("<pci busid=\"c\" link_width=\"wide\"/>")),
              HasSubstr("f:4: pci \"c\": link_width \"wide\" is no number"));
  EXPECT_THAT(of(in_cpu("<pci busid=\"c\" link_speed=\"fast\"/>")),
              HasSubstr("f:4: pci \"c\": link_speed \"fast\" is none of PCI Express"));
  const ImportedTopology later = import_topology(in_cpu("<cxl/><cxl/>"), "f", {});
  EXPECT_THAT(later.remarks, Contains("elements \"cxl\" are not understood; left out"));
}

TEST(NcclTopology, ComplaintsNameTheLine) {
  const auto of = [](std::string_view text) { return complaint(text, TopologyFormat::Nccl); };
  EXPECT_THAT(of("<system>\n<cpu>\n</system>"), StartsWith("f:3: not valid XML"));
  EXPECT_EQ(of("<graphs></graphs>"),
            "f:1: has no <system> element, so it is no dump of NCCL's topology");
  EXPECT_EQ(of("<system><cpu/></system>"), "f:1: describes no GPU");
  EXPECT_EQ(of("<system><cpu>\n<pci busid=\"a\">\n<gpu dev=\"x\" sm=\"90\"/></pci></cpu></system>"),
            "f:2: pci \"a\": dev \"x\" is no number");
  EXPECT_EQ(of("<system><cpu>\n<pci busid=\"a\"><gpu dev=\"0\"/></pci></cpu></system>"),
            "f:2: pci \"a\": sm is missing");
  EXPECT_EQ(of("<system><cpu><pci busid=\"a\"><gpu dev=\"0\" sm=\"90\"/></pci><pci busid=\"b\">"
               "<gpu dev=\"0\" sm=\"90\"/></pci></cpu></system>"),
            "f:1: gpu 0 stands twice");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<a>";
  EXPECT_EQ(of(deep), "f:1: not valid XML: nested too deeply");
}

// 2 x 4 x 3 NPUs: 12 pairs, 6 groups of all-to-all with 6 links each, 8 switches of 3.
TEST(AstraSim, DimensionsAreRingsMeshesAndSwitches) {
  const ImportedTopology fabric = import_data("astra_sim_analytical.yml");
  EXPECT_EQ(fabric.nodes.size(), 24U);
  EXPECT_EQ(fabric.devices, 1);
  EXPECT_EQ(fabric.nics, 1);
  // 1 * 200 + 3 * 100 + 1 * 50 GB/s leave an NPU.
  EXPECT_EQ(fabric.nic_bandwidth, Bandwidth::gigabytes_per_second(550));
  EXPECT_EQ(fabric.graph.switches.size(), 24U + 8U);
  EXPECT_EQ(cable_count(fabric.graph), 24 + 12 + 6 * 6 + 24);
  EXPECT_THAT(fabric.graph.cables, Contains(Cable{{-1, 0, "router0"},
                                                  {-1, 0, "router1"},
                                                  Bandwidth::gigabytes_per_second(200),
                                                  std::chrono::nanoseconds(50),
                                                  1}));
  EXPECT_THAT(fabric.graph.cables, Contains(Cable{{-1, 0, "router9"},
                                                  {-1, 0, "dim2_switch1"},
                                                  Bandwidth::gigabytes_per_second(50),
                                                  Duration(936'250),
                                                  1}));
  EXPECT_EQ(tiers(fabric.graph).at("dim2_switch7"), 2);
}

TEST(AstraSim, OneSwitchNeedsNoRouters) {
  const ImportedTopology fabric = import_topology(
      "topology: [Switch]\nnpus_count: [8]\nbandwidth: [400]\nlatency: [936.25]\n", "f", {});
  EXPECT_EQ(fabric.graph.switches.size(), 1U);
  EXPECT_EQ(cable_count(fabric.graph), 8);
  EXPECT_EQ(fabric.nic_bandwidth, Bandwidth::gigabytes_per_second(400));
}

TEST(AstraSim, PhysicalTopologiesOfNs3) {
  const ImportedTopology star = import_data("astra_sim_star.txt");
  EXPECT_EQ(star.nodes.size(), 4U);
  EXPECT_EQ(star.graph.switches, (std::vector<GraphSwitch>{{"switch4", 1}}));
  EXPECT_EQ(star.graph.cables[3],
            (Cable{{-1, 0, "switch4"}, {3, 0, ""}, 400_Gbps, std::chrono::nanoseconds(500), 1}));
  const ImportedTopology ring = import_data("astra_sim_ring.txt");
  EXPECT_EQ(ring.graph.switches.size(), 4U);
  EXPECT_EQ(cable_count(ring.graph), 4 + 4);
  EXPECT_EQ(ring.nic_bandwidth, 50_Gbps);
  EXPECT_THAT(ring.remarks, Contains(HasSubstr("4 hosts relay for others")));
}

TEST(AstraSim, ComplaintsNameTheLineAndKey) {
  const auto of = [](std::string_view text) { return complaint(text, TopologyFormat::AstraSim); };
  const std::string rest = "bandwidth: [1]\nlatency: [1]\n";
  EXPECT_THAT(of("topology: [Tree]\nnpus_count: [2]\n" + rest),
              StartsWith("f:1: topology[0]: \"Tree\" is not one of Ring, FullyConnected, Switch"));
  EXPECT_EQ(of("topology: [Ring]\nnpus_count: [2, 2]\n" + rest),
            "f:2: npus_count: has 2 entries, but topology has 1");
  EXPECT_EQ(of("topology: [Ring]\nnpus_count: [1]\n" + rest),
            "f:2: npus_count: makes a single NPU");
  EXPECT_THAT(of("topology: [FullyConnected]\nnpus_count: [65536]\n" + rest),
              HasSubstr("npus_count: makes 2147516416 cables"));
  EXPECT_THAT(of("topology: [Ring]\nnpus_count: [2]\nbandwidth: [0]\nlatency: [1]\n"),
              StartsWith("f:3: bandwidth[0]: is no bandwidth"));
  EXPECT_THAT(of("topology: [Ring]\n"), HasSubstr("the key \"npus_count\" is missing"));
  EXPECT_EQ(of("3 1 1\n2\n0 7 1Gbps 1ms 0\n"),
            "f:3: the destination of a link \"7\" is not in 0..2");
  EXPECT_THAT(of("3 1 1\n2\n0 2 1Gbps 1parsec 0\n"),
              StartsWith("f:3: \"1parsec\" has the unknown unit \"parsec\""));
  EXPECT_EQ(of("3 1 2\n2\n0 2 1Gbps 1ms 0\n"), "f:3: ends where the source of a link should stand");
  EXPECT_EQ(of("3 1 1\n2\n0 2 1Gbps 1ms 0\n1 2 1Gbps 1ms 0\n"),
            "f:3: more links follow than the 1 of the first line");
  EXPECT_EQ(of("3 2 1\n2 2\n0 2 1Gbps 1ms 0\n"), "f:2: switch 2 stands twice");
  EXPECT_EQ(of("2 2 1\n0 1\n0 1 1Gbps 1ms 0\n"),
            "f:1: 2 nodes with 0 NVSwitches and 2 switches leave no GPU");
  EXPECT_EQ(of("3 1 1\n2\n1 1 1Gbps 1ms 0\n"), "f:3: 1 is linked to itself");
}

// 2 servers of 2 GPUs, each GPU with two ports in two planes.
TEST(Simai, ServersWithNvlinkAndTwoPlanes) {
  const ImportedTopology fabric = import_data("simai.txt");
  EXPECT_EQ(fabric.nodes.size(), 2U);
  EXPECT_EQ(fabric.devices, 2);
  EXPECT_EQ(fabric.nics, 2);
  EXPECT_EQ(fabric.device, "h100");
  EXPECT_EQ(fabric.nvlink, Bandwidth::gigabytes_per_second(450));
  EXPECT_EQ(fabric.nic_bandwidth, 400_Gbps);  // two ports of 200 Gb/s
  EXPECT_EQ(fabric.graph.switches.size(), 8U);
  EXPECT_EQ(cable_count(fabric.graph), 4 * 2 + 8);
  EXPECT_EQ(tiers(fabric.graph).at("switch9"), 1);
  EXPECT_EQ(tiers(fabric.graph).at("switch13"), 2);
}

TEST(Simai, ComplaintsNameTheLine) {
  const auto of = [](std::string_view text) { return complaint(text, TopologyFormat::Simai); };
  EXPECT_EQ(of("3 2 1 0 1 H100\n2\n0 1 1Gbps 1ms 0\n"),
            "f:3: GPUs 0 and 1 are linked without a switch");
  EXPECT_EQ(of("4 2 1 1 1 H100\n2 3\n3 2 1Gbps 1ms 0\n"), "f:3: NVSwitch 2 is linked to switch 3");
  EXPECT_EQ(of("4 2 0 1 1 H100\n3\n0 3 1Gbps 1ms 0\n"),
            "f:1: 3 GPUs are not a multiple of the 2 of a server");
  EXPECT_THAT(of("4 0 0 1 1 H100\n3\n"), StartsWith("f:1: 4 nodes with"));
}

TEST(ClusterDocument, NeedsADeviceAndSaysWhatItAssumed) {
  ImportedTopology fabric = import_data("ibnetdiscover.txt");
  EXPECT_THROW(cluster_document(fabric, "mine", {}), Error);
  ImportOptions options;
  options.device = "h100";
  const Document document = cluster_document(fabric, "mine", options);
  EXPECT_EQ(document.at("nodes"), 4);
  EXPECT_EQ(document.at("node").at("devices"), 3);
  EXPECT_THAT(fabric.remarks, Contains(HasSubstr("3 per node, one per NIC, are assumed")));
  EXPECT_EQ(read_graph(Yaml::parse(to_yaml(document), "c").at("fabric").at("graph")), fabric.graph);
  options.devices_per_node = 8;
  EXPECT_EQ(cluster_document(fabric, "mine", options).at("node").at("devices"), 8);
  ImportedTopology node = import_data("nccl_hgx.xml");
  EXPECT_THROW(cluster_document(node, "mine", options), Error);  // 8 asked for, the file has 4
}

TEST(ClusterDocument, OfANodeHasItsPcieAndOneSwitch) {
  ImportedTopology node = import_data("nccl_hgx.xml");
  const Document document = cluster_document(node, "mine", {});
  EXPECT_EQ(document.at("device"), "h100");
  EXPECT_EQ(document.at("node").at("pcie").at("bandwidth"), "403 Gb/s");  // 0.8 * 504
  EXPECT_EQ(document.at("node").at("pcie").at("switches").size(), 3U);
  EXPECT_EQ(document.at("fabric").at("tiers"), 1);
}

}  // namespace
}  // namespace foresail::topologies
