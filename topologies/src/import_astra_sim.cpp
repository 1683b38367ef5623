// The network of astra-sim's analytical backend, one entry of each list per dimension:
//
//     topology: [Ring, FullyConnected, Switch]
//     npus_count: [2, 8, 4]
//     bandwidth: [200.0, 100.0, 50.0]     # GB/s of one link, one direction
//     latency: [50.0, 500.0, 2000.0]      # ns of one link
//
// NPU i stands at i mod n0, i / n0 mod n1, ... In a Ring it is linked to both neighbours, in
// FullyConnected to all others of its dimension, in Switch to one switch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "foresail/base/yaml.h"
#include "import_text.h"

namespace foresail::topologies {
namespace {

enum class DimensionKind { Ring, FullyConnected, Switch };

struct Dimension {
  DimensionKind kind = DimensionKind::Ring;
  int npus = 1;
  Bandwidth bandwidth;
  Duration latency{};

  /// Links of all groups of `npus` together are this many per NPU, times `npus`.
  std::int64_t links_per_group() const {
    const std::int64_t n = npus;
    if (kind == DimensionKind::FullyConnected) return n * (n - 1) / 2;
    return kind == DimensionKind::Ring && n == 2 ? 1 : n;
  }
  std::int64_t links_per_npu() const {
    if (kind == DimensionKind::FullyConnected) return npus - 1;
    return kind == DimensionKind::Ring && npus > 2 ? 2 : 1;
  }
};

}  // namespace
}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::DimensionKind> =
    std::to_array<Named<topologies::DimensionKind>>(
        {{topologies::DimensionKind::Ring, "Ring"},
         {topologies::DimensionKind::FullyConnected, "FullyConnected"},
         {topologies::DimensionKind::Switch, "Switch"}});
}  // namespace foresail

namespace foresail::topologies {
namespace {

std::vector<Yaml> list_of(const Yaml& root, const char* key, std::size_t size) {
  const Yaml node = root.at(key);
  std::vector<Yaml> items = node.items();
  if (items.size() != size) {
    node.fail(fmt::format("has {} entries, but topology has {}", items.size(), size));
  }
  return items;
}

std::vector<Dimension> read_dimensions(const Yaml& root) {
  const Yaml topology = root.at("topology");
  const std::vector<Yaml> kinds = topology.items();
  if (kinds.empty() || kinds.size() > 8) topology.fail("needs one to eight dimensions");
  const std::vector<Yaml> counts = list_of(root, "npus_count", kinds.size());
  const std::vector<Yaml> bandwidths = list_of(root, "bandwidth", kinds.size());
  const std::vector<Yaml> latencies = list_of(root, "latency", kinds.size());
  std::vector<Dimension> dimensions;
  for (std::size_t d = 0; d < kinds.size(); ++d) {
    Dimension one;
    one.kind = kinds[d].as_choice<DimensionKind>();
    one.npus = static_cast<int>(counts[d].as_integer(1, kImportNodesMax));
    const double gigabytes = bandwidths[d].as_number();
    if (!(gigabytes * 8e9 >= 1) || gigabytes > 125'000) {
      bandwidths[d].fail("is no bandwidth of a link in GB/s (at most 125000)");
    }
    one.bandwidth = Bandwidth::bps(std::llround(gigabytes * 8e9));
    const double nanoseconds = latencies[d].as_number();
    if (!(nanoseconds >= 0) || nanoseconds > 1e9) latencies[d].fail("is not in 0..1e9 ns");
    one.latency = Duration(std::llround(nanoseconds * 1e3));
    dimensions.push_back(one);
  }
  return dimensions;
}

/// How many NPUs there are; refuses what has too many of them or of cables.
std::int64_t npu_count(const std::vector<Dimension>& dimensions, const Yaml& counts) {
  std::int64_t npus = 1;
  for (const Dimension& one : dimensions) {
    npus *= one.npus;
    if (npus > kImportNodesMax)
      counts.fail(fmt::format("makes more than {} NPUs", kImportNodesMax));
  }
  if (npus < 2) counts.fail("makes a single NPU");
  std::int64_t cables = npus;
  for (const Dimension& one : dimensions) cables += npus / one.npus * one.links_per_group();
  if (cables > kImportCablesMax) {
    counts.fail(fmt::format("makes {} cables, more than {}", cables, kImportCablesMax));
  }
  return npus;
}

class Builder {
 public:
  Builder(const std::vector<Dimension>& dimensions, std::int64_t npus)
      : dimensions_(dimensions), npus_(npus) {}
  ImportedTopology build();

