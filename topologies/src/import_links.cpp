// Lists of links as ns-3 simulators read them. astra-sim's physical topology (as in HPCC's):
//
//     nodes switches links
//     ids of the switches
//     source destination 400Gbps 0.0005ms error_rate      (one line per link)
//
// SimAI puts more into the first line: nodes gpus_per_server nvswitches switches links gpu_type.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <tuple>

#include "foresail/base/quantity.h"
#include "import_text.h"

namespace foresail::topologies {
namespace {

enum class VertexRole { Device, NvSwitch, Switch };

struct ListedLink {
  int a = 0;
  int b = 0;
  Bandwidth bandwidth;
  Duration latency{};
  int line = 0;
};

struct LinkList {
  std::vector<VertexRole> roles;  // by id
  std::vector<ListedLink> links;
  int gpus_per_server = 1;
  std::string gpu_type;
  std::vector<std::string> remarks;
};

/// Words in order, with the lines they stand in.
class Words {
 public:
  Words(std::string_view text, const std::string& file) : lines_(lines_of(text)), file_(file) {}

  /// The next word; fails at the end of the file with what was expected.
  std::string_view next(const char* what) {
    while (next_ == words_.size()) {
      if (line_ == lines_.size()) {
        fail_at(file_, lines_.empty() ? 1 : lines_.back().number,
                fmt::format("ends where {} should stand", what));
      }
      at_ = lines_[line_++];
      next_ = 0;
      words_.clear();
      if (!at_.text.starts_with('#')) words_ = words_of(at_.text);
    }
    return words_[next_++];
  }
  int next_number(const char* what, int most) {
    const std::string_view word = next(what);
    const auto value = number_of(word);
    if (!value || *value > most) {
      fail_at(file_, at_.number, fmt::format("{} {} is not in 0..{}", what, shown(word), most));
    }
    return *value;
  }
  /// How many words of the current line are left.
  std::size_t left_in_line() const { return words_.size() - next_; }
  const TextLine& line() const { return at_; }
  const std::string& file() const { return file_; }
  /// Whether any further line begins with a number.
  bool has_more_numbers() const {
    if (left_in_line() > 0 && number_of(words_[next_])) return true;
    for (std::size_t l = line_; l < lines_.size(); ++l) {
      const auto words = words_of(lines_[l].text);
      if (words.size() >= 4 && number_of(words[0]) && number_of(words[1])) return true;
    }
    return false;
  }

 private:
  std::vector<TextLine> lines_;
  const std::string& file_;
  std::vector<std::string_view> words_;
  std::size_t next_ = 0;
  std::size_t line_ = 0;
  TextLine at_{0, {}};
};

constexpr int kIdsMax = 1 << 21;

void read_links(Words& words, int count, LinkList& list) {
  const int ids = static_cast<int>(list.roles.size());
  int lossy = 0;
  for (int i = 0; i < count; ++i) {
    ListedLink link;
    link.a = words.next_number("the source of a link", ids - 1);
    link.b = words.next_number("the destination of a link", ids - 1);
    link.line = words.line().number;
    if (link.a == link.b) {
      fail_at(words.file(), link.line, fmt::format("{} is linked to itself", link.a));
    }
    const std::string_view bandwidth = words.next("the bandwidth of a link");
    link.bandwidth = ns3_bandwidth(words.file(), words.line(), bandwidth);
    const std::string_view latency = words.next("the delay of a link");
    link.latency = ns3_latency(words.file(), words.line(), latency);
    const std::string_view error = words.next("the error rate of a link");
    if (error.find_first_not_of("0.") != std::string_view::npos) ++lossy;
    list.links.push_back(link);
  }
  if (words.has_more_numbers()) {
    fail_at(words.file(), words.line().number,
            fmt::format("more links follow than the {} of the first line", count));
  }
  if (lossy > 0) {
    list.remarks.push_back(fmt::format("{} links have an error rate, which is left out", lossy));
  }
}

void read_switch_ids(Words& words, int nvswitches, int switches, LinkList& list) {
  const int ids = static_cast<int>(list.roles.size());
  for (int i = 0; i < nvswitches + switches; ++i) {
    const int id = words.next_number("the id of a switch", ids - 1);
    VertexRole& role = list.roles[static_cast<std::size_t>(id)];
    if (role != VertexRole::Device) {
      fail_at(words.file(), words.line().number, fmt::format("switch {} stands twice", id));
    }
    role = i < nvswitches ? VertexRole::NvSwitch : VertexRole::Switch;
  }
}

LinkList read_link_list(std::string_view text, const std::string& file, TopologyFormat format) {
  Words words(text, file);
  LinkList list;
  const int nodes = words.next_number("the number of nodes", kIdsMax);
  const int first_line = words.line().number;
  int nvswitches = 0;
  if (format == TopologyFormat::Simai) {
    list.gpus_per_server = words.next_number("the number of GPUs per server", 1024);
    nvswitches = words.next_number("the number of NVSwitches", nodes);
  }
  const int switches = words.next_number("the number of switches", nodes);
  const int links = words.next_number("the number of links", static_cast<int>(kImportCablesMax));
  if (format == TopologyFormat::Simai) list.gpu_type = words.next("the type of GPU");
  if (nvswitches + switches >= nodes || list.gpus_per_server < 1) {
    fail_at(file, first_line,
            fmt::format("{} nodes with {} NVSwitches and {} switches leave no GPU", nodes,
                        nvswitches, switches));
  }
  list.roles.assign(static_cast<std::size_t>(nodes), VertexRole::Device);
  read_switch_ids(words, nvswitches, switches, list);
  read_links(words, links, list);
  return list;
}

/// Adds cables, equal ones of one pair as one entry, in the order in which they first stand.
class CableSet {
 public:
  explicit CableSet(GraphSpec& graph) : graph_(graph) {}
  void add(const CableEnd& a, const CableEnd& b, Bandwidth bandwidth, Duration latency) {
    const auto key =
        std::tuple(a.node, a.nic, a.switch_name, b.node, b.nic, b.switch_name, bandwidth, latency);
    const auto [at, is_new] = known_.try_emplace(key, graph_.cables.size());
    if (is_new) {
      graph_.cables.push_back({a, b, bandwidth, latency, 1});
    } else {
      ++graph_.cables[at->second].count;
    }
  }

