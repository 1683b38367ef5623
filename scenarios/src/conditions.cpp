#include "foresail/scenarios/conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/base/rng.h"

namespace foresail::scenarios {
namespace {

using topologies::Cluster;

constexpr double kSigmaMax = 1;
constexpr double kFactorMin = 1e-4;
constexpr Duration kFlapMin = std::chrono::milliseconds(10);
constexpr std::size_t kMessagesMax = std::size_t{1} << 20;

int device_count(const Cluster::Options& cluster) {
  return cluster.nodes * cluster.node.devices;
}

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Duration read_time(const Yaml& node, std::string_view key) {
  const auto value = node.find(key);
  if (!value) return Duration{};
  const Duration time = value->as_duration();
  if (time < Duration{} || time > std::chrono::hours(24)) value->fail("must be 0 to 24 hours");
  return time;
}

sim::Fault read_fault(const Yaml& node) {
  node.allow_only({"at", "for", "kind", "target", "factor", "period"});
  sim::Fault fault;
  fault.kind = node.at("kind").as_choice<sim::FaultKind>();
  fault.at = read_time(node, "at");
  fault.lasts = read_time(node, "for");
  if (const auto lasts = node.find("for"); lasts && fault.lasts <= Duration{}) {
    lasts->fail("must be positive (leave it out: to the end)");
  }
  fault.target = node.at("target").as_string();
  const bool is_slow = fault.kind == sim::FaultKind::LinkDegraded ||
                       fault.kind == sim::FaultKind::NicSlow ||
                       fault.kind == sim::FaultKind::GpuSlow;
  if (const auto factor = node.find("factor")) {
    if (!is_slow) factor->fail(fmt::format("says nothing about {}", to_string(fault.kind)));
    fault.factor = factor->as_number();
    if (!(fault.factor >= kFactorMin && fault.factor < 1)) {
      factor->fail("must be at least 0.0001 and less than 1; link_down takes all of a link");
    }
  }
  const bool is_flap = fault.kind == sim::FaultKind::LinkFlap;
  if (const auto period = node.find("period")) {
    if (!is_flap) period->fail("belongs to link_flap");
    fault.period = read_time(node, "period");
    if (fault.period < kFlapMin) period->fail("must be at least 10 ms");
  } else if (is_flap) {
    node.fail("link_flap needs a period");
  }
  return fault;
}

sim::Traffic read_source(const Yaml& node, const Cluster::Options& cluster) {
  node.allow_only({"pattern", "devices", "bytes", "at", "gap"});
  sim::Traffic traffic;
  traffic.pattern = node.at("pattern").as_choice<sim::TrafficPattern>();
  const Yaml devices = node.at("devices");
  for (const int device : read_numbers(devices, device_count(cluster))) {
    traffic.devices.push_back(DeviceId{static_cast<std::uint32_t>(device)});
  }
  if (traffic.devices.size() < 2) devices.fail("traffic needs at least two devices");
  const std::size_t count = traffic.devices.size();
  if (traffic.pattern == sim::TrafficPattern::AllToAll && count * count > kMessagesMax) {
    devices.fail(
        fmt::format("all_to_all of {} devices has more than {} messages", count, kMessagesMax));
  }
  const Yaml bytes = node.at("bytes");
  traffic.bytes = bytes.as_bytes();
  if (traffic.bytes < 1_KiB) bytes.fail("must be at least 1 KiB");
  traffic.at = read_time(node, "at");
  traffic.gap = read_time(node, "gap");
  return traffic;
}

program::Placement on_nodes(const std::vector<int>& nodes, int per_node, int ranks) {
  program::Placement placement;
  for (const int node : nodes) {
    for (int d = 0; d < per_node && std::cmp_less(placement.device_of.size(), ranks); ++d) {
      placement.device_of.push_back(DeviceId{static_cast<std::uint32_t>(node * per_node + d)});
    }
  }
  return placement;
}

}  // namespace

std::vector<std::string> unmet(const Conditions& conditions, Duration end) {
  std::vector<std::string> notes;
  const auto note = [&](const std::string& what, Duration at) {
    if (at < end) return;
    notes.push_back(fmt::format("{} at {} never happened: the step ends at {}", what, to_text(at),
                                to_text(end)));
  };
  for (const sim::Fault& fault : conditions.faults) {
    note(fmt::format("the fault {} of {}", to_string(fault.kind), fault.target), fault.at);
  }
  for (const sim::Traffic& traffic : conditions.traffic) {
    note(fmt::format("the traffic {}", to_string(traffic.pattern)), traffic.at);
  }
  for (const OtherJob& job : conditions.jobs) note("the start of job " + job.name, job.at);
  return notes;
}

std::vector<int> read_numbers(const Yaml& node, int end) {
  std::vector<int> numbers;
  std::vector<bool> is_taken(static_cast<std::size_t>(end), false);
  const std::string text = node.as_string();
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    const std::size_t dash = item.find('-');
    const auto first = number_of(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number_of(item.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= end) {
      node.fail(fmt::format("\"{}\" is no number or range within 0-{}", item, end - 1));
    }
    for (int i = *first; i <= *last; ++i) {
      if (is_taken[static_cast<std::size_t>(i)]) node.fail(fmt::format("names {} twice", i));
      is_taken[static_cast<std::size_t>(i)] = true;
      numbers.push_back(i);
    }
  }
  if (numbers.empty()) node.fail("names nothing");
  return numbers;
}

sim::Jitter read_jitter(const Yaml& node) {
  sim::Jitter jitter;
  if (node.is_scalar()) {
    if (node.as_string() != "none") node.fail("expected none or {sigma: 0.01}");
    return jitter;
  }
  node.allow_only({"sigma"});
  const Yaml sigma = node.at("sigma");
  jitter.sigma = sigma.as_number();
  if (!(jitter.sigma > 0 && jitter.sigma <= kSigmaMax)) sigma.fail("must be above 0, at most 1");
  return jitter;
}

std::vector<sim::Fault> read_faults(const Yaml& node, const Cluster::Options& options) {
  std::vector<sim::Fault> faults;
  const std::vector<Yaml> items = node.items();
  if (items.empty()) return faults;
  const Cluster cluster(options);
  for (const Yaml& item : items) {
    faults.push_back(read_fault(item));
    try {
      sim::check_fault(cluster, faults.back());
    } catch (const Error& error) {
      item.at("target").fail(error.what());
    }
  }
  return faults;
}

std::vector<sim::Traffic> read_traffic(const Yaml& node, const Cluster::Options& cluster) {
  std::vector<sim::Traffic> sources;
  for (const Yaml& item : node.items()) sources.push_back(read_source(item, cluster));
  return sources;
}

program::Placement read_placement(const Yaml& node, const Cluster::Options& cluster, int ranks,
                                  std::uint64_t seed) {
  const int devices = device_count(cluster);
  if (ranks > devices) {
    node.fail(fmt::format("the layout has {} ranks, but the cluster {} devices", ranks, devices));
  }
  std::vector<int> nodes(static_cast<std::size_t>(cluster.nodes));
  std::iota(nodes.begin(), nodes.end(), 0);
  if (node.is_scalar()) {
    const std::string kind = node.as_string();
    if (kind == "packed") return program::Placement::identity(ranks);
    if (kind != "random") {
      node.fail("expected packed, random, {first_device: N} or {nodes: \"0-3,8\"}");
    }
    RandomStream random = Rng(seed).stream("placement");
    for (std::size_t i = nodes.size(); i > 1; --i) std::swap(nodes[i - 1], nodes[random.below(i)]);
    return on_nodes(nodes, cluster.node.devices, ranks);
  }
  node.allow_only({"first_device", "nodes"});
  if (const auto first = node.find("first_device")) {
    if (node.find("nodes")) first->fail("stands beside nodes; give one of them");
    const auto from = static_cast<int>(first->as_integer(0, devices - ranks));
    program::Placement placement;
    for (int r = 0; r < ranks; ++r) {
      placement.device_of.push_back(DeviceId{static_cast<std::uint32_t>(from + r)});
    }
    return placement;
  }
  const Yaml list = node.at("nodes");
  const program::Placement placement =
      on_nodes(read_numbers(list, cluster.nodes), cluster.node.devices, ranks);
  if (std::cmp_less(placement.device_of.size(), ranks)) {
    list.fail(fmt::format("{} devices for {} ranks", placement.device_of.size(), ranks));
  }
  return placement;
}

}  // namespace foresail::scenarios