 private:
  CableEnd nic(std::int64_t npu) const { return {static_cast<int>(npu), 0, ""}; }
  CableEnd at(std::int64_t npu) const {
    return is_star() ? nic(npu) : CableEnd{-1, 0, fmt::format("router{}", npu)};
  }
  /// One switch alone needs no routers: NPUs do not relay.
  bool is_star() const {
    int links = 0;
    bool is_switched = true;
    for (const Dimension& one : dimensions_) {
      if (one.npus == 1) continue;
      ++links;
      is_switched = is_switched && one.kind == DimensionKind::Switch;
    }
    return links == 1 && is_switched;
  }
  void add_group(std::size_t dimension, std::int64_t first, std::int64_t stride);

  const std::vector<Dimension>& dimensions_;
  std::int64_t npus_;
  GraphSpec graph_;
};

/// The NPUs first, first + stride, ... of one dimension.
void Builder::add_group(std::size_t dimension, std::int64_t first, std::int64_t stride) {
  const Dimension& one = dimensions_[dimension];
  const auto npu = [&](std::int64_t i) { return at(first + i * stride); };
  const auto add = [&](const CableEnd& a, const CableEnd& b) {
    graph_.cables.push_back({a, b, one.bandwidth, one.latency, 1});
  };
  if (one.kind == DimensionKind::Switch) {
    const CableEnd hub{-1, 0, fmt::format("dim{}_switch{}", dimension, first)};
    graph_.switches.push_back({hub.switch_name, 1});
    for (int i = 0; i < one.npus; ++i) add(npu(i), hub);
  } else if (one.kind == DimensionKind::Ring) {
    for (int i = 0; i + 1 < one.npus; ++i) add(npu(i), npu(i + 1));
    if (one.npus > 2) add(npu(one.npus - 1), npu(0));
  } else {
    for (int i = 0; i < one.npus; ++i) {
      for (int j = i + 1; j < one.npus; ++j) add(npu(i), npu(j));
    }
  }
}

ImportedTopology Builder::build() {
  ImportedTopology imported;
  imported.devices = 1;
  std::int64_t rate = 0;
  for (const Dimension& one : dimensions_) {
    if (one.npus > 1) rate += one.links_per_npu() * one.bandwidth.bits_per_second();
  }
  const Bandwidth all = Bandwidth::bps(std::min(rate, std::int64_t{1'000'000} * 1'000'000'000));
  for (std::int64_t i = 0; i < npus_; ++i) {
    imported.nodes.push_back(fmt::format("NPU {}", i));
    if (is_star()) continue;
    graph_.switches.push_back({at(i).switch_name, 1});
    graph_.cables.push_back({nic(i), at(i), all, Duration(), 1});
  }
  std::int64_t stride = 1;
  for (std::size_t d = 0; d < dimensions_.size(); ++d) {
    const std::int64_t span = stride * dimensions_[d].npus;
    for (std::int64_t i = 0; i < npus_ && dimensions_[d].npus > 1; ++i) {
      if (i % span < stride) add_group(d, i, stride);
    }
    stride = span;
  }
  imported.graph = std::move(graph_);
  imported.remarks.push_back(
      "every NPU is a node with one GPU; the fabric has no nodes of several");
  if (!is_star()) {
    imported.remarks.push_back("NPUs relay: each has a router between its NIC and its links");
  }
  imported.remarks.push_back(
      "a GB is 10^9 B; releases of astra-sim that count 2^30 B have links 7 % faster");
  find_tiers(imported);
  find_nics(imported);
  return imported;
}

}  // namespace

ImportedTopology read_astra_sim(std::string_view text, const std::string& file) {
  // The other form begins with three numbers.
  for (const TextLine& line : lines_of(text)) {
    if (line.text.empty() || line.text.starts_with('#')) continue;
    if (number_of(words_of(line.text).front())) return read_ns3_topology(text, file);
    break;
  }
  const Yaml root = Yaml::parse(text, file);
  const std::vector<Dimension> dimensions = read_dimensions(root);
  const std::int64_t npus = npu_count(dimensions, root.at("npus_count"));
  ImportedTopology imported = Builder(dimensions, npus).build();
  for (const auto& [key, value] : root.entries()) {
    if (key != "topology" && key != "npus_count" && key != "bandwidth" && key != "latency") {
      imported.remarks.push_back(fmt::format("the key {} is left out", shown(key)));
    }
  }
  return imported;
}

}  // namespace foresail::topologies
