#include "foresail/sim/nccl_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "foresail/base/error.h"
#include "nccl_rules.h"

namespace foresail::sim {
namespace {

using topologies::Algorithm;
using topologies::Generation;
using topologies::Protocol;

using PerProtocol = std::array<double, 3>;  // LL, LL128, Simple
using PerScale = std::array<double, 3>;     // one node, two, more

constexpr std::size_t kLl = 0, kLl128 = 1, kSimple = 2;
constexpr double kNone = std::numeric_limits<double>::infinity();

std::size_t index_of(Protocol protocol) {
  return protocol == Protocol::Ll ? kLl : protocol == Protocol::Ll128 ? kLl128 : kSimple;
}

std::size_t row_of(Generation generation) {
  return static_cast<std::size_t>(generation);
}

std::size_t scale_of(int nodes) {
  return static_cast<std::size_t>(std::min(nodes - 1, 2));
}

// Latencies of src/graph/tuning.cc: start, per step inside a node by NVLink or PCIe, per step
// between nodes.
struct Latencies {
  PerProtocol base, nvlink, pci, net;
};
constexpr Latencies kRing{{6.6, 14, 8.4}, {0.6, 1.9, 3.4}, {1, 2.5, 5.7}, {2.7, 4, 14}};
constexpr Latencies kTree{{6.8, 14, 8.4}, {0.6, 1.25, 4}, {1, 1.9, 4}, {5, 8.5, 14}};
constexpr Latencies kNvls{{0, 0, 0}, {0, 0, 25}, {0, 0, 0}, {0, 0, 18}};
constexpr Latencies kNvlsTree{{0, 0, 0}, {0, 0, 25}, {0, 0, 0}, {0, 0, 20.9}};
constexpr Latencies kPat{{8, 8, 8}, {0, 0, 4}, {0, 0, 4}, {0, 0, 14}};

// Rows: Volta, Ampere, Hopper, Blackwell.
constexpr std::array<PerScale, 4> kLlMax = {
    {{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}}};
constexpr std::array<double, 4> kRingLl128PerChannel = {20, 20, 36.7, 40};
constexpr std::array<PerScale, 4> kTreeLl128PerChannel = {
    {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}}};
constexpr std::array<PerScale, 4> kTreePerChannel = {
    {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}}};
constexpr std::array<PerScale, 4> kNvlsTreePerChannel = {
    {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 80}}};
constexpr std::array<double, 4> kNvlsEfficiency = {0, 0, 0.85, 0.74};
// Channels that NVLS uses (src/transport/nvls.cc),.
constexpr std::array<int, 4> kNvlsChannels = {0, 0, 16, 32};
constexpr double kNvlsChunk = 131072;

// Of a tree's bandwidth, by log2(bytes / 64).
constexpr std::size_t kCorrections = 23;
constexpr std::array<std::array<double, kCorrections>, 3> kTreeCorrection = {{
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9},
}};
constexpr double kPeersPerBatch = 8;
constexpr double kRingPlateau = 1.4;
constexpr double kRingPlateauBeforeAmpere = 1.9;

// Speeds that the search tries, GB/s per channel.
const std::vector<double>& ladder(const NcclShape& shape) {
  static const std::vector<double> kIntra = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
  static const std::vector<double> kInter = {48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
  static const std::vector<double> kIntra90 = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
  static const std::vector<double> kInter90 = {48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3};
  static const std::vector<double> kIntra100 = {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18};
  static const std::vector<double> kInter100 = {96, 86, 80, 48,   45.1, 42, 40, 30,
                                                24, 22, 20, 17.5, 15,   12, 6,  3};
  const bool is_intra = shape.nodes == 1;
  if (shape.generation == Generation::Blackwell) return is_intra ? kIntra100 : kInter100;
  if (shape.generation == Generation::Hopper) return is_intra ? kIntra90 : kInter90;
  return is_intra ? kIntra : kInter;
}

int log2_floor(double value) {
  int log = 0;
  while (value >= 2) {
    value /= 2;
    ++log;
  }
  return log;
}

bool is_gather_or_scatter(Collective kind) {
  return kind == Collective::AllGather || kind == Collective::ReduceScatter;
}

double steps_of(Collective kind, int ranks) {
  if (kind == Collective::AllReduce) return 2.0 * (ranks - 1);
  return is_gather_or_scatter(kind) ? ranks - 1.0 : ranks;
}

const Latencies& latencies_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Tree:
      return kTree;
    case Algorithm::Nvls:
      return kNvls;
    case Algorithm::NvlsTree:
      return kNvlsTree;
    case Algorithm::Pat:
      return kPat;
    case Algorithm::Auto:
    case Algorithm::Ring:
    case Algorithm::Hierarchical:
    case Algorithm::Pairwise:
      break;
  }
  return kRing;
}

