// NCCL's description of one node, as NCCL_TOPO_DUMP_FILE writes it:
//
//     <system version="1"><cpu numaid="0" ...>
//       <pci busid="0000:16:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
//         <pci busid="0000:18:00.0" class="0x030200" device="0x2330" ...>
//           <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="..." count="5" .../></gpu></pci>
//         <pci busid="0000:19:00.0" class="0x020700" ...>
//           <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x..."/></nic></pci>
//       </pci></cpu></system>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "foresail/base/quantity.h"
#include "import_text.h"
#include "xml_check.h"

namespace foresail::topologies {
namespace {

using Tree = boost::property_tree::ptree;

constexpr std::size_t kDevicesMax = 1024;

/// One NVLink in one direction by compute capability, GB/s (data sheets: P100 20, V100 and A100 25,
/// H100 25 of NVLink 4, B200 and B300 50 of NVLink 5).
struct NvlinkRate {
  int sm;
  int gigabytes;
};
constexpr std::array kNvlinks = {NvlinkRate{60, 20}, NvlinkRate{70, 25},  NvlinkRate{80, 25},
                                 NvlinkRate{90, 25}, NvlinkRate{100, 50}, NvlinkRate{103, 50}};

/// GPUs of the catalogue by PCI device number (pci.ids), then by compute capability.
struct KnownDevice {
  std::string_view pci;
  std::string_view name;
};
constexpr std::array kDevices = {KnownDevice{"0x20b0", "a100_40"}, KnownDevice{"0x20b2", "a100_80"},
                                 KnownDevice{"0x2330", "h100"},    KnownDevice{"0x2335", "h200"},
                                 KnownDevice{"0x2324", "h800"},    KnownDevice{"0x2901", "b200"},
                                 KnownDevice{"0x2941", "gb200"}};

/// Gb/s of one lane after line coding, by the transfer rate that Linux prints (PCI Express: 8b/10b
/// up to 5 GT/s, 128b/130b from 8 GT/s, flits from 64 GT/s).
struct LaneRate {
  std::string_view transfers;
  double gigabits;
};
constexpr std::array kLanes = {LaneRate{"2.5", 2},
                               LaneRate{"5", 4},
                               LaneRate{"5.0", 4},
                               LaneRate{"8", 8 * 128.0 / 130},
                               LaneRate{"8.0", 8 * 128.0 / 130},
                               LaneRate{"16", 16 * 128.0 / 130},
                               LaneRate{"16.0", 16 * 128.0 / 130},
                               LaneRate{"32", 32 * 128.0 / 130},
                               LaneRate{"32.0", 32 * 128.0 / 130},
                               LaneRate{"64", 64 * 242.0 / 256},
                               LaneRate{"64.0", 64 * 242.0 / 256}};

struct Gpu {
  int dev = 0;
  int sm = 0;
  int nvlinks = 0;
  bool is_amd = false;
  std::string pci_device;
  Bandwidth link;  ///< zero: not said
  int group = 0;
};

struct Nic {
  std::string name;
  std::string busid;
  int dev = 0;  ///< the first of its ports
  Bandwidth bandwidth;
  Bandwidth link;
  int group = 0;
  bool is_gdr = true;
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : text_(text), file_(file) {}
  void parse();

  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<std::string> remarks;

 private:
  struct Where {
    std::string busid;  // of the nearest pci element
    std::string pci_device;
    Bandwidth link;
    int group = -1;  // -1: directly below a CPU
  };
  void walk(const Tree& tree, const Where& where);
  void read_gpu(const Tree& tree, const Where& where);
  void read_nic(const Tree& tree, const Where& where);
  Where below(const Tree& pci, const Where& where);
  Bandwidth link_of(const Tree& pci) const;
  std::string attribute(const Tree& tree, const char* name) const;
  int number(const Tree& tree, const char* name, const std::string& busid) const;
  /// The line where `busid` first stands; 1 if nowhere.
  int line_of(const std::string& busid) const;
  void remark_unknown(const std::string& element);

