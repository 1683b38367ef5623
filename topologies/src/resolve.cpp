#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "foresail/base/error.h"
#include "foresail/base/reference.h"
#include "foresail/base/yaml_name.h"
#include "foresail/topologies/cluster.h"
#include "laws.h"
#include "node_shape.h"
#include "read_parts.h"
#include "wiring.h"

namespace foresail::topologies {
namespace {

using Search = std::vector<std::filesystem::path>;

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
  if (is_path(text)) return load_referenced(node);
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

/// The first `count` of what each PCIe switch holds; switches left empty go.
PcieSpec shrunk(const PcieSpec& pcie, int devices, int nics) {
  PcieSpec rest{pcie.bandwidth, {}};
  for (PcieSwitch item : pcie.switches) {
    std::erase_if(item.devices, [&](int index) { return index >= devices; });
    std::erase_if(item.nics, [&](int index) { return index >= nics; });
    if (!item.devices.empty() || !item.nics.empty()) rest.switches.push_back(item);
  }
  return rest;
}

/// The first devices of one node, with the NICs and rails that they use.
void shrink_node(Cluster::Options& options, int devices) {
  NodeSpec& node = options.node;
  int nics = 0;
  if (node.nics > 0) {
    const NodeShape shape(node, options.device.nvlink);
    for (int d = 0; d < devices; ++d) {
      nics = std::max(nics, shape.nic_of_device[static_cast<std::size_t>(d)] + 1);
    }
    options.fabric.rails = (nics - 1) * options.fabric.rails / node.nics + 1;
  }
  node.pcie = shrunk(node.pcie, devices, nics);
  node.devices = devices;
  node.nics = nics;
  options.nodes = 1;
}

void resize(Cluster::Options& options, const Yaml& size) {
  const int devices = static_cast<int>(size.as_integer(1, kDevicesMax));
  const int per_node = options.node.devices;
  if (options.device.kind == DeviceKind::Cpu && !options.fabric.has_fabric()) {
    options.node.devices = devices;
  } else if (devices < per_node) {
    shrink_node(options, devices);
  } else if (devices % per_node != 0) {
    size.fail(fmt::format("{} is not a multiple of the {} devices of a node", devices, per_node));
  } else {
    options.nodes = devices / per_node;
  }
}

/// The key of `node` that a broken law names first ("fabric.tiers 4 ...", "rails 2 with ..."), or
/// what was given instead of it; `node` itself if it names none. A missing key: its mapping.
Yaml culprit(const Yaml& node, std::string_view law) {
  while (!law.empty()) {
    const std::size_t length = std::min(law.find_first_of(" :,()"), law.size());
    std::string_view word = law.substr(0, length);
    law.remove_prefix(std::min(length + 1, law.size()));
    if (const auto gpus = node.find("gpus"); gpus && word == "nodes") return *gpus;
    for (const char* parent : {"", "node", "fabric"}) {
      const auto start = *parent == '\0' ? std::optional<Yaml>(node) : node.find(parent);
      if (!start || !start->is_map()) continue;
      std::optional<Yaml> found;
      for (std::string_view rest = word; !rest.empty();) {
        const Yaml at = found.value_or(*start);
        const std::size_t dot = std::min(rest.find('.'), rest.size());
        const auto next = at.is_map() ? at.find(rest.substr(0, dot)) : std::nullopt;
        if (!next) break;
        found = next;
        rest.remove_prefix(std::min(dot + 1, rest.size()));
      }
      if (found) return *found;
    }
  }
  const auto gpus = node.find("gpus");
  return gpus ? *gpus : node;
}

/// `wiring` is what was read last, into the end of the options' own.
void check_laws(const Cluster::Options& options, const Yaml& node,
                const std::optional<Yaml>& wiring) {
  if (const auto law = broken_law(options)) {
    const Yaml at = culprit(node, *law);
    // "fabric.tiers 4 is not ..." stands behind "fabric.tiers: " already.
    const std::size_t nested = node.key().empty() ? 0 : node.key().size() + 1;
    const std::string key = at.key().size() > nested ? at.key().substr(nested) + " " : "";
    at.fail(!key.empty() && law->starts_with(key) ? law->substr(key.size()) : *law);
  }
  const auto fault = broken_wiring(options);
  if (!fault) return;
  const std::vector<Yaml> items = wiring ? wiring->items() : std::vector<Yaml>();
  const std::size_t before = options.wiring.size() - items.size();
  if (fault->change >= before) items[fault->change - before].fail(fault->message);
  node.fail(fmt::format("wiring[{}]: {}", fault->change, fault->message));
}

std::optional<Yaml> add_wiring(Cluster::Options& options, const Yaml& node) {
  const auto wiring = node.find("wiring");
  if (!wiring) return wiring;
  const Wiring more = read_wiring(*wiring);
  options.wiring.insert(options.wiring.end(), more.begin(), more.end());
  return wiring;
}

Cluster::Options read_cluster(const Yaml& node, const Search& search) {
  node.allow_only({"name", "device", "node", "fabric", "nodes", "gpus", "wiring"});
  Cluster::Options options;
  options.name = read_name(node.at("name"));
  options.device = resolve_device(node.at("device"), search);
  options.node = read_node(node.at("node"));
  if (const auto fabric = node.find("fabric")) options.fabric = read_fabric(*fabric);
  const auto nodes = node.find("nodes");
  const auto gpus = node.find("gpus");
  if (nodes && gpus) gpus->fail("stands beside nodes; give one of them");
  if (nodes) options.nodes = static_cast<int>(nodes->as_integer(1, kDevicesMax));
  if (gpus) resize(options, *gpus);
  check_laws(options, node, add_wiring(options, node));
  return options;
}

Cluster::Options resolve_named(const Yaml& name, const Search& search) {
  return read_cluster(load_named(name, kClusters, search), search);
}

// With the size, cores and wiring that `node` asks for.
Cluster::Options sized(Cluster::Options options, const Yaml& node) {
  if (const auto gpus = node.find("gpus")) resize(options, *gpus);
  if (const auto cores = node.find("cores")) {
    if (options.device.kind != DeviceKind::Cpu) {
      cores->fail(fmt::format("{} is no CPU host", options.name));
    }
    options.node.cores = static_cast<int>(cores->as_integer(1, kCountMax));
  }
  check_laws(options, node, add_wiring(options, node));
  return options;
}

// That cluster with what else `node` says in place of its own.
Cluster::Options resolve_based(const Yaml& node, const Search& search) {
  node.allow_only({"base", "name", "device", "node", "fabric", "gpus", "cores", "wiring"});
  const Yaml base = load_named(node.at("base"), kClusters, search);
  return sized(read_cluster(base.merged(node.without({"base", "gpus", "cores", "wiring"})), search),
               node);
}

}  // namespace

Cluster::Options resolve_cluster(const Yaml& node, const Search& search) {
  if (node.is_scalar()) return resolve_named(node, search);
  if (node.find("base")) return resolve_based(node, search);
  if (node.find("device") || node.find("node") || node.find("fabric")) {
    return read_cluster(node, search);
  }
  node.allow_only({"name", "gpus", "cores", "wiring"});
  return sized(resolve_named(node.at("name"), search), node);
}

Document to_document(const Cluster::Options& options) {
  Document document = {{"name", options.name},
                       {"device", to_document(options.device)},
                       {"node", node_document(options.node)},
                       {"nodes", options.nodes}};
  if (!options.wiring.empty()) document["wiring"] = wiring_document(options.wiring);
  if (options.fabric.has_fabric()) document["fabric"] = fabric_document(options.fabric);
  return document;
}

}  // namespace foresail::topologies