struct StepCosts {
  double base, intra, inter;
};

StepCosts step_costs(Algorithm algorithm, std::size_t protocol, const NcclShape& shape) {
  const Latencies& table = latencies_of(algorithm);
  StepCosts costs{table.base[protocol],
                  shape.has_nvlink ? table.nvlink[protocol] : table.pci[protocol], 0};
  // With one rank per node the network's latency is fully exposed: the tree's.
  const bool is_exposed = shape.ranks == shape.nodes && algorithm == Algorithm::Ring;
  costs.inter = is_exposed ? kTree.net[protocol] : table.net[protocol];
  // Simple flushes once more over the NIC.
  costs.inter += shape.nic_latency_us * (protocol == kSimple ? 2 : 1);
  return costs;
}

double ring_latency(Collective kind, std::size_t protocol, const NcclShape& shape) {
  const StepCosts costs = step_costs(Algorithm::Ring, protocol, shape);
  double overhead = 0;
  if (shape.nodes > 1) {
    overhead = shape.cpu == topologies::CpuVendor::Amd ? 2 : 1;
    if (protocol == kSimple) overhead *= 3;
  }
  const double rounds = kind == Collective::AllReduce ? 2 : 1;
  const double inter = shape.nodes == 1 ? 0 : rounds * (shape.nodes - 1);
  const double steps =
      kind == Collective::Broadcast ? shape.ranks - 1.0 : steps_of(kind, shape.ranks);
  return costs.base + (steps - inter) * std::max(costs.intra, overhead) + inter * costs.inter;
}

double latency_of(Collective kind, Algorithm algorithm, std::size_t protocol,
                  const NcclShape& shape) {
  const StepCosts costs = step_costs(algorithm, protocol, shape);
  const double log_nodes = log2_floor(shape.nodes);
  switch (algorithm) {
    case Algorithm::Tree:
      return costs.base +
             2 * ((shape.ranks_per_node() - 1) * costs.intra + log_nodes * costs.inter);
    case Algorithm::Nvls:
      return costs.base + costs.intra;
    case Algorithm::NvlsTree:
      return costs.base + costs.intra + 2 * log_nodes * costs.inter;
    case Algorithm::Pat:
      return costs.base + log_nodes * costs.inter / 3.5 + 2.8 * shape.ranks;
    case Algorithm::Pairwise: {
      // Batches of eight peers; a batch waits for its slowest (src/enqueue.cc: work batches).
      const double batches = std::ceil((shape.ranks - 1) / kPeersPerBatch);
      return costs.base + batches * (shape.nodes > 1 ? costs.inter : costs.intra);
    }
    case Algorithm::Hierarchical: {
      // Inside the node, between nodes with one rank each, inside the node again.
      NcclShape inside = shape;
      inside.ranks = static_cast<int>(shape.ranks_per_node());
      inside.nodes = 1;
      NcclShape between = shape;
      between.ranks = shape.nodes;
      const double parts = kind == Collective::AllReduce ? 2 : 1;
      return ring_latency(kind, protocol, between) +
             parts * ring_latency(Collective::AllGather, protocol, inside);
    }
    case Algorithm::Ring:
    case Algorithm::Auto:
      break;
  }
  return ring_latency(kind, protocol, shape);
}

// Steps one after the other that cross from node to node, as latency_of() counts them.
double steps_between(Collective kind, Algorithm algorithm, const NcclShape& shape) {
  if (shape.nodes == 1) return 0;
  switch (algorithm) {
    case Algorithm::Tree:
    case Algorithm::NvlsTree:
      return 2 * log2_floor(shape.nodes);
    case Algorithm::Pat:
      return log2_floor(shape.nodes);
    case Algorithm::Pairwise:
      return std::ceil((shape.ranks - 1) / kPeersPerBatch);
    case Algorithm::Auto:
    case Algorithm::Nvls:
    case Algorithm::Ring:
    case Algorithm::Hierarchical:
      break;
  }
  return (kind == Collective::AllReduce ? 2.0 : 1.0) * (shape.nodes - 1);
}