  std::string_view text_;
  const std::string& file_;
  int groups_ = 0;
  std::set<std::string> unknown_;
};

int Parser::line_of(const std::string& busid) const {
  const std::size_t at = busid.empty() ? text_.npos : text_.find("busid=\"" + busid + "\"");
  const std::string_view before = text_.substr(0, at == text_.npos ? 0 : at);
  return 1 + static_cast<int>(std::ranges::count(before, '\n'));
}

std::string Parser::attribute(const Tree& tree, const char* name) const {
  return tree.get<std::string>(std::string("<xmlattr>.") + name, "");
}

int Parser::number(const Tree& tree, const char* name, const std::string& busid) const {
  const std::string text = attribute(tree, name);
  if (text.empty()) {
    fail_at(file_, line_of(busid), fmt::format("pci {}: {} is missing", shown(busid), name));
  }
  const auto value = number_of(text);
  if (!value) {
    fail_at(file_, line_of(busid),
            fmt::format("pci {}: {} {} is no number", shown(busid), name, shown(text)));
  }
  return *value;
}

/// Virtual machines say "Unknown speed", widths of 0 or 255, or nothing at all.
Bandwidth Parser::link_of(const Tree& pci) const {
  const std::string busid = attribute(pci, "busid");
  const std::string speed = attribute(pci, "link_speed");
  const bool has_width = !attribute(pci, "link_width").empty();
  const int lanes = has_width ? number(pci, "link_width", busid) : 0;
  if (speed.empty() || speed.starts_with("Unknown")) return {};
  const std::string_view transfers = std::string_view(speed).substr(0, speed.find(' '));
  for (const LaneRate& lane : kLanes) {
    if (lane.transfers != transfers) continue;
    if (lanes > 32) return {};
    return Bandwidth::bps(static_cast<std::int64_t>(lanes * lane.gigabits * 1e9));
  }
  fail_at(file_, line_of(busid),
          fmt::format("pci {}: link_speed {} is none of PCI Express", shown(busid), shown(speed)));
}

Parser::Where Parser::below(const Tree& pci, const Where& where) {
  Where inner = where;
  inner.busid = attribute(pci, "busid");
  inner.pci_device = attribute(pci, "device");
  inner.link = link_of(pci);
  // What hangs below the same port of a CPU shares a switch, however many tiers it has.
  if (inner.group < 0) inner.group = groups_++;
  return inner;
}

void Parser::read_gpu(const Tree& tree, const Where& where) {
  Gpu gpu;
  gpu.dev = number(tree, "dev", where.busid);
  gpu.sm = number(tree, "sm", where.busid);
  gpu.is_amd = !attribute(tree, "gcn").empty();
  gpu.pci_device = where.pci_device;
  gpu.link = where.link;
  gpu.group = where.group;
  for (const auto& [name, child] : tree) {
    if (name != "nvlink") continue;
    gpu.nvlinks += number(child, "count", where.busid);
    if (gpu.nvlinks > 1024) {
      fail_at(file_, line_of(where.busid), fmt::format("gpu {}: more than 1024 NVLinks", gpu.dev));
    }
  }
  gpus.push_back(gpu);
}

void Parser::read_nic(const Tree& tree, const Where& where) {
  Nic nic;
  nic.busid = where.busid;
  nic.link = where.link;
  nic.group = where.group;
  std::int64_t megabits = 0;
  int ports = 0;
  for (const auto& [name, child] : tree) {
    if (name != "net") continue;
    const int dev = number(child, "dev", where.busid);
    megabits += number(child, "speed", where.busid);
    if (attribute(child, "gdr") == "0") nic.is_gdr = false;
    if (ports++ == 0) {
      nic.dev = dev;
      nic.name = attribute(child, "name");
    }
  }
  if (ports == 0) return;  // a card without a port that NCCL uses
  if (megabits < 1 || megabits > 100'000'000) {
    fail_at(file_, line_of(where.busid),
            fmt::format("nic {}: speed {} Mb/s is not in 1..100000000", shown(nic.name), megabits));
  }
  nic.bandwidth = Bandwidth::bps(megabits * 1'000'000);
  if (ports > 1) {
    remarks.push_back(fmt::format("NIC {} has {} ports; taken as one of {}", shown(nic.name), ports,
                                  to_text(nic.bandwidth)));
  }
  nics.push_back(nic);
}

void Parser::remark_unknown(const std::string& element) {
  if (element == "<xmlattr>" || element == "<xmlcomment>") return;
  if (!unknown_.insert(element).second) return;
  remarks.push_back(fmt::format("elements {} are not understood; left out", shown(element)));
}

void Parser::walk(const Tree& tree, const Where& where) {
  for (const auto& [name, child] : tree) {
    if (name == "cpu") {
      walk(child, {});
    } else if (name == "pci") {
      walk(child, below(child, where));
    } else if (name == "gpu" || name == "nic") {
      Where inner = where;
      if (inner.group < 0) inner.group = groups_++;
      name == "gpu" ? read_gpu(child, inner) : read_nic(child, inner);
    } else {
      remark_unknown(name);
    }
    if (gpus.size() > kDevicesMax || nics.size() > kDevicesMax) {
      fail_at(file_, line_of(where.busid), fmt::format("more than {} GPUs or NICs", kDevicesMax));
    }
  }
}

void Parser::parse() {
  if (text_.find('\0') != text_.npos) fail_at(file_, 1, "not a text file");
  check_xml(text_, file_);
  Tree root;
  try {
    std::istringstream in{std::string(text_)};
    boost::property_tree::read_xml(in, root);
  } catch (const boost::property_tree::xml_parser_error& problem) {
    fail_at(file_, static_cast<int>(std::max(1UL, problem.line())),
            "not valid XML: " + problem.message());
  }
  const auto system = root.get_child_optional("system");
  if (!system) fail_at(file_, 1, "has no <system> element, so it is no dump of NCCL's topology");
  // A dump of several hosts (multi-node NVLink) tells them apart by the hash of their CPUs.
  std::string host;
  int others = 0;
  for (const auto& [name, child] : *system) {
    if (name == "<xmlattr>" || name == "<xmlcomment>") continue;
    if (name != "cpu") {
      fail_at(file_, 1, fmt::format("{} stands below <system>, where CPUs do", shown(name)));
    }
    const std::string hash = attribute(child, "host_hash");
    if (host.empty()) host = hash;
    if (hash != host) {
      ++others;
      continue;
    }
    Tree one;
    one.push_back({name, child});
    walk(one, {});
  }
  if (others > 0) {
    remarks.push_back(fmt::format(
        "{} CPUs are of other hosts than the first; only the first host is described", others));
  }
  if (gpus.empty()) fail_at(file_, 1, "describes no GPU");
}

/// The value that most have; of equally common ones the largest. Zero (not said) has no vote.
template <class Items, class Get>
auto most_common(const Items& items, Get get) {
  std::map<decltype(get(items.front())), int> votes;
  for (const auto& item : items) ++votes[get(item)];
  votes.erase(decltype(get(items.front())){});
  decltype(get(items.front())) best{};
  int most = 0;
  for (const auto& [value, count] : votes) {
    if (count < most) continue;
    most = count;
    best = value;
  }
  return best;
}

/// What the parsed node says, with everything that looks wrong.
class Describer {
 public:
  explicit Describer(Parser& parsed) : parsed_(parsed) { out_.remarks = parsed.remarks; }
  ImportedTopology describe(const std::string& file);

