#include "read_parts.h"

#include <fmt/format.h>

#include <array>

#include "exact_text.h"
#include "foresail/base/reference.h"

namespace foresail::topologies {
namespace {

/// What a copy over sixteen lanes of a generation achieves, one direction: NCCL's topology figure
/// for the third, and measured device-to-device copies for the others (24 to 26 and 50 to 55 GB/s).
struct PcieGeneration {
  int generation;
  std::int64_t gigabytes_per_second;
};
constexpr std::array<PcieGeneration, 3> kPcieGenerations = {{{3, 12}, {4, 25}, {5, 52}}};

int read_count(const Yaml& node, std::int64_t low) {
  return static_cast<int>(node.as_integer(low, kCountMax));
}

Bandwidth read_bandwidth(const Yaml& node) {
  const Bandwidth value = node.as_bandwidth();
  if (value <= Bandwidth()) node.fail("must be positive");
  if (value > Bandwidth::gbps(1'000'000)) node.fail("is beyond any link");
  return value;
}

Duration read_latency(const Yaml& node) {
  const Duration value = node.as_duration();
  if (value > std::chrono::seconds(1)) node.fail("must not exceed 1 s");
  return value;
}

std::vector<int> read_indices(const Yaml& node) {
  std::vector<int> indices;
  for (const Yaml& item : node.items()) {
    indices.push_back(static_cast<int>(item.as_integer(0, 1023)));
  }
  return indices;
}

PcieSpec read_pcie(const Yaml& node) {
  node.allow_only({"generation", "bandwidth", "switches"});
  PcieSpec spec;
  const auto generation = node.find("generation");
  const auto bandwidth = node.find("bandwidth");
  if (generation && bandwidth) bandwidth->fail("stands beside generation; give one of them");
  if (generation) {
    const auto wanted = static_cast<int>(generation->as_integer(3, 5));
    for (const auto& [number, speed] : kPcieGenerations) {
      if (number == wanted) spec.bandwidth = Bandwidth::gigabytes_per_second(speed);
    }
  } else {
    spec.bandwidth = read_bandwidth(node.at("bandwidth"));
  }
  const Yaml switches = node.at("switches");
  for (const Yaml& item : switches.items()) {
    item.allow_only({"devices", "nics"});
    PcieSwitch part;
    if (const auto devices = item.find("devices")) part.devices = read_indices(*devices);
    if (const auto nics = item.find("nics")) part.nics = read_indices(*nics);
    spec.switches.push_back(std::move(part));
  }
  if (spec.switches.empty()) switches.fail("is empty");
  return spec;
}

void read_clos(const Yaml& node, FabricSpec& fabric) {
  node.allow_only({"kind", "tiers", "rails", "nodes_per_leaf", "leaf_uplinks", "uplink_bandwidth",
                   "leaves_per_pod", "aggregation_uplinks", "aggregation_uplink_bandwidth",
                   "pod_order", "switch_ports", "nic_ports", "planes", "link_latency"});
  fabric.tiers = static_cast<int>(node.at("tiers").as_integer(1, 3));
  fabric.nodes_per_leaf = read_count(node.at("nodes_per_leaf"), 1);
  const auto count = [&](const char* key, int& value) {
    if (const auto item = node.find(key)) value = read_count(*item, 1);
  };
  count("rails", fabric.rails);
  count("leaf_uplinks", fabric.leaf_uplinks);
  count("leaves_per_pod", fabric.leaves_per_pod);
  count("aggregation_uplinks", fabric.aggregation_uplinks);
  count("switch_ports", fabric.switch_ports);
  count("nic_ports", fabric.nic_ports);
  count("planes", fabric.planes);
  if (const auto value = node.find("uplink_bandwidth")) {
    fabric.uplink_bandwidth = read_bandwidth(*value);
  }
  if (const auto value = node.find("aggregation_uplink_bandwidth")) {
    fabric.aggregation_uplink_bandwidth = read_bandwidth(*value);
  }
  if (const auto value = node.find("pod_order")) fabric.pod_order = value->as_choice<PodOrder>();
}

void read_dragonfly(const Yaml& node, DragonflySpec& spec) {
  node.allow_only({"kind", "nics_per_router", "routers_per_group", "global_links", "groups",
                   "local_bandwidth", "global_bandwidth", "link_latency"});
  spec.nics_per_router = read_count(node.at("nics_per_router"), 1);
  spec.routers_per_group = read_count(node.at("routers_per_group"), 1);
  if (const auto links = node.find("global_links")) spec.global_links = read_count(*links, 0);
  spec.groups = read_count(node.at("groups"), 1);
  if (const auto value = node.find("local_bandwidth")) {
    spec.local_bandwidth = read_bandwidth(*value);
  }
  if (const auto value = node.find("global_bandwidth")) {
    spec.global_bandwidth = read_bandwidth(*value);
  }
}

void read_torus(const Yaml& node, TorusSpec& spec) {
  node.allow_only({"kind", "dimensions", "bandwidth", "link_latency"});
  const Yaml dimensions = node.at("dimensions");
  for (const Yaml& size : dimensions.items()) spec.dimensions.push_back(read_count(size, 1));
  if (spec.dimensions.empty() || spec.dimensions.size() > 3) {
    dimensions.fail("needs one to three sizes");
  }
  spec.bandwidth = read_bandwidth(node.at("bandwidth"));
}

void read_graph_fabric(const Yaml& node, GraphSpec& graph) {
  node.allow_only({"kind", "graph", "graph_file", "link_latency"});
  const auto file = node.find("graph_file");
  if (!file) {
    graph = read_graph(node.at("graph"));
    return;
  }
  if (node.find("graph")) file->fail("stands beside graph; give one of them");
  graph = read_graph(load_referenced(*file));
}

WiringChange read_change(const Yaml& node) {
  node.allow_only({"swap", "remove", "cable", "add", "bandwidth", "latency"});
  WiringChange change;
  std::optional<Yaml> what;
  for (const auto& [action, name] : kNames<WiringAction>) {
    const auto item = node.find(name);
    if (!item) continue;
    if (what) item->fail("stands beside another change; give each an item of its own");
    what = item;
    change.action = action;
  }
  if (!what) node.fail(fmt::format("names no change: one of {}", choices<WiringAction>()));
  if (change.action == WiringAction::Swap) {
    const std::vector<Yaml> ends = what->items();
    if (ends.size() != 2) what->fail("needs two NICs or two cables");
    change.first = ends[0].as_string();
    change.second = ends[1].as_string();
  } else {
    change.first = what->as_string();
  }
  const bool has_values =
      change.action == WiringAction::Cable || change.action == WiringAction::Add;
  const auto bandwidth = node.find("bandwidth");
  const auto latency = node.find("latency");
  for (const auto& value : {bandwidth, latency}) {
    if (value && !has_values) {
      value->fail(fmt::format("does not belong to {}", to_string(change.action)));
    }
  }
  if (bandwidth) change.bandwidth = read_bandwidth(*bandwidth);
  if (latency) change.latency = read_latency(*latency);
  return change;
}

Document pcie_document(const PcieSpec& pcie) {
  Document switches = Document::array();
  for (const PcieSwitch& item : pcie.switches) {
    switches.push_back({{"devices", item.devices}, {"nics", item.nics}});
  }
  return {{"bandwidth", exact_text(pcie.bandwidth)}, {"switches", switches}};
}

Document clos_document(const FabricSpec& fabric) {
  Document document = {{"tiers", fabric.tiers},
                       {"rails", fabric.rails},
                       {"nodes_per_leaf", fabric.nodes_per_leaf},
                       {"pod_order", std::string(to_string(fabric.pod_order))}};
  const auto add_count = [&](const char* key, int count, int usual) {
    if (count != usual) document[key] = count;
  };
  add_count("leaf_uplinks", fabric.leaf_uplinks, 0);
  add_count("leaves_per_pod", fabric.leaves_per_pod, 0);
  add_count("aggregation_uplinks", fabric.aggregation_uplinks, 0);
  add_count("switch_ports", fabric.switch_ports, 0);
  add_count("nic_ports", fabric.nic_ports, 1);
  add_count("planes", fabric.planes, 1);
  if (fabric.uplink_bandwidth > Bandwidth()) {
    document["uplink_bandwidth"] = exact_text(fabric.uplink_bandwidth);
  }
  if (fabric.aggregation_uplink_bandwidth > Bandwidth()) {
    document["aggregation_uplink_bandwidth"] = exact_text(fabric.aggregation_uplink_bandwidth);
  }
  return document;
}

Document dragonfly_document(const DragonflySpec& spec) {
  Document document = {{"nics_per_router", spec.nics_per_router},
                       {"routers_per_group", spec.routers_per_group},
                       {"global_links", spec.global_links},
                       {"groups", spec.groups}};
  if (spec.local_bandwidth > Bandwidth()) {
    document["local_bandwidth"] = exact_text(spec.local_bandwidth);
  }
  if (spec.global_bandwidth > Bandwidth()) {
    document["global_bandwidth"] = exact_text(spec.global_bandwidth);
  }
  return document;
}

Bytes read_memory(const Yaml& node) {
  const Bytes memory = node.as_bytes();
  if (memory <= Bytes() || memory > Bytes(std::int64_t{1} << 50)) {
    node.fail("must be positive and at most 1024 TiB");
  }
  return memory;
}

HostSpec read_host(const Yaml& node) {
  node.allow_only({"memory", "bandwidth", "link"});
  // Slower ones would make steps of days.
  const auto rate = [](const Yaml& value) {
    const Bandwidth read = read_bandwidth(value);
    if (read < Bandwidth::bps(10'000'000)) value.fail("must be at least 10 Mb/s");
    return read;
  };
  return {read_memory(node.at("memory")), rate(node.at("bandwidth")), rate(node.at("link"))};
}

}  // namespace

NodeSpec read_node(const Yaml& node) {
  node.allow_only({"devices", "nics", "nic_bandwidth", "nic_latency", "nccl_latency", "cpu_vendor",
                   "cores", "memory", "pcie", "host"});
  NodeSpec spec;
  spec.devices = static_cast<int>(node.at("devices").as_integer(1, 1024));
  spec.nics = static_cast<int>(node.at("nics").as_integer(0, 1024));
  if (spec.nics > 0) spec.nic_bandwidth = read_bandwidth(node.at("nic_bandwidth"));
  if (const auto latency = node.find("nic_latency")) spec.nic_latency = read_latency(*latency);
  if (const auto latency = node.find("nccl_latency")) spec.nccl_latency = read_latency(*latency);
  if (const auto cpu = node.find("cpu_vendor")) spec.cpu_vendor = cpu->as_choice<CpuVendor>();
  if (const auto cores = node.find("cores")) spec.cores = read_count(*cores, 1);
  if (const auto memory = node.find("memory")) spec.memory = read_memory(*memory);
  if (const auto pcie = node.find("pcie")) spec.pcie = read_pcie(*pcie);
  if (const auto host = node.find("host")) spec.host = read_host(*host);
  return spec;
}

FabricSpec read_fabric(const Yaml& node) {
  FabricSpec fabric;
  const auto kind = node.find("kind");
  if (kind) {
    fabric.kind = kind->as_choice<FabricKind>();
  } else if (node.find("graph") || node.find("graph_file")) {
    fabric.kind = FabricKind::Graph;
  }
  switch (fabric.kind) {
    case FabricKind::Clos:
      read_clos(node, fabric);
      break;
    case FabricKind::Dragonfly:
      read_dragonfly(node, fabric.dragonfly);
      break;
    case FabricKind::Torus:
      read_torus(node, fabric.torus);
      break;
    case FabricKind::Graph:
      read_graph_fabric(node, fabric.graph);
      if (const auto latency = node.find("link_latency")) {
        fabric.link_latency = read_latency(*latency);
      }
      return fabric;
  }
  fabric.link_latency = read_latency(node.at("link_latency"));
  return fabric;
}

Wiring read_wiring(const Yaml& node) {
  Wiring wiring;
  for (const Yaml& item : node.items()) wiring.push_back(read_change(item));
  return wiring;
}

Document node_document(const NodeSpec& node) {
  Document document = {{"devices", node.devices}, {"nics", node.nics}};
  if (node.nics > 0) document["nic_bandwidth"] = exact_text(node.nic_bandwidth);
  if (node.nic_latency > Duration{}) document["nic_latency"] = exact_text(node.nic_latency);
  if (node.nccl_latency) document["nccl_latency"] = exact_text(*node.nccl_latency);
  if (node.cpu_vendor != CpuVendor::Intel) {
    document["cpu_vendor"] = std::string(to_string(node.cpu_vendor));
  }
  if (node.cores > 0) document["cores"] = node.cores;
  if (node.memory > Bytes()) document["memory"] = exact_text(node.memory);
  if (!node.pcie.empty()) document["pcie"] = pcie_document(node.pcie);
  if (!node.host.empty()) {
    document["host"] = {{"memory", exact_text(node.host.memory)},
                        {"bandwidth", exact_text(node.host.bandwidth)},
                        {"link", exact_text(node.host.link)}};
  }
  return document;
}

Document fabric_document(const FabricSpec& fabric) {
  Document document;
  switch (fabric.kind) {
    case FabricKind::Clos:
      document = clos_document(fabric);
      break;
    case FabricKind::Dragonfly:
      document = dragonfly_document(fabric.dragonfly);
      break;
    case FabricKind::Torus:
      document = {{"dimensions", fabric.torus.dimensions},
                  {"bandwidth", exact_text(fabric.torus.bandwidth)}};
      break;
    case FabricKind::Graph:
      document["graph"] = to_document(fabric.graph);
      break;
  }
  // A Clos is the usual kind, so that plans of before read as they were written.
  if (fabric.kind != FabricKind::Clos) document["kind"] = std::string(to_string(fabric.kind));
  document["link_latency"] = exact_text(fabric.link_latency);
  return document;
}

Document wiring_document(const Wiring& wiring) {
  Document items = Document::array();
  for (const WiringChange& change : wiring) {
    Document item = Document::object();
    const std::string action(to_string(change.action));
    item[action] = change.first;
    if (change.action == WiringAction::Swap) item[action] = {change.first, change.second};
    if (change.bandwidth) item["bandwidth"] = exact_text(*change.bandwidth);
    if (change.latency) item["latency"] = exact_text(*change.latency);
    items.push_back(item);
  }
  return items;
}

}  // namespace foresail::topologies
