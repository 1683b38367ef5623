#include "foresail/scenarios/collective_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/sim/network.h"
#include "link_balance.h"

namespace foresail::scenarios {
namespace {

using sim::Network;
using sim::TransferPlan;
using topologies::Cluster;

constexpr double kMessageBaseUs = 8.4;  // NCCL's Simple
constexpr std::size_t kSizesMax = 1000;
constexpr double kFactorMax = 1e6;
constexpr double kSizeMax = 1125899906842624.0;  // 1 PiB

Collective collective_of(Operation operation) {
  switch (operation) {
    case Operation::AllReduce:
      return Collective::AllReduce;
    case Operation::AllGather:
      return Collective::AllGather;
    case Operation::ReduceScatter:
      return Collective::ReduceScatter;
    case Operation::Broadcast:
      return Collective::Broadcast;
    case Operation::AllToAll:
    case Operation::SendRecv:
      break;
  }
  return Collective::AllToAll;
}

sim::NetworkPace pace_of(const Cluster& cluster, const Impairment& impairment) {
  sim::NetworkPace pace = sim::nccl_pace(cluster.device());
  const topologies::NodeSpec& node = cluster.node();
  const int middle = cluster.options().nodes / 2;
  for (int i = 0; i < impairment.nics_missing; ++i) {
    pace.missing_nics.push_back(node.devices - 1 - i);
  }
  const auto touches = [&](const topologies::Link& link, auto&& is_it) {
    return is_it(cluster.vertices()[link.from]) || is_it(cluster.vertices()[link.to]);
  };
  for (std::uint32_t l = 0; l < cluster.links().size(); ++l) {
    const topologies::Link& link = cluster.links()[LinkId{l}];
    double fraction = 1;
    if (impairment.links_of_a_node < 1 &&
        touches(link, [&](const topologies::Vertex& v) { return v.node == middle; })) {
      fraction *= impairment.links_of_a_node;
    }
    if (impairment.nic_of_rail_0 < 1 && touches(link, [](const topologies::Vertex& v) {
          return v.kind == topologies::VertexKind::Nic && v.index == 0;
        })) {
      fraction *= impairment.nic_of_rail_0;
    }
    if (fraction < 1) pace.slow_links[LinkId{l}] = fraction;
  }
  return pace;
}

void check(const Cluster& cluster, const SweepOptions& options) {
  const auto fail = [](const std::string& text) { throw Error(ErrorCode::InvalidInput, text); };
  const int all = cluster.device_count();
  const int devices = options.devices > 0 ? options.devices : all;
  if (devices > all) fail(fmt::format("{} devices of a cluster that has {}", devices, all));
  if (devices % options.groups != 0) {
    fail(fmt::format("{} groups do not divide {} devices", options.groups, devices));
  }
  if (devices / options.groups < 2) fail("a collective needs two devices or more");
}

std::vector<DeviceId> devices_of(const Cluster& cluster, const SweepOptions& options,
                                 std::uint64_t seed) {
  std::vector<int> nodes(static_cast<std::size_t>(cluster.options().nodes));
  std::iota(nodes.begin(), nodes.end(), 0);
  if (options.spread == Spread::Random) {
    RandomStream random = Rng(seed).stream("placement");
    for (std::size_t i = nodes.size(); i > 1; --i) std::swap(nodes[i - 1], nodes[random.below(i)]);
  }
  const int wanted = options.devices > 0 ? options.devices : cluster.device_count();
  std::vector<DeviceId> devices;
  for (const int node : nodes) {
    for (int d = 0; d < cluster.node().devices && std::cmp_less(devices.size(), wanted); ++d) {
      devices.push_back(DeviceId{static_cast<std::uint32_t>(node * cluster.node().devices + d)});
    }
  }
  return devices;
}

struct Run {
  TransferPlan plan;
  Duration time{};
  std::string busiest;  ///< link that was busy for the largest share of the flows' time
  bool is_between_switches = false;
  double nic_bytes_max = 0;
  LinkBalance balance;
};

// One operation after the other on one network: nothing else is on it.
class Bench {
 public:
  Bench(const Cluster& cluster, const SweepOptions& options, std::uint64_t seed)
      : cluster_(cluster),
        options_(options),
        network_(cluster, effective(options), pace_of(cluster, options.impairment), seed) {
    const std::vector<DeviceId> taken = devices_of(cluster, options, seed);
    groups_.resize(static_cast<std::size_t>(options.groups));
    for (std::size_t i = 0; i < taken.size(); ++i) groups_[i % groups_.size()].push_back(taken[i]);
  }

