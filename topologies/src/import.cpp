#include "foresail/topologies/import.h"

#include <fmt/format.h>

#include <cmath>

#include "exact_text.h"
#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "import_text.h"

namespace foresail::topologies {
namespace {

/// What a copy achieves of a PCIe link: 25 of 31.5 GB/s (gen 4 x16), 50 to 55 of 63 (gen 5 x16).
constexpr double kPcieShare = 0.8;

Document node_document(const ImportedTopology& imported, int devices) {
  Document node = {{"devices", devices}, {"nics", imported.nics}};
  if (imported.nics > 0) node["nic_bandwidth"] = exact_text(imported.nic_bandwidth);
  if (imported.pcie_switches.empty()) return node;
  const double gigabits = kPcieShare * static_cast<double>(imported.pcie.bits_per_second()) * 1e-9;
  const std::int64_t whole = std::max<std::int64_t>(1, std::llround(gigabits));
  node["pcie"] = {{"bandwidth", exact_text(Bandwidth::gbps(whole))},
                  {"switches", Document::array()}};
  for (const ImportedPcieSwitch& one : imported.pcie_switches) {
    node["pcie"]["switches"].push_back({{"devices", one.devices}, {"nics", one.nics}});
  }
  return node;
}

int device_count(ImportedTopology& imported, const ImportOptions& options) {
  if (imported.devices > 0) {
    if (options.devices_per_node > 0 && options.devices_per_node != imported.devices) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("{} devices per node are asked for, but the file has {}",
                              options.devices_per_node, imported.devices));
    }
    return imported.devices;
  }
  if (options.devices_per_node > 0) return options.devices_per_node;
  imported.remarks.push_back(
      fmt::format("the file names no GPUs: {} per node, one per NIC, are assumed", imported.nics));
  return imported.nics;
}

}  // namespace

std::optional<TopologyFormat> detect_format(std::string_view text) {
  for (const TextLine& line : lines_of(text)) {
    if (line.text.find("Topology file: generated") != std::string_view::npos) {
      return TopologyFormat::Ibnetdiscover;
    }
    if (line.text.empty() || line.text.starts_with('#')) continue;
    if (line.text.starts_with('<')) return TopologyFormat::Nccl;
    for (const char* word : {"vendid=", "switchguid=", "caguid=", "Switch\t", "Switch ", "Ca\t",
                             "Ca ", "Chassis ", "Non-Chassis"}) {
      if (line.text.starts_with(word)) return TopologyFormat::Ibnetdiscover;
    }
    const auto words = words_of(line.text);
    if (number_of(words.front())) {
      if (words.size() == 3) return TopologyFormat::AstraSim;
      if (words.size() == 6) return TopologyFormat::Simai;
      return std::nullopt;
    }
    for (const char* key : {"topology:", "npus_count:", "bandwidth:", "latency:"}) {
      if (line.text.starts_with(key)) return TopologyFormat::AstraSim;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

ImportedTopology import_topology(std::string_view text, const std::string& file,
                                 const ImportOptions& options) {
  const auto format = options.format ? options.format : detect_format(text);
  if (!format) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: the format is not recognised; give one of {}", file,
                            choices<TopologyFormat>()));
  }
  switch (*format) {
    case TopologyFormat::Ibnetdiscover:
      return read_ibnetdiscover(text, file, options.link_latency);
    case TopologyFormat::Nccl:
      return read_nccl_topology(text, file);
    case TopologyFormat::AstraSim:
      return read_astra_sim(text, file);
    case TopologyFormat::Simai:
      return read_simai(text, file);
  }
  FORESAIL_EXPECT(!"a format without a reader");
  return {};
}

Document cluster_document(ImportedTopology& imported, const std::string& name,
                          const ImportOptions& options) {
  const std::string& device = options.device.empty() ? imported.device : options.device;
  if (device.empty()) {
    throw Error(ErrorCode::InvalidInput,
                "the file does not say which GPU the nodes have: name one of the catalogue");
  }
  const int devices = device_count(imported, options);
  Document document = {{"name", name},
                       {"device", device},
                       {"nodes", imported.nodes.size()},
                       {"node", node_document(imported, devices)}};
  if (!imported.graph.empty()) {
    document["fabric"] = {{"graph", to_document(imported.graph)}};
  } else if (imported.nics > 0) {
    document["fabric"] = {{"tiers", 1},
                          {"nodes_per_leaf", imported.nodes.size()},
                          {"link_latency", exact_text(options.link_latency)}};
    imported.remarks.push_back(fmt::format(
        "the file describes one node: the fabric is assumed, one switch with {} per hop; edit "
        "nodes and fabric",
        to_text(options.link_latency)));
  }
  if (!imported.pcie_switches.empty()) {
    imported.remarks.push_back(
        fmt::format("{:.0f} % of the PCIe links' rate is what a copy "
                    "achieves",
                    100 * kPcieShare));
  }
  return document;
}

}  // namespace foresail::topologies
