// The topology file of ibnetdiscover (infiniband-diags; its manual page describes the format):
//
//     switchguid=0xb8599f0300fc6de4(b8599f0300fc6de4)
//     Switch  41 "S-b8599f0300fc6de4"   # "MF0;sw95:MQM8700/U1" enhanced port 0 lid 13 lmc 0
//     [3]     "S-0002c903007b78b0"[1]   # "MF0;sw26:MQM8700/U1" lid 19 4xHDR
//     [23]    "H-ec0d9a03007d7d0a"[1](ec0d9a03007d7d0a)   # "r-dcs96 HCA-1" lid 9 4xHDR
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "foresail/base/quantity.h"
#include "import_text.h"

namespace foresail::topologies {
namespace {

/// Data rate of one lane after line coding (InfiniBand specification; SDR to QDR use 8b/10b, FDR
/// 64b/66b: 14.0625 * 64 / 66).
struct Speed {
  std::string_view name;
  std::int64_t bits_per_second;
};
constexpr std::array kSpeeds = {
    Speed{"SDR", 2'000'000'000},    Speed{"DDR", 4'000'000'000},   Speed{"QDR", 8'000'000'000},
    Speed{"FDR10", 10'000'000'000}, Speed{"FDR", 13'636'363'636},  Speed{"EDR", 25'000'000'000},
    Speed{"HDR", 50'000'000'000},   Speed{"NDR", 100'000'000'000}, Speed{"XDR", 200'000'000'000}};

enum class EntityKind { Switch, Host, Router };

struct Entity {
  EntityKind kind = EntityKind::Switch;
  std::string description;  ///< as the file says it
  bool has_block = false;   ///< it has lines of its own, not only a peer's
};

struct Port {
  std::string guid;  ///< "S-b8599f0300fc6de4"
  int number = 0;
  friend auto operator<=>(const Port&, const Port&) = default;
};

/// A cable as one or both of its ends list it.
struct Listed {
  Bandwidth bandwidth;
  int ends = 0;  ///< how many of them list it
  int line = 0;
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : text_(text), file_(file) {}
  void parse();

  std::map<std::string, Entity> entities;          // by guid
  std::vector<std::string> order;                  // guids, as they first stand in the file
  std::map<std::pair<Port, Port>, Listed> cables;  // the lower port first
  std::vector<std::string> remarks;

 private:
  void parse_header(const TextLine& line);
  void parse_port(const TextLine& line);
  Entity& entity(const TextLine& line, std::string_view guid, std::string_view description);
  /// Takes the text up to `end` off the front of `rest`; fails if there is no `end`.
  std::string_view take(const TextLine& line, std::string_view& rest, std::string_view begin,
                        char end) const;
  int take_port(const TextLine& line, std::string_view& rest) const;
  Bandwidth speed(const TextLine& line, std::string_view word) const;

  std::string_view text_;
  const std::string& file_;
  std::string block_;  // guid whose ports follow; empty before the first
  int odd_lines_ = 0;
};

std::string_view Parser::take(const TextLine& line, std::string_view& rest, std::string_view begin,
                              char end) const {
  const std::size_t blanks = std::min(rest.find_first_not_of(" \t"), rest.size());
  std::string_view text = rest.substr(blanks);
  const std::size_t close = text.find(end, begin.size());
  if (!text.starts_with(begin) || close == std::string_view::npos) {
    fail_at(file_, line.number, fmt::format("expected {}...{}, got {}", begin, end, shown(text)));
  }
  rest = text.substr(close + 1);
  return text.substr(begin.size(), close - begin.size());
}

int Parser::take_port(const TextLine& line, std::string_view& rest) const {
  const std::string_view text = take(line, rest, "[", ']');
  const auto number = number_of(text);
  if (!number) fail_at(file_, line.number, fmt::format("{} is no port number", shown(text)));
  return *number;
}

Bandwidth Parser::speed(const TextLine& line, std::string_view word) const {
  const std::size_t x = word.find('x');
  const auto lanes = number_of(word.substr(0, std::min(x, word.size())));
  if (x != std::string_view::npos && lanes && *lanes >= 1 && *lanes <= 12) {
    for (const Speed& known : kSpeeds) {
      if (known.name == word.substr(x + 1)) return Bandwidth::bps(*lanes * known.bits_per_second);
    }
  }
  std::string names;
  for (const Speed& known : kSpeeds) names += fmt::format(" {}", known.name);
  fail_at(
      file_, line.number,
      fmt::format("{} is no link width and speed (such as 4xNDR; known:{})", shown(word), names));
}

Entity& Parser::entity(const TextLine& line, std::string_view guid, std::string_view description) {
  const bool is_hex = guid.size() > 2 && guid.size() <= 34 &&
                      guid.find_first_not_of("0123456789abcdefABCDEF", 2) == guid.npos;
  if (!is_hex) fail_at(file_, line.number, fmt::format("{} holds no GUID", shown(guid)));
  const std::string key(guid);
  const auto [at, is_new] = entities.try_emplace(key);
  Entity& entity = at->second;
  if (!is_new) return entity;
  if (guid.starts_with("S-")) {
    entity.kind = EntityKind::Switch;
  } else if (guid.starts_with("H-")) {
    entity.kind = EntityKind::Host;
  } else if (guid.starts_with("R-")) {
    entity.kind = EntityKind::Router;
  } else {
    fail_at(file_, line.number, fmt::format("{} is neither S-, H- nor R-<GUID>", shown(guid)));
  }
  entity.description = description;
  order.push_back(key);
  return entity;
}

/// The text in quotes that begins a comment; what follows it is left in `rest`.
std::string_view quoted(std::string_view& rest) {
  const std::size_t open = rest.find('"');
  const std::size_t close = rest.rfind('"');
  if (open == std::string_view::npos || open == close) return {};
  const std::string_view text = rest.substr(open + 1, close - open - 1);
  rest = rest.substr(close + 1);
  return text;
}

void Parser::parse_header(const TextLine& line) {
  std::string_view rest = line.text;
  rest.remove_prefix(rest.find_first_of(" \t"));
  const std::size_t quote = std::min(rest.find('"'), rest.size());
  const auto words = words_of(rest.substr(0, quote));
  if (words.size() != 1 || !number_of(words[0])) {
    fail_at(file_, line.number, fmt::format("expected a number of ports, got {}", shown(rest)));
  }
  rest.remove_prefix(quote);
  const std::string_view guid = take(line, rest, "\"", '"');
  Entity& found = entity(line, guid, "");
  if (found.has_block) {
    fail_at(file_, line.number, fmt::format("{} stands twice", shown(guid)));
  }
  found.has_block = true;
  const std::string_view description = quoted(rest);
  if (!description.empty()) found.description = description;
  block_ = guid;
}

void Parser::parse_port(const TextLine& line) {
  if (block_.empty()) {
    fail_at(file_, line.number, "a port stands before the first Switch, Ca or Rt line");
  }
  std::string_view rest = line.text;
  Port here{block_, take_port(line, rest)};
  if (rest.starts_with("[ext ")) take(line, rest, "[", ']');
  // A CA's port tells its own GUID in parentheses.
  if (const auto at = rest.find_first_not_of(" \t"); at != rest.npos && rest[at] == '(') {
    take(line, rest, "(", ')');
  }
  const std::string_view guid = take(line, rest, "\"", '"');
  Port there{std::string(guid), take_port(line, rest)};
  const std::size_t comment = rest.find('#');
  if (comment == std::string_view::npos) {
    fail_at(file_, line.number, "has no comment with the peer's name, width and speed");
  }
  rest.remove_prefix(comment + 1);
  const std::string_view description = quoted(rest);
  entity(line, guid, description);
  const auto words = words_of(rest);  // lid, its number, width and speed, details of --full
  if (words.size() < 3 || words[0] != "lid") {
    fail_at(file_, line.number,
            fmt::format("expected a lid, width and speed, got {}", shown(rest)));
  }
  if (words[2].find('?') != std::string_view::npos) {
    remarks.push_back(
        fmt::format("line {}: a cable of unknown speed ({}); left out", line.number, words[2]));
    return;
  }
  const Bandwidth bandwidth = speed(line, words[2]);
  if (there < here) std::swap(here, there);
  Listed& cable = cables[{here, there}];
  if (cable.ends > 0 && cable.bandwidth != bandwidth) {
    remarks.push_back(fmt::format("lines {} and {}: the ends of one cable say {} and {}; the lower",
                                  cable.line, line.number, to_text(cable.bandwidth),
                                  to_text(bandwidth)));
  }
  cable.bandwidth = cable.ends > 0 ? std::min(cable.bandwidth, bandwidth) : bandwidth;
  cable.line = line.number;
  ++cable.ends;
}

void Parser::parse() {
  for (const TextLine& line : lines_of(text_)) {
    const std::string_view text = line.text;
    if (text.empty() || text.front() == '#') continue;
    const std::string_view word = text.substr(0, text.find_first_of(" \t"));
    if (text.front() == '[') {
      parse_port(line);
    } else if ((word == "Switch" || word == "Ca" || word == "Rt") && word.size() < text.size()) {
      parse_header(line);
    } else if (word.find('=') == word.npos && word != "Chassis" && word != "Non-Chassis" &&
               word != "Hostname:") {
      ++odd_lines_;
    }
  }
  if (odd_lines_ > 0) {
    remarks.push_back(fmt::format("{} lines are not of ibnetdiscover's; ignored", odd_lines_));
  }
}

/// "node001 HCA-1" or "node001 mlx5_0": the host and its adapter.
struct HostAdapter {
  std::string host, adapter;
};

HostAdapter split_description(std::string_view description) {
  const auto words = words_of(description);
  if (words.size() < 2) return {std::string(description), ""};
  const std::string_view last = words.back();
  std::string host(
      description.substr(0, static_cast<std::size_t>(last.data() - description.data())));
  while (!host.empty() && (host.back() == ' ' || host.back() == '\t')) host.pop_back();
  return {host, std::string(last)};
}

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};

/// Adapters of each host, by guid.
using Hosts = std::map<std::string, std::map<std::string, std::string>, NaturalLess>;

/// Turns entities into nodes, NICs and switches.
class Builder {
 public:
  Builder(const Parser& parsed, const std::string& file) : parsed_(parsed), file_(file) {
    imported_.remarks = parsed.remarks;
  }
  ImportedTopology build(Duration link_latency);

 private:
  Hosts find_hosts();
  void drop_small_hosts(Hosts& hosts);
  void number_nics(const Hosts& hosts);
  void name_switches();
  void add_cables(Duration link_latency);

  const Parser& parsed_;
  const std::string& file_;
  ImportedTopology imported_;
  std::map<std::string, CableEnd> ends_;  // by guid; those that are left out are absent
};

Hosts Builder::find_hosts() {
  Hosts hosts;
  int aggregation = 0;
  int routers = 0;
  for (const std::string& guid : parsed_.order) {
    const Entity& entity = parsed_.entities.at(guid);
    if (entity.kind == EntityKind::Router) ++routers;
    if (entity.kind != EntityKind::Host) continue;
    // SHARP's reduction engines show as adapters inside the switches.
    if (entity.description.find("Aggregation Node") != std::string::npos) {
      ++aggregation;
      continue;
    }
    HostAdapter name = split_description(entity.description);
    if (name.host.empty()) name.host = guid;
    auto& adapters = hosts[name.host];
    if (!adapters.emplace(name.adapter, guid).second) {
      adapters.emplace(name.adapter + " " + guid, guid);
      imported_.remarks.push_back(
          fmt::format("{} has two adapters called {}", shown(name.host), shown(name.adapter)));
    }
  }
  if (routers > 0) imported_.remarks.push_back(fmt::format("{} routers; left out", routers));
  if (aggregation > 0) {
    imported_.remarks.push_back(
        fmt::format("{} aggregation nodes (SHARP) inside switches; left out", aggregation));
  }
  return hosts;
}

/// Login, storage and management hosts have few adapters, compute nodes are the many.
void Builder::drop_small_hosts(Hosts& hosts) {
  std::map<std::size_t, int> sizes;
  for (const auto& [host, adapters] : hosts) ++sizes[adapters.size()];
  std::size_t usual = 0;
  int most = 0;
  for (const auto& [size, count] : sizes) {
    if (count < most) continue;  // of equally common numbers the larger
    most = count;
    usual = size;
  }
  std::vector<std::string> dropped;
  for (const auto& [host, adapters] : hosts) {
    if (2 * adapters.size() < usual) dropped.push_back(host);
  }
  for (const std::string& host : dropped) hosts.erase(host);
  if (!dropped.empty()) {
    imported_.remarks.push_back(fmt::format(
        "{} hosts have less than half of the usual {} adapters ({} is the first); left out",
        dropped.size(), usual, shown(dropped.front())));
  }
}

void Builder::number_nics(const Hosts& hosts) {
  // NIC i is the i-th adapter name of all hosts together, so that a host that misses one keeps the
  // others on their rails.
  std::set<std::string, NaturalLess> names;
  for (const auto& [host, adapters] : hosts) {
    for (const auto& [name, guid] : adapters) names.insert(name);
  }
  std::map<std::string, int> number;
  for (const std::string& name : names) number.emplace(name, static_cast<int>(number.size()));
  if (number.size() > 1024) fail_at(file_, 1, "more than 1024 different names of adapters");
  if (hosts.size() > kImportNodesMax) {
    fail_at(file_, 1, fmt::format("more than {} hosts", kImportNodesMax));
  }
  for (const auto& [host, adapters] : hosts) {
    const int node = static_cast<int>(imported_.nodes.size());
    imported_.nodes.push_back(host);
    for (const auto& [name, guid] : adapters) ends_[guid] = {node, number.at(name), ""};
  }
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  imported_.remarks.push_back(fmt::format("NICs are numbered in the order of {}", shown(list)));
}

void Builder::name_switches() {
  std::set<std::string> taken;
  std::map<std::string, int> count;
  for (const auto& [guid, entity] : parsed_.entities) ++count[entity.description];
  for (const std::string& guid : parsed_.order) {
    const Entity& entity = parsed_.entities.at(guid);
    if (entity.kind != EntityKind::Switch) continue;
    std::string name = entity.description;
    for (char& c : name) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '#' || c == '>' ||
          static_cast<unsigned char>(c) > 0x7e) {
        c = '_';
      }
    }
    if (name.size() > 200) name.resize(200);
    // Unmanaged switches all have the same description.
    if (name.empty() || count[entity.description] > 1 || name != entity.description ||
        name.starts_with("node")) {
      name += (name.empty() ? "" : " ") + guid;
    }
    if (name.starts_with("node")) name = "switch " + name;
    if (!taken.insert(name).second) name += " " + guid;
    imported_.graph.switches.push_back({name, 1});
    ends_[guid] = {-1, 0, name};
  }
}

void Builder::add_cables(Duration link_latency) {
  std::size_t one_ended = 0;
  std::string first;
  for (const auto& [ports, listed] : parsed_.cables) {
    const auto a = ends_.find(ports.first.guid);
    const auto b = ends_.find(ports.second.guid);
    if (a == ends_.end() || b == ends_.end() || a->second == b->second) continue;
    if (a->second.node >= 0 && b->second.node >= 0) {
      fail_at(file_, listed.line, "two adapters cabled to each other, without a switch");
    }
    if (listed.ends == 1 && parsed_.entities.at(ports.first.guid).has_block &&
        parsed_.entities.at(ports.second.guid).has_block && ++one_ended == 1) {
      first = fmt::format("line {}", listed.line);
    }
    imported_.graph.cables.push_back({a->second, b->second, listed.bandwidth, link_latency, 1});
  }
  if (one_ended > 0) {
    imported_.remarks.push_back(
        fmt::format("{} cables are listed by one end only ({} is the first)", one_ended, first));
  }
  // Nodes first, in order; equal cables of one pair as one entry.
  auto& cables = imported_.graph.cables;
  const auto key = [](const Cable& c) {
    return std::tuple(c.a.node < 0, c.a.node, c.a.nic, c.a.switch_name, c.b.switch_name,
                      c.bandwidth);
  };
  for (Cable& cable : cables) {
    if (cable.a.node < 0 && cable.b.node >= 0) std::swap(cable.a, cable.b);
  }
  std::ranges::stable_sort(cables, [&](const Cable& a, const Cable& b) { return key(a) < key(b); });
  std::vector<Cable> merged;
  for (const Cable& cable : cables) {
    if (!merged.empty() && key(merged.back()) == key(cable)) {
      ++merged.back().count;
    } else {
      merged.push_back(cable);
    }
  }
  cables = std::move(merged);
}

ImportedTopology Builder::build(Duration link_latency) {
  Hosts hosts = find_hosts();
  drop_small_hosts(hosts);
  if (hosts.empty()) fail_at(file_, 1, "describes no host");
  number_nics(hosts);
  name_switches();
  add_cables(link_latency);
  find_tiers(imported_);
  if (imported_.graph.cables.empty()) fail_at(file_, 1, "no host is cabled to a switch");
  find_nics(imported_);
  imported_.remarks.push_back(fmt::format(
      "the file has no latencies: {} per cable and switch is assumed", to_text(link_latency)));
  return std::move(imported_);
}

}  // namespace

ImportedTopology read_ibnetdiscover(std::string_view text, const std::string& file,
                                    Duration link_latency) {
  Parser parser(text, file);
  parser.parse();
  if (parser.entities.empty()) fail_at(file, 1, "holds no Switch, Ca or Rt line");
  return Builder(parser, file).build(link_latency);
}

}  // namespace foresail::topologies