  Run measure(Bytes size) {
    const std::vector<std::vector<TransferPlan>> plans = plans_of(size);
    Run run;
    run.plan = plans.front().front();
    if (options_.fidelity == sim::Fidelity::Analytic) {
      for (const std::vector<TransferPlan>& group : plans) {
        Duration slowest{};
        for (const TransferPlan& plan : group) slowest = std::max(slowest, network_.alone(plan));
        run.time += slowest / options_.groups;
      }
      return run;
    }
    const std::vector<double> before = carried();
    for (std::size_t g = 0; g < plans.size(); ++g) {
      for (const TransferPlan& plan : plans[g]) start(plan, g);
    }
    const std::vector<Duration> ends = finish();
    for (std::size_t g = 0; g < plans.size(); ++g) {
      run.time += (plans[g].front().latency + ends[g]) / options_.groups;
    }
    find_busiest(before, *std::ranges::max_element(ends), run);
    return run;
  }

 private:
  static topologies::NetworkOptions effective(const SweepOptions& options) {
    topologies::NetworkOptions network = options.network;
    if (options.fidelity == sim::Fidelity::Analytic) {  // nothing is shared
      network.routing = topologies::Routing::Spray;
      network.sharing = topologies::Sharing::MaxMin;
    }
    return network;
  }

  // By group; the slowest start first: it stands for the group's latency.
  std::vector<std::vector<TransferPlan>> plans_of(Bytes size) {
    std::vector<std::vector<TransferPlan>> plans(groups_.size());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (options_.operation == Operation::SendRecv) {
        add_messages(size, groups_[g], plans[g]);
      } else {
        plans[g].push_back(
            network_.collective(collective_of(options_.operation), size, groups_[g], g + 1));
      }
      std::ranges::stable_sort(plans[g], [](const TransferPlan& a, const TransferPlan& b) {
        return a.latency > b.latency;
      });
    }
    return plans;
  }

  void add_messages(Bytes size, const std::vector<DeviceId>& devices,
                    std::vector<TransferPlan>& plans) {
    const topologies::NcclSpec& nccl = cluster_.device().nccl;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      TransferPlan plan = network_.message(devices[d], devices[(d + 1) % devices.size()], size);
      plan.latency +=
          duration_from_seconds(1e-6 * (nccl.launch_us + nccl.latency_factor * kMessageBaseUs));
      plan.protocol = topologies::Protocol::Simple;
      plan.algorithm = topologies::Algorithm::Pairwise;
      plan.channels = 1;
      plans.push_back(plan);
    }
  }

  void start(const TransferPlan& plan, std::size_t group) {
    for (std::size_t r = 0; r < plan.routes.size(); ++r) {
      const double amount = plan.amounts.empty() ? plan.amount : plan.amounts[r];
      if (amount > 0) network_.fluid().start(plan.routes[r], amount, group, now_);
    }
  }

  // When the last flow of each group ended.
  std::vector<Duration> finish() {
    sim::FluidNetwork& fluid = network_.fluid();
    std::vector<Duration> ends(groups_.size());
    const SimTime begin = now_;
    fluid.settle(now_);
    while (const std::optional<SimTime> next = fluid.next_finish()) {
      now_ = *next;
      while (fluid.next_finish() == now_) ends[fluid.finish_next()] = now_ - begin;
      fluid.settle(now_);
    }
    return ends;
  }