 private:
  GraphSpec& graph_;
  std::map<std::tuple<int, int, std::string, int, int, std::string, Bandwidth, Duration>,
           std::size_t>
      known_;
};

bool is_device(const LinkList& list, int id) {
  return list.roles[static_cast<std::size_t>(id)] == VertexRole::Device;
}

void finish(ImportedTopology& imported, const std::string& file) {
  find_tiers(imported);
  if (imported.graph.cables.empty()) fail_at(file, 1, "no GPU is linked to a switch");
  find_nics(imported);
}

/// ns-3 hosts relay, our NICs do not: a host that is linked to another gets a router.
ImportedTopology hosts_of(const LinkList& list, const std::string& file) {
  ImportedTopology imported;
  imported.remarks = list.remarks;
  imported.devices = 1;
  std::map<int, CableEnd> ends;
  std::map<int, std::int64_t> relays;  // bits per second of all links of a host that relays
  for (const ListedLink& link : list.links) {
    if (is_device(list, link.a) && is_device(list, link.b)) relays[link.a] = relays[link.b] = 0;
  }
  for (const ListedLink& link : list.links) {
    for (const int id : {link.a, link.b}) {
      if (relays.contains(id)) relays[id] += link.bandwidth.bits_per_second();
    }
  }
  CableSet cables(imported.graph);
  for (int id = 0; id < static_cast<int>(list.roles.size()); ++id) {
    if (!is_device(list, id)) {
      ends[id] = {-1, 0, fmt::format("switch{}", id)};
      imported.graph.switches.push_back({ends[id].switch_name, 1});
      continue;
    }
    const CableEnd nic{static_cast<int>(imported.nodes.size()), 0, ""};
    imported.nodes.push_back(fmt::format("host {}", id));
    ends[id] = nic;
    if (!relays.contains(id)) continue;
    ends[id] = {-1, 0, fmt::format("router{}", id)};
    imported.graph.switches.push_back({ends[id].switch_name, 1});
    cables.add(nic, ends[id], Bandwidth::bps(relays[id]), Duration());
  }
  if (imported.nodes.size() > kImportNodesMax) {
    fail_at(file, 1, fmt::format("more than {} hosts", kImportNodesMax));
  }
  for (const ListedLink& link : list.links) {
    cables.add(ends.at(link.a), ends.at(link.b), link.bandwidth, link.latency);
  }
  if (!relays.empty()) {
    imported.remarks.push_back(
        fmt::format("{} hosts relay for others: each has a router between its NIC and its links",
                    relays.size()));
  }
  imported.remarks.push_back("every host is a node with one GPU");
  finish(imported, file);
  return imported;
}

std::string catalogue_device(std::string type) {
  for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (type == "a100") return "a100_80";
  for (const char* known : {"h100", "h200", "h800", "b200", "gb200"}) {
    if (type == known) return known;
  }
  return "";
}

/// Servers with their NVSwitches.
class ServerBuilder {
 public:
  ServerBuilder(const LinkList& list, const std::string& file) : list_(list), file_(file) {}
  ImportedTopology build();

