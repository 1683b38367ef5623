#include "import_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"

namespace foresail::topologies {
namespace {

constexpr std::string_view kBlanks = " \t\r\f\v";
constexpr int kTierMax = 8;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

/// Length of the run of digits at the front, and where its first digit that is no zero stands.
struct Digits {
  std::size_t zeros = 0;
  std::size_t length = 0;
};

Digits digits_of(std::string_view text) {
  Digits digits;
  while (digits.zeros < text.size() && text[digits.zeros] == '0') ++digits.zeros;
  digits.length = digits.zeros;
  while (digits.length < text.size() && is_digit(text[digits.length])) ++digits.length;
  return digits;
}

template <class Parse>
auto quantity(const std::string& file, const TextLine& line, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const Error& problem) {
    fail_at(file, line.number, problem.what());
  }
}

}  // namespace

void fail_at(const std::string& file, int line, const std::string& message) {
  throw Error(ErrorCode::InvalidInput, fmt::format("{}:{}: {}", file, line, message));
}

std::string shown(std::string_view text) {
  std::string out(text.substr(0, 60));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return '"' + out + (text.size() > 60 ? "...\"" : "\"");
}

std::vector<TextLine> lines_of(std::string_view text) {
  std::vector<TextLine> lines;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back({++number, trimmed(text.substr(0, end))});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t first = text.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) return words;
    text.remove_prefix(first);
    const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Bandwidth ns3_bandwidth(const std::string& file, const TextLine& line, std::string_view text) {
  // ns-3's DataRate: "400Gbps" or "400Gb/s", "Kbps" for 1,000 b/s; ours: "400Gb/s", "kb/s".
  std::string ours(text);
  if (ours.ends_with("bps") || ours.ends_with("Bps")) ours.replace(ours.size() - 2, 2, "/s");
  if (const std::size_t kilo = ours.find('K'); kilo != std::string::npos) ours[kilo] = 'k';
  const Bandwidth value = quantity(file, line, ours, parse_bandwidth);
  if (value <= Bandwidth() || value > Bandwidth::gbps(1'000'000)) {
    fail_at(file, line.number,
            fmt::format("{} is no bandwidth of a link (1 b/s to 1000 Tb/s)", shown(text)));
  }
  return value;
}

Duration ns3_latency(const std::string& file, const TextLine& line, std::string_view text) {
  const Duration value = quantity(file, line, std::string(text), parse_duration);
  if (value > std::chrono::seconds(1)) {
    fail_at(file, line.number, fmt::format("{} is more than 1 s", shown(text)));
  }
  return value;
}

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view all_a = a;
  const std::string_view all_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const Digits da = digits_of(a);
      const Digits db = digits_of(b);
      const std::string_view na = a.substr(da.zeros, da.length - da.zeros);
      const std::string_view nb = b.substr(db.zeros, db.length - db.zeros);
      if (na.size() != nb.size()) return na.size() < nb.size();
      if (na != nb) return na < nb;
      a.remove_prefix(da.length);
      b.remove_prefix(db.length);
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return all_a < all_b;  // equal but for leading zeros
}

void find_tiers(ImportedTopology& imported) {
  GraphSpec& graph = imported.graph;
  std::map<std::string, std::size_t, std::less<>> index;
  for (std::size_t s = 0; s < graph.switches.size(); ++s) index[graph.switches[s].name] = s;
  std::vector<std::vector<std::size_t>> beside(graph.switches.size());
  std::vector<int> tier(graph.switches.size(), 0);
  std::vector<std::size_t> frontier;
  for (const Cable& cable : graph.cables) {
    if (cable.a.node < 0 && cable.b.node < 0) {
      const std::size_t a = index.at(cable.a.switch_name);
      const std::size_t b = index.at(cable.b.switch_name);
      beside[a].push_back(b);
      beside[b].push_back(a);
      continue;
    }
    const std::size_t leaf = index.at(cable.a.node < 0 ? cable.a.switch_name : cable.b.switch_name);
    if (tier[leaf] == 0) frontier.push_back(leaf);
    tier[leaf] = 1;
  }
  for (std::size_t next = 0; next < frontier.size(); ++next) {
    for (const std::size_t other : beside[frontier[next]]) {
      if (tier[other] != 0) continue;
      tier[other] = std::min(kTierMax, tier[frontier[next]] + 1);
      frontier.push_back(other);
    }
  }
  std::vector<GraphSwitch> kept;
  for (std::size_t s = 0; s < graph.switches.size(); ++s) {
    graph.switches[s].tier = tier[s];
    if (tier[s] > 0) kept.push_back(graph.switches[s]);
  }
  if (kept.size() < graph.switches.size()) {
    imported.remarks.push_back(fmt::format("{} of {} switches are cabled to no node; left out",
                                           graph.switches.size() - kept.size(),
                                           graph.switches.size()));
    std::erase_if(graph.cables, [&](const Cable& cable) {
      return cable.a.node < 0 && cable.b.node < 0 && tier[index.at(cable.a.switch_name)] == 0;
    });
  }
  graph.switches = std::move(kept);
}

void find_nics(ImportedTopology& imported) {
  std::map<std::pair<int, int>, std::int64_t> nics;  // bits per second of each NIC
  for (const Cable& cable : imported.graph.cables) {
    for (const CableEnd* end : {&cable.a, &cable.b}) {
      if (end->node < 0) continue;
      nics[{end->node, end->nic}] += cable.count * cable.bandwidth.bits_per_second();
      imported.nics = std::max(imported.nics, end->nic + 1);
    }
  }
  std::map<std::int64_t, int> rates;
  for (const auto& [nic, rate] : nics) ++rates[rate];
  int most = 0;
  for (const auto& [rate, count] : rates) {
    if (count < most) continue;  // of equally common rates the highest
    most = count;
    imported.nic_bandwidth = Bandwidth::bps(rate);
  }
  if (rates.size() > 1) {
    imported.remarks.push_back(
        fmt::format("{} of {} NICs do not have the most common bandwidth, {}",
                    nics.size() - static_cast<std::size_t>(most), nics.size(),
                    to_text(imported.nic_bandwidth)));
  }
}

}  // namespace foresail::topologies