  std::vector<double> carried() const {
    std::vector<double> bytes;
    for (std::uint32_t p = 0; p < network_.fluid().pipe_count(); ++p) {
      bytes.push_back(network_.fluid().carried(sim::PipeId{p}));
    }
    return bytes;
  }

  void find_busiest(const std::vector<double>& before, Duration flows, Run& run) const {
    const double seconds = to_seconds(flows);
    if (seconds <= 0) return;
    double most = 0;
    const std::vector<double> after = carried();
    std::map<LinkId, double> by_link;
    for (std::uint32_t p = 0; p < after.size(); ++p) {
      const sim::PipeId pipe{p};
      const double bytes = after[p] - (p < before.size() ? before[p] : 0);
      if (bytes <= 0) continue;
      if (const std::optional<LinkId> link = network_.paths().link_of(pipe)) by_link[*link] = bytes;
      const std::string name = network_.paths().pipe_name(pipe);
      const bool is_nic = name.find(".nic") != std::string::npos;
      if (is_nic && name.find(".gpu") == std::string::npos) {
        run.nic_bytes_max = std::max(run.nic_bytes_max, bytes);
      }
      const double use = bytes / (network_.fluid().capacity(pipe) * seconds);
      if (use <= most * (1 + 1e-6)) continue;
      most = use;
      run.busiest = name;
      run.is_between_switches = network_.paths().is_between_switches(pipe);
    }
    run.balance = balance_of(cluster_, by_link);
  }

  const Cluster& cluster_;
  const SweepOptions& options_;
  Network network_;
  std::vector<std::vector<DeviceId>> groups_;
  SimTime now_{};
};

std::string bound_of(const Run& run) {
  const Duration links = run.time - run.plan.latency;
  const Duration steps = run.plan.latency - run.plan.copies;
  if (steps >= links && steps >= run.plan.copies) return "latency";
  if (run.plan.copies > links) return "copies";
  if (run.busiest.empty()) return "links";
  if (run.is_between_switches) return "link " + run.busiest;
  return run.busiest.find(".nic") != std::string::npos ? "NIC" : "NVLink";
}

// What point-to-point operations would ignore in silence.
void check_choices(const SweepOptions& options) {
  using topologies::Algorithm;
  using topologies::Protocol;
  const topologies::NcclOptions& nccl = options.network.nccl;
  std::string why;
  if (options.operation == Operation::SendRecv) {
    const bool is_pairwise =
        nccl.algorithm == Algorithm::Auto || nccl.algorithm == Algorithm::Pairwise;
    const bool is_simple = nccl.protocol == Protocol::Auto || nccl.protocol == Protocol::Simple;
    if (!is_pairwise) {
      why = fmt::format("sendrecv by algorithm {}: it is pairwise", to_string(nccl.algorithm));
    } else if (!is_simple) {
      why = fmt::format("sendrecv by protocol {}: it is simple", to_string(nccl.protocol));
    } else if (nccl.channels > 0) {
      why = "sendrecv over a number of channels: each pair has one";
    }
  } else if (options.operation == Operation::AllToAll && nccl.protocol == Protocol::Ll128) {
    why = "all_to_all by protocol ll128: it is simple or ll";
  }
  if (why.empty()) return;
  throw Error(ErrorCode::InvalidInput, fmt::format("NCCL has no {} (network.nccl)", why));
}

}  // namespace

double bus_factor(Operation operation, int ranks) {
  const double part = (ranks - 1.0) / ranks;
  switch (operation) {
    case Operation::AllReduce:
      return 2 * part;
    case Operation::AllGather:
    case Operation::ReduceScatter:
    case Operation::AllToAll:
      return part;
    case Operation::Broadcast:
    case Operation::SendRecv:
      break;
  }
  return 1;
}

double Sweep::average_bus_bandwidth() const {
  double sum = 0;
  for (const SweepPoint& point : points) sum += point.bus_bandwidth;
  return points.empty() ? 0 : sum / static_cast<double>(points.size());
}

