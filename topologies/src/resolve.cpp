#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "clos.h"
#include "exact_text.h"
#include "foresail/base/error.h"
#include "foresail/topologies/cluster.h"

namespace foresail::topologies {
namespace {

using Search = std::vector<std::filesystem::path>;

constexpr int kCountMax = 1 << 16;
constexpr int kDevicesMax = 1 << 22;

/// "clusters" or "devices" of the catalogue.
struct Shelf {
  std::string_view folder;
  std::string_view noun;
};
constexpr Shelf kClusters{"clusters", "cluster"};
constexpr Shelf kDevices{"devices", "device"};

bool is_path(std::string_view text) {
  return text.find('/') != std::string_view::npos || text.ends_with(".yaml") ||
         text.ends_with(".yml");
}

/// Loads what the scalar `node` names: a path beside the file it stands in, or a catalogue name.
Yaml load_named(const Yaml& node, const Shelf& shelf, const Search& search) {
  const std::string text = node.as_string();
  if (text.empty()) node.fail(fmt::format("names no {}", shelf.noun));
  if (is_path(text)) return Yaml::load(std::filesystem::path(node.file()).parent_path() / text);
  std::set<std::string> known;
  std::error_code ignored;
  for (const std::filesystem::path& root : search) {
    const std::filesystem::path folder = root / shelf.folder;
    const std::filesystem::path file = folder / (text + ".yaml");
    if (std::filesystem::is_regular_file(file, ignored)) return Yaml::load(file);
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".yaml") known.insert(entry.path().stem().string());
    }
  }
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  node.fail(fmt::format("no {} \"{}\" in the catalogue (it has: {})", shelf.noun, text, list));
}

DeviceSpec resolve_device(const Yaml& node, const Search& search) {
  if (node.is_scalar()) return read_device(load_named(node, kDevices, search));
  return read_device(node);
}

int read_count(const Yaml& node, std::int64_t low) {
  return static_cast<int>(node.as_integer(low, kCountMax));
}

Bandwidth read_bandwidth(const Yaml& node) {
  const Bandwidth value = node.as_bandwidth();
  if (value <= Bandwidth()) node.fail("must be positive");
  if (value > Bandwidth::gbps(1'000'000)) node.fail("is beyond any link");
  return value;
}

NodeSpec read_node(const Yaml& node) {
  node.allow_only(
      {"devices", "nics", "nic_bandwidth", "nic_latency", "cpu_vendor", "cores", "memory"});
  NodeSpec spec;
  spec.devices = static_cast<int>(node.at("devices").as_integer(1, 1024));
  spec.nics = static_cast<int>(node.at("nics").as_integer(0, 1024));
  if (spec.nics > 0) spec.nic_bandwidth = read_bandwidth(node.at("nic_bandwidth"));
  if (const auto latency = node.find("nic_latency")) {
    spec.nic_latency = latency->as_duration();
    if (spec.nic_latency > std::chrono::seconds(1)) latency->fail("must not exceed 1 s");
  }
  if (const auto cpu = node.find("cpu_vendor")) spec.cpu_vendor = cpu->as_choice<CpuVendor>();
  if (const auto cores = node.find("cores")) spec.cores = read_count(*cores, 1);
  if (const auto memory = node.find("memory")) {
    spec.memory = memory->as_bytes();
    if (spec.memory <= Bytes() || spec.memory > Bytes(std::int64_t{1} << 50)) {
      memory->fail("must be positive and at most 1024 TiB");
    }
  }
  return spec;
}

FabricSpec read_fabric(const Yaml& node) {
  node.allow_only({"tiers", "rails", "nodes_per_leaf", "leaf_uplinks", "uplink_bandwidth",
                   "leaves_per_pod", "aggregation_uplinks", "pod_order", "switch_ports",
                   "link_latency"});
  FabricSpec fabric;
  fabric.tiers = static_cast<int>(node.at("tiers").as_integer(1, 3));
  if (const auto rails = node.find("rails")) fabric.rails = read_count(*rails, 1);
  fabric.nodes_per_leaf = read_count(node.at("nodes_per_leaf"), 1);
  if (const auto value = node.find("leaf_uplinks")) fabric.leaf_uplinks = read_count(*value, 1);
  if (const auto value = node.find("uplink_bandwidth")) {
    fabric.uplink_bandwidth = read_bandwidth(*value);
  }
  if (const auto value = node.find("leaves_per_pod")) fabric.leaves_per_pod = read_count(*value, 1);
  if (const auto value = node.find("aggregation_uplinks")) {
    fabric.aggregation_uplinks = read_count(*value, 1);
  }
  if (const auto value = node.find("pod_order")) fabric.pod_order = value->as_choice<PodOrder>();
  if (const auto value = node.find("switch_ports")) fabric.switch_ports = read_count(*value, 1);
  const Yaml latency = node.at("link_latency");
  fabric.link_latency = latency.as_duration();
  if (fabric.link_latency > std::chrono::seconds(1)) latency.fail("must not exceed 1 s");
  return fabric;
}