double ring_bus(std::size_t protocol, const NcclShape& shape, const ChannelGraph& graph) {
  // On one node the row is the GPU's; between nodes the CPU's vendor decides (Intel 0, AMD 1).
  const std::size_t row = shape.nodes == 1                          ? row_of(shape.generation)
                          : shape.cpu == topologies::CpuVendor::Amd ? 1
                                                                    : 0;
  if (protocol == kLl) return std::min(kLlMax[row][scale_of(shape.nodes)], graph.bus() * 0.5);
  if (protocol == kLl128) {
    return std::min(graph.bus() * 0.92,
                    graph.channels * kRingLl128PerChannel[row_of(shape.generation)]);
  }
  return graph.bus();
}

double tree_bus(std::size_t protocol, const NcclShape& shape, const ChannelGraph& graph) {
  const std::size_t scale = scale_of(shape.nodes);
  const std::size_t row = row_of(shape.generation);
  const double bus = std::min(graph.bus() * 0.92, graph.channels * kTreePerChannel[row][scale]);
  if (protocol == kLl) {
    const std::size_t ll_row = shape.nodes == 1                          ? row
                               : shape.cpu == topologies::CpuVendor::Amd ? 1
                                                                         : 0;
    return std::min(bus / 3.8, kLlMax[ll_row][scale]);
  }
  if (protocol == kLl128) {
    return std::min(bus * (shape.nodes == 1 ? 7.0 / 9 : 120.0 / 128),
                    graph.channels * kTreeLl128PerChannel[row][scale]);
  }
  return bus;
}

int nvls_channels(const NcclShape& shape) {
  return shape.channels > 0 ? shape.channels : kNvlsChannels[row_of(shape.generation)];
}

// GB/s per GPU that multicast and in-switch reduction reach on NVLink; fewer channels than NCCL
// takes by itself copy less in proportion.
double nvls_link(const NcclShape& shape) {
  const std::size_t row = row_of(shape.generation);
  const double usual = kNvlsChannels[row];
  return shape.nvlink * kNvlsEfficiency[row] * (usual - 1) / usual *
         std::min(1.0, nvls_channels(shape) / usual);
}

double bus_of(Collective kind, Algorithm algorithm, std::size_t protocol, const NcclShape& shape,
              const ChannelGraph& graph) {
  const double per_node = shape.ranks_per_node();
  const std::size_t row = row_of(shape.generation);
  switch (algorithm) {
    case Algorithm::Tree:
      return tree_bus(protocol, shape, graph);
    case Algorithm::Nvls:
      return nvls_link(shape) * (kind == Collective::AllReduce ? 2 : (per_node - 1) / per_node);
    case Algorithm::NvlsTree: {
      const double inter = graph.bus() * (shape.nodes == 2 ? 2 : 1);
      return std::min({2 * nvls_link(shape), inter,
                       nvls_channels(shape) * kNvlsTreePerChannel[row][scale_of(shape.nodes)]});
    }
    case Algorithm::Pat:
      return graph.bus() * 0.75;
    case Algorithm::Ring:
      return ring_bus(protocol, shape, graph);
    case Algorithm::Auto:
    case Algorithm::Hierarchical:
    case Algorithm::Pairwise:
      break;
  }
  return graph.bus();
}

// An operation's bytes per byte on the busiest link of its GPUs under NVLS: each GPU's data goes
// to the switch once, and 1/n of the result comes back out of it (nccl-tests: n / (n + 1)).
double nvls_ratio(Collective kind, double per_node) {
  return kind == Collective::AllReduce ? per_node / (per_node + 1) : 1.0;
}

// NCCL halves chunks until there are some for every channel and head (calcCollChunking).
double nvls_chunk(double bytes, double slots, const NcclShape& shape, Algorithm algorithm) {
  double chunk = kNvlsChunk;
  const auto limit = [&](double times, double to) {
    if (chunk > to && bytes < times * slots * chunk) chunk = to;
  };
  if (algorithm == Algorithm::Nvls) {
    limit(64, 65536);
    limit(8, 32768);
    limit(2, 16384);
  } else {
    if (shape.nodes >= 4) chunk = 65536;
    limit(4, 65536);
    limit(1, 32768);
  }
  return chunk;
}