 private:
  void describe_gpus(const std::string& file);
  void describe_nics();
  void drop_spare_nics();
  void describe_pcie();
  void remark(std::string text) { out_.remarks.push_back(std::move(text)); }

  Parser& parsed_;
  ImportedTopology out_;
};

void Describer::describe_gpus(const std::string& file) {
  auto& gpus = parsed_.gpus;
  std::ranges::sort(gpus, {}, &Gpu::dev);
  for (std::size_t i = 1; i < gpus.size(); ++i) {
    if (gpus[i].dev == gpus[i - 1].dev) {
      fail_at(file, 1, fmt::format("gpu {} stands twice", gpus[i].dev));
    }
  }
  out_.devices = static_cast<int>(gpus.size());
  const int sm = most_common(gpus, [](const Gpu& gpu) { return gpu.sm; });
  const int links = most_common(gpus, [](const Gpu& gpu) { return gpu.nvlinks; });
  for (const NvlinkRate& rate : kNvlinks) {
    if (rate.sm == sm) {
      out_.nvlink =
          Bandwidth::gigabytes_per_second(static_cast<std::int64_t>(links) * rate.gigabytes);
    }
  }
  if (links > 0 && out_.nvlink == Bandwidth()) {
    remark(fmt::format("{} NVLinks per GPU, of unknown speed (sm {})", links, sm));
  }
  for (const Gpu& gpu : gpus) {
    if (gpu.nvlinks != links) {
      remark(fmt::format("gpu {} has {} NVLinks, the others {}", gpu.dev, gpu.nvlinks, links));
    }
    if (gpu.sm != sm)
      remark(fmt::format("gpu {} is of sm {}, the others of {}", gpu.dev, gpu.sm, sm));
  }
  if (gpus.front().is_amd) return;
  for (const KnownDevice& known : kDevices) {
    if (known.pci == gpus.front().pci_device) out_.device = known.name;
  }
  if (!out_.device.empty()) return;
  if (sm == 80) out_.device = "a100_80";
  if (sm == 90) out_.device = "h100";
  if (sm == 100) out_.device = "b200";
  if (!out_.device.empty()) {
    remark(fmt::format("PCI device {} is unknown; {} is assumed from sm {}",
                       shown(gpus.front().pci_device), out_.device, sm));
  }
}

void Describer::describe_nics() {
  auto& nics = parsed_.nics;
  std::ranges::sort(nics, [](const Nic& a, const Nic& b) {
    return a.dev != b.dev ? a.dev < b.dev : a.busid < b.busid;
  });
  if (nics.empty()) return;
  out_.nic_bandwidth = most_common(nics, [](const Nic& nic) { return nic.bandwidth; });
  // Management and storage cards are slower than those that carry the job.
  const auto is_slow = [&](const Nic& nic) {
    return 2 * nic.bandwidth.bits_per_second() < out_.nic_bandwidth.bits_per_second();
  };
  for (const Nic& nic : nics) {
    if (is_slow(nic)) {
      remark(fmt::format("NIC {} of {} is much slower than the others; left out", shown(nic.name),
                         to_text(nic.bandwidth)));
    } else if (nic.bandwidth != out_.nic_bandwidth) {
      remark(fmt::format("NIC {} has {}, most have {}", shown(nic.name), to_text(nic.bandwidth),
                         to_text(out_.nic_bandwidth)));
    }
    if (!nic.is_gdr && !is_slow(nic)) {
      remark(
          fmt::format("NIC {} reports no GPUDirect RDMA (gdr=\"0\"): simulate with nccl: "
                      "{{gpudirect: false}}",
                      shown(nic.name)));
    }
    if (nic.link > Bandwidth() && nic.link < nic.bandwidth && !is_slow(nic)) {
      remark(fmt::format("NIC {} of {} sits on a PCIe link of {}", shown(nic.name),
                         to_text(nic.bandwidth), to_text(nic.link)));
    }
  }
  std::erase_if(nics, is_slow);
  drop_spare_nics();
  out_.nics = static_cast<int>(nics.size());
}

/// A GPU drives one NIC: of more NICs than GPUs, those that share no switch with a GPU go first
/// (storage), then the last.
void Describer::drop_spare_nics() {
  auto& nics = parsed_.nics;
  const auto is_far = [&](const Nic& nic) {
    return std::ranges::none_of(parsed_.gpus, [&](const Gpu& g) { return g.group == nic.group; });
  };
  while (nics.size() > parsed_.gpus.size()) {
    auto spare = std::prev(nics.end());
    for (auto nic = nics.begin(); nic != nics.end(); ++nic) {
      if (is_far(*nic)) spare = nic;
    }
    remark(fmt::format("more NICs than GPUs: {} is left out", shown(spare->name)));
    nics.erase(spare);
  }
}

void Describer::describe_pcie() {
  out_.pcie = most_common(parsed_.gpus, [](const Gpu& gpu) { return gpu.link; });
  if (out_.pcie == Bandwidth()) {
    remark("the PCIe links have no speed (a virtual machine?); PCIe is left out");
    return;
  }
  for (const Gpu& gpu : parsed_.gpus) {
    if (gpu.link != out_.pcie) {
      remark(gpu.link == Bandwidth()
                 ? fmt::format("gpu {} has a PCIe link without a speed", gpu.dev)
                 : fmt::format("gpu {} has a PCIe link of {}, the others {}", gpu.dev,
                               to_text(gpu.link), to_text(out_.pcie)));
    }
  }
  std::map<int, ImportedPcieSwitch> groups;
  for (std::size_t d = 0; d < parsed_.gpus.size(); ++d) {
    groups[parsed_.gpus[d].group].devices.push_back(static_cast<int>(d));
  }
  for (std::size_t n = 0; n < parsed_.nics.size(); ++n) {
    groups[parsed_.nics[n].group].nics.push_back(static_cast<int>(n));
  }
  for (auto& [group, members] : groups) out_.pcie_switches.push_back(std::move(members));
}

ImportedTopology Describer::describe(const std::string& file) {
  out_.nodes = {"node0"};
  describe_gpus(file);
  describe_nics();
  describe_pcie();
  return std::move(out_);
}

}  // namespace

ImportedTopology read_nccl_topology(std::string_view text, const std::string& file) {
  Parser parser(text, file);
  parser.parse();
  return Describer(parser).describe(file);
}

}  // namespace foresail::topologies