/// The first devices of one node, with the NICs and rails that they use.
void shrink_node(Cluster::Options& options, int devices) {
  NodeSpec& node = options.node;
  const int nics = node.nics == 0 ? 0 : (devices - 1) * node.nics / node.devices + 1;
  if (nics > 0) options.fabric.rails = (nics - 1) * options.fabric.rails / node.nics + 1;
  node.devices = devices;
  node.nics = nics;
  options.nodes = 1;
}

void resize(Cluster::Options& options, const Yaml& size) {
  const int devices = static_cast<int>(size.as_integer(1, kDevicesMax));
  const int per_node = options.node.devices;
  if (options.device.kind == DeviceKind::Cpu && options.fabric.tiers == 0) {
    options.node.devices = devices;
  } else if (devices < per_node) {
    shrink_node(options, devices);
  } else if (devices % per_node != 0) {
    size.fail(fmt::format("{} is not a multiple of the {} devices of a node", devices, per_node));
  } else {
    options.nodes = devices / per_node;
  }
}

void check_laws(const Cluster::Options& options, const Yaml& node) {
  if (const auto law = broken_law(options)) node.fail(*law);
}

Cluster::Options read_cluster(const Yaml& node, const Search& search) {
  node.allow_only({"name", "device", "node", "fabric", "nodes", "gpus"});
  Cluster::Options options;
  const Yaml name = node.at("name");
  options.name = name.as_string();
  if (options.name.empty()) name.fail("is empty");
  options.device = resolve_device(node.at("device"), search);
  options.node = read_node(node.at("node"));
  if (const auto fabric = node.find("fabric")) options.fabric = read_fabric(*fabric);
  const auto nodes = node.find("nodes");
  const auto gpus = node.find("gpus");
  if (nodes && gpus) gpus->fail("stands beside nodes; give one of them");
  if (nodes) options.nodes = static_cast<int>(nodes->as_integer(1, kDevicesMax));
  if (gpus) resize(options, *gpus);
  check_laws(options, node);
  return options;
}

Cluster::Options resolve_named(const Yaml& name, const Search& search) {
  return read_cluster(load_named(name, kClusters, search), search);
}

Document node_document(const NodeSpec& node) {
  Document document = {{"devices", node.devices}, {"nics", node.nics}};
  if (node.nics > 0) document["nic_bandwidth"] = exact_text(node.nic_bandwidth);
  if (node.nic_latency > Duration{}) document["nic_latency"] = exact_text(node.nic_latency);
  if (node.cpu_vendor != CpuVendor::Intel) {
    document["cpu_vendor"] = std::string(to_string(node.cpu_vendor));
  }
  if (node.cores > 0) document["cores"] = node.cores;
  if (node.memory > Bytes()) document["memory"] = exact_text(node.memory);
  return document;
}

Document fabric_document(const FabricSpec& fabric) {
  Document document = {{"tiers", fabric.tiers},
                       {"rails", fabric.rails},
                       {"nodes_per_leaf", fabric.nodes_per_leaf},
                       {"pod_order", std::string(to_string(fabric.pod_order))},
                       {"link_latency", exact_text(fabric.link_latency)}};
  const auto add_count = [&](const char* key, int count) {
    if (count > 0) document[key] = count;
  };
  add_count("leaf_uplinks", fabric.leaf_uplinks);
  add_count("leaves_per_pod", fabric.leaves_per_pod);
  add_count("aggregation_uplinks", fabric.aggregation_uplinks);
  add_count("switch_ports", fabric.switch_ports);
  if (fabric.uplink_bandwidth > Bandwidth()) {
    document["uplink_bandwidth"] = exact_text(fabric.uplink_bandwidth);
  }
  return document;
}

}  // namespace

Cluster::Options resolve_cluster(const Yaml& node, const Search& search) {
  if (node.is_scalar()) return resolve_named(node, search);
  if (node.find("device") || node.find("node") || node.find("fabric")) {
    return read_cluster(node, search);
  }
  node.allow_only({"name", "gpus", "cores"});
  Cluster::Options options = resolve_named(node.at("name"), search);
  if (const auto gpus = node.find("gpus")) resize(options, *gpus);
  if (const auto cores = node.find("cores")) {
    if (options.device.kind != DeviceKind::Cpu) {
      cores->fail(fmt::format("{} is no CPU host", options.name));
    }
    options.node.cores = read_count(*cores, 1);
  }
  check_laws(options, node);
  return options;
}

Document to_document(const Cluster::Options& options) {
  Document document = {{"name", options.name},
                       {"device", to_document(options.device)},
                       {"node", node_document(options.node)},
                       {"nodes", options.nodes}};
  if (options.fabric.tiers > 0) document["fabric"] = fabric_document(options.fabric);
  return document;
}

}  // namespace foresail::topologies