double nvls_fill(Algorithm algorithm, double bytes, const NcclShape& shape, double bandwidth) {
  const double heads = std::min(shape.ranks_per_node(), static_cast<double>(kNvlsHeadsMax));
  const double slots = nvls_channels(shape) * heads;
  const double loop = std::min(bytes, slots * nvls_chunk(bytes, slots, shape, algorithm));
  double fill = 2 * loop / (1000 * bandwidth);  // scatter, reduce and multicast, gather
  if (algorithm == Algorithm::NvlsTree) {
    // Each hop of the two trees moves half of what the heads hold.
    fill += 2 * log2_floor(shape.nodes) * loop / 2 / (1000 * shape.nics * shape.nic);
  }
  return fill;
}

// A chain of GPUs and a tree of nodes, up and down; chunks are halved down to 32 KiB until each
// hop has some (calcCollChunking). Twice as many channels as the graph has: one per tree.
double tree_fill(double bytes, const NcclShape& shape, const NcclCost& cost) {
  const double depth = shape.ranks_per_node() - 1 + log2_floor(shape.nodes);
  const double channels = 2 * cost.channels;
  double chunk = 524288;
  while (bytes / (channels * chunk) < depth * 8 && chunk > 131072) chunk /= 2;
  while (bytes / (channels * chunk) < depth * 4 && chunk > 65536) chunk /= 2;
  while (bytes / (channels * chunk) < depth && chunk > 32768) chunk /= 2;
  chunk = std::min(chunk, bytes / channels);
  return (2 * depth - 1) * chunk * channels / (1000 * cost.bandwidth);
}

}  // namespace

double nvlink_fraction(Generation generation) {
  switch (generation) {
    case Generation::Volta:
    case Generation::Ampere:
      return 20.0 / 25;
    case Generation::Hopper:
      return 20.6 / 25;
    case Generation::Blackwell:
      return 40.1 / 50;
  }
  return 1;
}

ChannelGraph find_channels(const NcclShape& shape) {
  constexpr int kFoundMax = 32;  // MAXCHANNELS / 2
  ChannelGraph best;
  best.speed = shape.nodes == 1 ? shape.nvlink : std::min(shape.nvlink, shape.nic);
  double best_bus = 0;
  for (const double speed : ladder(shape)) {
    double count = shape.ranks == shape.nodes ? kFoundMax : std::floor(shape.nvlink / speed);
    if (shape.nodes > 1) count = std::min(count, shape.nics * std::floor(shape.nic / speed));
    count = std::min<double>(count, kFoundMax);
    if (count < 1 || count * speed <= best_bus) continue;
    best = {static_cast<int>(count), speed};
    best_bus = best.bus();
  }
  // Fast channels are doubled so that more SMs copy (ncclTopoDupChannels).
  const bool is_late = row_of(shape.generation) > row_of(Generation::Ampere);
  const bool is_slow = best.speed < 25 || (is_late && best.speed < 50 && best.channels > 4);
  if (!is_slow && 2 * best.channels <= kFoundMax) best = {2 * best.channels, best.speed / 2};
  if (shape.channels > 0) {
    // Fewer channels than found lose their bandwidth; more share it.
    const double bus = best.bus() * std::min(1.0, shape.channels / (1.0 * best.channels));
    best = {shape.channels, bus / shape.channels};
  }
  return best;
}