 private:
  void number_vertices();
  void add_link(const ListedLink& link, CableSet& cables);
  void find_nvlink();

  const LinkList& list_;
  const std::string& file_;
  ImportedTopology imported_;
  std::map<int, CableEnd> ends_;
  std::map<int, std::int64_t> nvlink_;  // bits per second by GPU
};

void ServerBuilder::number_vertices() {
  int gpus = 0;
  for (int id = 0; id < static_cast<int>(list_.roles.size()); ++id) {
    if (is_device(list_, id)) {
      ends_[id] = {gpus / list_.gpus_per_server, gpus % list_.gpus_per_server, ""};
      ++gpus;
    } else if (list_.roles[static_cast<std::size_t>(id)] == VertexRole::Switch) {
      ends_[id] = {-1, 0, fmt::format("switch{}", id)};
      imported_.graph.switches.push_back({ends_[id].switch_name, 1});
    }
  }
  if (gpus % list_.gpus_per_server != 0) {
    fail_at(file_, 1,
            fmt::format("{} GPUs are not a multiple of the {} of a server", gpus,
                        list_.gpus_per_server));
  }
  const int servers = gpus / list_.gpus_per_server;
  if (servers > kImportNodesMax) {
    fail_at(file_, 1, fmt::format("more than {} servers", kImportNodesMax));
  }
  for (int s = 0; s < servers; ++s) imported_.nodes.push_back(fmt::format("server {}", s));
  imported_.devices = list_.gpus_per_server;
}

void ServerBuilder::add_link(const ListedLink& link, CableSet& cables) {
  const auto role = [&](int id) { return list_.roles[static_cast<std::size_t>(id)]; };
  const auto [low, high] = std::minmax(link.a, link.b, [&](int a, int b) {
    return role(a) < role(b);  // GPUs before NVSwitches before switches
  });
  if (role(high) == VertexRole::Device) {
    fail_at(file_, link.line, fmt::format("GPUs {} and {} are linked without a switch", low, high));
  }
  if (role(low) == VertexRole::NvSwitch) {
    fail_at(file_, link.line, fmt::format("NVSwitch {} is linked to switch {}", low, high));
  }
  if (role(high) == VertexRole::NvSwitch) {
    nvlink_[low] += link.bandwidth.bits_per_second();
  } else {
    cables.add(ends_.at(low), ends_.at(high), link.bandwidth, link.latency);
  }
}

void ServerBuilder::find_nvlink() {
  if (nvlink_.empty()) return;
  std::map<std::int64_t, int> rates;
  for (const auto& [gpu, rate] : nvlink_) ++rates[rate];
  const auto most = std::ranges::max_element(
      rates, [](const auto& a, const auto& b) { return a.second < b.second; });
  imported_.nvlink = Bandwidth::bps(most->first);
  if (rates.size() > 1) {
    imported_.remarks.push_back(
        fmt::format("GPUs have {} different NVLink bandwidths; most have "
                    "{}",
                    rates.size(), to_text(imported_.nvlink)));
  }
}

ImportedTopology ServerBuilder::build() {
  imported_.remarks = list_.remarks;
  number_vertices();
  CableSet cables(imported_.graph);
  for (const ListedLink& link : list_.links) add_link(link, cables);
  find_nvlink();
  imported_.device = catalogue_device(list_.gpu_type);
  imported_.remarks.push_back(
      imported_.device.empty()
          ? fmt::format("GPU type {} is not in the catalogue", shown(list_.gpu_type))
          : fmt::format("GPU type {} is taken as {}", shown(list_.gpu_type), imported_.device));
  finish(imported_, file_);
  return std::move(imported_);
}

}  // namespace

ImportedTopology read_simai(std::string_view text, const std::string& file) {
  const LinkList list = read_link_list(text, file, TopologyFormat::Simai);
  return ServerBuilder(list, file).build();
}

ImportedTopology read_ns3_topology(std::string_view text, const std::string& file) {
  return hosts_of(read_link_list(text, file, TopologyFormat::AstraSim), file);
}

}  // namespace foresail::topologies
