#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kFull = R"(name: mine
device: h100
nodes: 4
node:
  devices: 8
  nics: 8
  nic_bandwidth: 400 Gb/s
fabric:
  tiers: 2
  rails: 8
  nodes_per_leaf: 16
  leaf_uplinks: 16
  uplink_bandwidth: 400 Gb/s
  link_latency: 450 ns
)";

std::string complaint(std::string_view text) {
  try {
    resolve_text(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

/// kFull with one line replaced.
std::string with(std::string_view line, std::string_view replacement) {
  std::string text(kFull);
  const std::size_t at = text.find(line);
  EXPECT_NE(at, std::string::npos) << line;
  return text.replace(at, line.size(), replacement);
}

/// A folder that goes with the test.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("topologies_test_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(ResolveCluster, NameAloneTakesTheSizeOfTheFile) {
  EXPECT_EQ(resolve_text("megascale").nodes, 1536);
  EXPECT_EQ(resolve_text("{name: megascale}"), resolve_text("megascale"));
}

TEST(ResolveCluster, GpusSetTheSize) {
  const Cluster::Options options = resolve_text("{name: dgx_h100, gpus: 64}");
  EXPECT_EQ(options.nodes, 8);
  EXPECT_EQ(options.node.devices, 8);
}

TEST(ResolveCluster, LessThanANodeIsOneSmallerNodeWithTheNicsItUses) {
  // GPUs 0, 1, 2 of 8 sit by NICs 0, 0, 1 of 4.
  const Cluster::Options options = resolve_text("{name: dgx_a100_roce4, gpus: 3}");
  EXPECT_EQ(options.nodes, 1);
  EXPECT_EQ(options.node.devices, 3);
  EXPECT_EQ(options.node.nics, 2);
  EXPECT_EQ(options.fabric.rails, 2);
  const Cluster cluster(options);
  EXPECT_EQ(cluster.nic_vertex(device_id(0)), cluster.nic_vertex(device_id(1)));
  EXPECT_NE(cluster.nic_vertex(device_id(1)), cluster.nic_vertex(device_id(2)));
}

TEST(ResolveCluster, AHostHasAsManyDevicesAsAskedAndItsCoresCanBeSet) {
  const Cluster::Options options = resolve_text("{name: host, gpus: 6, cores: 3}");
  EXPECT_EQ(options.nodes, 1);
  EXPECT_EQ(options.node.devices, 6);
  EXPECT_EQ(options.node.cores, 3);
  EXPECT_EQ(resolve_text("host").node.cores, 2);
}

TEST(ResolveCluster, FullMappingTakesDevicesByNameOrInPlace) {
  const Cluster::Options named = resolve_text(kFull);
  EXPECT_EQ(named.device.name, "h100");
  EXPECT_EQ(named.nodes, 4);
  const Cluster::Options in_place =
      resolve_text(with("device: h100",
                        "device: {name: x, peak_16: 1 TFLOP/s, peak_32: 1 TFLOP/s, memory: 1 GiB, "
                        "memory_bandwidth: 1 GB/s, nvlink: 1 GB/s, multiprocessors: 1}"));
  EXPECT_EQ(in_place.device.name, "x");
  EXPECT_EQ(in_place.fabric, named.fabric);
  EXPECT_EQ(resolve_text(with("nodes: 4", "gpus: 32")), named);
}

TEST(ResolveCluster, DocumentReadsBackEqualWithoutACatalogue) {
  for (const char* text : {"{name: megascale, gpus: 12288}", "{name: selene, gpus: 16}",
                           "{name: dgx_h100, gpus: 3}", "{name: host, gpus: 4, cores: 7}"}) {
    const Cluster::Options options = resolve_text(text);
    const std::string yaml = to_yaml(to_document(options));
    const Cluster::Options again = resolve_cluster(Yaml::parse(yaml, "plan.yaml"), {});
    EXPECT_EQ(again, options) << yaml;
    EXPECT_EQ(to_yaml(to_document(again)), yaml);
  }
}

TEST(ResolveCluster, PathsAreRelativeToTheFileThatNamesThem) {
  const Folder folder;
  folder.write("mine.yaml", kFull);
  folder.write("scenario.yaml", "cluster: {name: ./mine.yaml, gpus: 64}\nother: ./absent.yaml\n");
  const Yaml scenario = Yaml::load(folder.path() / "scenario.yaml");
  const Cluster::Options options = resolve_cluster(scenario.at("cluster"), {catalogue_folder()});
  EXPECT_EQ(options.name, "mine");
  EXPECT_EQ(options.nodes, 8);
  try {
    resolve_cluster(scenario.at("other"), {catalogue_folder()});
    FAIL() << "a missing file was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFound);
    EXPECT_THAT(error.what(), HasSubstr("scenario.yaml:2: other: "));
    EXPECT_THAT(error.what(), HasSubstr("absent.yaml: no such file"));
  }
}

TEST(ResolveCluster, EarlierFoldersWin) {
  const Folder folder;
  std::filesystem::create_directories(folder.path() / "clusters");
  folder.write("clusters/selene.yaml", with("name: mine", "name: my_selene"));
  const Yaml name = Yaml::parse("selene", "test.yaml");
  EXPECT_EQ(resolve_cluster(name, {folder.path(), catalogue_folder()}).name, "my_selene");
  EXPECT_EQ(resolve_cluster(name, {catalogue_folder(), folder.path()}).name, "selene");
}

TEST(ResolveCluster, ReferencesAreChecked) {
  EXPECT_THAT(complaint("nowhere"), StartsWith("test.yaml:1: no cluster \"nowhere\" in the "
                                               "catalogue (it has: aws_p5_h100, "));
  EXPECT_THAT(complaint("{name: dgx_h100, gpus: 12}"),
              StartsWith("test.yaml:1: gpus: 12 is not a multiple of the 8 devices of a node"));
  EXPECT_THAT(complaint("{name: dgx_h100, gpus: eight}"),
              StartsWith("test.yaml:1: gpus: expected an integer, got \"eight\""));
  EXPECT_THAT(complaint("{name: dgx_h100, gpus: 0}"),
              StartsWith("test.yaml:1: gpus: 0 is outside"));
  EXPECT_THAT(complaint("{name: dgx_h100, gpu: 8}"),
              StartsWith("test.yaml:1: gpu: unknown key; did you mean \"gpus\"?"));
  EXPECT_THAT(complaint("{gpus: 8}"), StartsWith("test.yaml:1: the key \"name\" is missing"));
  EXPECT_THAT(complaint("{name: dgx_h100, cores: 8}"),
              StartsWith("test.yaml:1: cores: dgx_h100 is no CPU host"));
  EXPECT_THAT(complaint("[megascale]"), StartsWith("test.yaml:1: expected a mapping"));
  EXPECT_THAT(complaint("{name: host, gpus: 5000}"),
              HasSubstr("node.devices 5000 is not in 1..1024"));
}

TEST(ResolveCluster, ComplaintsNameFileLineAndKey) {
  EXPECT_THAT(complaint(with("nic_bandwidth: 400 Gb/s", "nic_bandwidth: 400")),
              StartsWith("test.yaml:7: node.nic_bandwidth: \"400\" has no unit"));
  EXPECT_THAT(complaint(with("nic_bandwidth: 400 Gb/s", "nic_bandwidth: 0 Gb/s")),
              StartsWith("test.yaml:7: node.nic_bandwidth: must be positive"));
  EXPECT_THAT(complaint(with("leaf_uplinks", "leaf_uplink")),
              StartsWith("test.yaml:12: fabric.leaf_uplink: unknown key; did you mean"));
  EXPECT_THAT(complaint(with("tiers: 2", "tiers: 4")),
              StartsWith("test.yaml:9: fabric.tiers: 4 is outside [1, 3]"));
  EXPECT_THAT(complaint(with("rails: 8", "pod_order: sideways")),
              StartsWith("test.yaml:10: fabric.pod_order: \"sideways\" is not one of group, rail"));
  EXPECT_THAT(complaint(with("450 ns", "2 s")),
              StartsWith("test.yaml:14: fabric.link_latency: must not exceed 1 s"));
  EXPECT_THAT(
      complaint(with("device: h100", "device: h1000")),
      StartsWith("test.yaml:2: device: no device \"h1000\" in the catalogue (it has: a100_40"));
  EXPECT_THAT(complaint(with("nodes: 4", "nodes: 4\ngpus: 32")),
              StartsWith("test.yaml:4: gpus: stands beside nodes; give one of them"));
  EXPECT_THAT(complaint(with("name: mine", "name: \"\"")),
              StartsWith("test.yaml:1: name: is empty"));
  EXPECT_THAT(complaint("node: {devices: 1, nics: 0}"),
              StartsWith("test.yaml:1: the key \"name\" is missing"));
}

TEST(ResolveCluster, BrokenLawsNameTheFileAndEveryTerm) {
  EXPECT_EQ(complaint(with("rails: 8", "rails: 9")),
            "test.yaml:10: fabric.rails: 9 is not in 1..nics 8");
  EXPECT_EQ(complaint(with("  link_latency", "  switch_ports: 16\n  link_latency")),
            "test.yaml:11: fabric.nodes_per_leaf: a leaf has nodes_per_leaf 16 * 1 NICs of 400 "
            "Gb/s and 16 uplinks: 32 "
            "ports of 400 Gb/s, but a switch has 16");
}

TEST(ResolveCluster, BrokenLawsNameTheLineOfTheKeyThatWasGiven) {
  // Missing: the mapping in which it should stand.
  EXPECT_THAT(complaint(with("  uplink_bandwidth: 400 Gb/s\n", "")),
              HasSubstr(": fabric: fabric.uplink_bandwidth is missing"));
  EXPECT_THAT(complaint(with("nodes: 4", "nodes: 200000")), HasSubstr(": nodes: 200000 is not in"));
  EXPECT_THAT(complaint(with("nodes: 4", "gpus: 1600000")), HasSubstr(": gpus: nodes 200000 is"));
  EXPECT_THAT(complaint("name: dgx_h100\ngpus: 1600000\n"),
              StartsWith("test.yaml:2: gpus: nodes 200000 is not in"));
}

}  // namespace
}  // namespace foresail::topologies