std::optional<NcclCost> nccl_cost(Collective kind, Algorithm algorithm, Protocol protocol,
                                  Bytes bytes, const NcclShape& shape) {
  FORESAIL_EXPECT(shape.ranks > 1);
  FORESAIL_EXPECT(shape.nodes >= 1);
  FORESAIL_EXPECT(protocol != Protocol::Auto);
  if (refusal(kind, algorithm, protocol, shape) != nullptr) return std::nullopt;
  const std::size_t p = index_of(protocol);
  const ChannelGraph graph = find_channels(shape);
  const auto size = static_cast<double>(bytes.count());
  NcclCost cost;
  cost.algorithm = algorithm;
  cost.protocol = protocol;
  cost.channels = graph.channels;
  cost.latency_us = latency_of(kind, algorithm, p, shape);
  cost.steps_between = steps_between(kind, algorithm, shape);
  const bool is_half = algorithm == Algorithm::Tree || algorithm == Algorithm::Pat;
  const double ratio = is_half ? 0.5 : shape.ranks / steps_of(kind, shape.ranks);
  cost.bandwidth = ratio * bus_of(kind, algorithm, p, shape, graph);
  if (algorithm == Algorithm::Tree) {
    const int at = log2_floor(std::max(1.0, std::floor(size / 64)));
    if (at < static_cast<int>(kCorrections)) {
      cost.bandwidth *= kTreeCorrection[p][static_cast<std::size_t>(at)];
    }
    if (p == kSimple) cost.fill_us = tree_fill(size, shape, cost);
  }
  const bool is_plateau = algorithm == Algorithm::Ring && p == kSimple && shape.nodes > 1 &&
                          kind == Collective::AllReduce &&
                          size / (graph.channels * static_cast<double>(shape.ranks)) >= 64;
  if (is_plateau) {
    cost.latency_us *=
        shape.generation == Generation::Volta ? kRingPlateauBeforeAmpere : kRingPlateau;
  }
  if (algorithm == Algorithm::Nvls || algorithm == Algorithm::NvlsTree) {
    cost.channels = nvls_channels(shape);
    cost.copy_bandwidth = nvls_link(shape) * nvls_ratio(kind, shape.ranks_per_node());
    cost.fill_us = nvls_fill(algorithm, size, shape, cost.copy_bandwidth);
  } else if (algorithm == Algorithm::Tree || algorithm == Algorithm::Pat || p != kSimple) {
    cost.copy_bandwidth = cost.bandwidth;
  }
  FORESAIL_EXPECT(cost.bandwidth > 0);
  return cost;
}

namespace {

// Why the options leave nothing: of the algorithm asked, else of what the collective always has.
const char* reason_of(Collective kind, const NcclShape& shape,
                      const topologies::NcclOptions& options) {
  Algorithm algorithm = options.algorithm;
  if (algorithm == Algorithm::Auto) {
    algorithm = kind == Collective::AllToAll ? Algorithm::Pairwise : Algorithm::Ring;
  }
  const Protocol protocol =
      options.protocol == Protocol::Auto ? Protocol::Simple : options.protocol;
  const char* const why = refusal(kind, algorithm, protocol, shape);
  return why == nullptr ? "nvls is off" : why;
}

}  // namespace

NcclCost choose(Collective kind, Bytes bytes, const NcclShape& shape,
                const topologies::NcclOptions& options) {
  NcclShape told = shape;
  if (shape.told_latency_us >= 0) told.nic_latency_us = shape.told_latency_us;
  // Hierarchical is no algorithm of NCCL's: only on request. Order: as NCCL compares.
  static constexpr std::array kOffered = {
      Algorithm::Tree, Algorithm::Ring,     Algorithm::Nvls,        Algorithm::NvlsTree,
      Algorithm::Pat,  Algorithm::Pairwise, Algorithm::Hierarchical};
  static constexpr std::array kProtocols = {Protocol::Ll, Protocol::Ll128, Protocol::Simple};
  std::optional<NcclCost> best;
  for (const Algorithm algorithm : kOffered) {
    const bool is_asked = options.algorithm == algorithm;
    if (options.algorithm != Algorithm::Auto && !is_asked) continue;
    if (algorithm == Algorithm::Hierarchical && !is_asked) continue;
    const bool is_nvls = algorithm == Algorithm::Nvls || algorithm == Algorithm::NvlsTree;
    if (is_nvls && !options.nvls) continue;
    for (const Protocol protocol : kProtocols) {
      if (options.protocol != Protocol::Auto && options.protocol != protocol) continue;
      const std::optional<NcclCost> cost = nccl_cost(kind, algorithm, protocol, bytes, told);
      if (cost && (!best || cost->time_us(bytes) < best->time_us(bytes))) best = cost;
    }
  }
  if (!best) {
    throw Error(
        ErrorCode::InvalidInput,
        fmt::format("NCCL has no {} by algorithm {} and protocol {} among {} ranks on {} "
                    "nodes of these GPUs: {} (network.nccl)",
                    to_string(kind), to_string(options.algorithm), to_string(options.protocol),
                    shape.ranks, shape.nodes, reason_of(kind, shape, options)));
  }
  return *nccl_cost(kind, best->algorithm, best->protocol, bytes, shape);
}

}  // namespace foresail::sim
