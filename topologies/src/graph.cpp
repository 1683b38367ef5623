#include "foresail/topologies/graph.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "exact_text.h"

namespace foresail::topologies {
namespace {

constexpr int kTierMax = 8;
constexpr int kNodesMax = 1 << 17;
constexpr int kNicsMax = 1024;
constexpr int kParallelMax = 1 << 16;
constexpr std::int64_t kCablesMax = std::int64_t{1} << 22;
constexpr std::size_t kNameMax = 256;

/// A decimal number without sign or leading zeros at the front of `text`, which is taken off.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (status != std::errc{} || text.front() == '-' || (text.front() == '0' && length > 1)) {
    return std::nullopt;
  }
  text.remove_prefix(length);
  return value;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// "node12.nic3"; nothing if `text` is not of that form.
std::optional<CableEnd> nic_end(std::string_view text) {
  CableEnd end;
  if (!take(text, "node")) return std::nullopt;
  const auto node = take_number(text);
  if (!node || !take(text, ".nic")) return std::nullopt;
  const auto nic = take_number(text);
  if (!nic || !text.empty()) return std::nullopt;
  end.node = *node;
  end.nic = *nic;
  return end;
}

/// "node12.": the beginning of the names of what is in a node.
bool is_of_node(std::string_view name) {
  return take(name, "node") && take_number(name) && take(name, ".");
}

std::string text_of(const CableEnd& end) {
  return end.node < 0 ? end.switch_name : fmt::format("node{}.nic{}", end.node, end.nic);
}

void check_name(const Yaml& node, std::string_view name) {
  if (name.empty()) node.fail("is empty");
  if (name.size() > kNameMax) node.fail(fmt::format("has more than {} characters", kNameMax));
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) node.fail("holds a control character");
  }
  // Links are named "a->b" and "a->b#1".
  if (name.find("->") != std::string_view::npos || name.find('#') != std::string_view::npos) {
    node.fail(fmt::format("\"{}\" holds \"->\" or \"#\", of which names of links are made", name));
  }
  if (is_of_node(name)) {
    node.fail(fmt::format("\"{}\" reads like a part of a node; name the switch otherwise", name));
  }
}

/// Names of the switches, and how many cable ends each has.
using Ends = std::map<std::string, int, std::less<>>;

std::vector<GraphSwitch> read_switches(const Yaml& node, Ends& ends) {
  std::vector<GraphSwitch> switches;
  for (const Yaml& item : node.items()) {
    item.allow_only({"name", "tier"});
    const Yaml name = item.at("name");
    GraphSwitch one{name.as_string(), 1};
    check_name(name, one.name);
    if (const auto tier = item.find("tier")) {
      one.tier = static_cast<int>(tier->as_integer(1, kTierMax));
    }
    if (!ends.emplace(one.name, 0).second) {
      name.fail(fmt::format("switch \"{}\" stands twice", one.name));
    }
    switches.push_back(std::move(one));
  }
  if (switches.empty()) node.fail("names no switch");
  return switches;
}

CableEnd read_end(const Yaml& node, Ends& ends) {
  const std::string text = node.as_string();
  if (const auto nic = nic_end(text)) {
    if (nic->node >= kNodesMax) {
      node.fail(fmt::format("node {} is not in 0..{}", nic->node, kNodesMax - 1));
    }
    if (nic->nic >= kNicsMax) {
      node.fail(fmt::format("NIC {} is not in 0..{}", nic->nic, kNicsMax - 1));
    }
    return *nic;
  }
  const auto found = ends.find(text);
  if (found == ends.end()) {
    node.fail(fmt::format("\"{}\" is neither a switch of this graph nor a NIC (node0.nic0)", text));
  }
  ++found->second;
  return {-1, 0, text};
}

Cable read_cable(const Yaml& node, Ends& ends) {
  node.allow_only({"from", "to", "bandwidth", "latency", "count"});
  Cable cable;
  const Yaml to = node.at("to");
  cable.a = read_end(node.at("from"), ends);
  cable.b = read_end(to, ends);
  if (cable.a == cable.b) to.fail(fmt::format("\"{}\" is cabled to itself", text_of(cable.a)));
  if (cable.a.node >= 0 && cable.b.node >= 0) {
    to.fail(fmt::format("{} is cabled to {}: put a switch between two NICs", text_of(cable.a),
                        text_of(cable.b)));
  }
  const Yaml bandwidth = node.at("bandwidth");
  cable.bandwidth = bandwidth.as_bandwidth();
  if (cable.bandwidth <= Bandwidth()) bandwidth.fail("must be positive");
  if (cable.bandwidth > Bandwidth::gbps(1'000'000)) bandwidth.fail("is beyond any link");
  const Yaml latency = node.at("latency");
  cable.latency = latency.as_duration();
  if (cable.latency > std::chrono::seconds(1)) latency.fail("must not exceed 1 s");
  if (const auto count = node.find("count")) {
    cable.count = static_cast<int>(count->as_integer(1, kParallelMax));
  }
  return cable;
}

}  // namespace

GraphSpec read_graph(const Yaml& node) {
  node.allow_only({"switches", "cables"});
  GraphSpec graph;
  Ends ends;
  const Yaml switches = node.at("switches");
  graph.switches = read_switches(switches, ends);
  const Yaml cables = node.at("cables");
  std::int64_t total = 0;
  for (const Yaml& item : cables.items()) {
    graph.cables.push_back(read_cable(item, ends));
    total += graph.cables.back().count;
    if (total > kCablesMax) item.fail(fmt::format("more than {} cables", kCablesMax));
  }
  for (const auto& [name, count] : ends) {
    if (count == 0) switches.fail(fmt::format("no cable ends at switch \"{}\"", name));
  }
  return graph;
}

Document to_document(const GraphSpec& graph) {
  Document document = {{"switches", Document::array()}, {"cables", Document::array()}};
  for (const GraphSwitch& one : graph.switches) {
    document["switches"].push_back({{"name", one.name}, {"tier", one.tier}});
  }
  for (const Cable& cable : graph.cables) {
    Document item = {{"from", text_of(cable.a)},
                     {"to", text_of(cable.b)},
                     {"bandwidth", exact_text(cable.bandwidth)},
                     {"latency", exact_text(cable.latency)}};
    if (cable.count > 1) item["count"] = cable.count;
    document["cables"].push_back(std::move(item));
  }
  return document;
}

}  // namespace foresail::topologies