Sweep sweep(const Cluster& cluster, const SweepOptions& options) {
  FORESAIL_EXPECT(options.seeds >= 1);
  FORESAIL_EXPECT(options.groups >= 1);
  check(cluster, options);
  check_choices(options);
  const int devices = options.devices > 0 ? options.devices : cluster.device_count();
  Sweep result;
  result.operation = options.operation;
  result.ranks = devices / options.groups;
  result.groups = options.groups;
  result.nodes = (devices + cluster.node().devices - 1) / cluster.node().devices;
  result.cluster = cluster.name();
  result.seeds = options.seeds;
  result.points.resize(options.sizes.size());
  for (int s = 0; s < options.seeds; ++s) {
    Bench bench(cluster, options, options.seed + static_cast<std::uint64_t>(s));
    for (std::size_t i = 0; i < options.sizes.size(); ++i) {
      const Run run = bench.measure(options.sizes[i]);
      SweepPoint& point = result.points[i];
      point.time += run.time;
      if (s == 0 || run.time < point.time_min) point.time_min = run.time;
      if (s > 0 && run.time <= point.time_max) continue;
      // What is said of a size is said of its slowest draw.
      point.time_max = run.time;
      point.size = options.sizes[i];
      point.algorithm = run.plan.algorithm;
      point.protocol = run.plan.protocol;
      point.channels = run.plan.channels;
      point.copies = run.plan.copies;
      point.latency = run.plan.latency - run.plan.copies;
      point.bound = bound_of(run);
      point.nic_bytes_max = run.nic_bytes_max;
      point.balance = run.balance;
    }
  }
  for (SweepPoint& point : result.points) {
    point.time /= options.seeds;
    const double seconds = to_seconds(point.time);
    point.algorithm_bandwidth = static_cast<double>(point.size.count()) / seconds / 1e9;
    point.bus_bandwidth = point.algorithm_bandwidth * bus_factor(options.operation, result.ranks);
  }
  return result;
}

std::vector<Bytes> sizes_between(Bytes min, Bytes max, double factor) {
  if (min.count() < 1 || max < min) {
    throw Error(
        ErrorCode::InvalidInput,
        fmt::format("sizes from {} to {} bytes: none (--min, --max)", min.count(), max.count()));
  }
  if (!(factor > 1 && factor <= kFactorMax)) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--factor: {:g} is not above 1 and at most {:g}", factor, kFactorMax));
  }
  std::vector<Bytes> sizes;
  auto size = static_cast<double>(min.count());
  while (size <= static_cast<double>(max.count())) {
    const auto count = static_cast<std::int64_t>(size);
    if (sizes.empty() || count > sizes.back().count()) sizes.emplace_back(count);
    if (sizes.size() > kSizesMax) {
      throw Error(ErrorCode::InvalidInput, "--factor: gives more than 1000 sizes");
    }
    size *= factor;
  }
  return sizes;
}

Bytes parse_size(const std::string& text, const std::string& option) {
  static const std::string kUnits = "KMGTP";
  const std::size_t end = text.find_first_not_of("0123456789.");
  const std::string digits = text.substr(0, end);
  std::string unit = end == std::string::npos ? "" : text.substr(end);
  unit.erase(0, unit.find_first_not_of(' '));
  double bytes = -1;
  const auto [used, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  if (problem != std::errc() || used != digits.data() + digits.size()) bytes = -1;
  if (const std::size_t power = kUnits.find(unit.empty() ? '?' : unit.front());
      power != std::string::npos) {
    bytes = std::ldexp(bytes, 10 * (static_cast<int>(power) + 1));
    unit.erase(0, 1);
    if (!unit.empty() && unit != "B" && unit != "iB") bytes = -1;
  } else if (!unit.empty() && unit != "B") {
    bytes = -1;
  }
  if (!(bytes >= 1 && bytes <= kSizeMax) || std::floor(bytes) != bytes) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: \"{}\" is no size such as 8, 512K, 1MiB, 16G or 2T (whole bytes, "
                            "1 to 1P)",
                            option, text));
  }
  return Bytes(static_cast<std::int64_t>(bytes));
}

}  // namespace foresail::scenarios
