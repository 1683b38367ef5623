#include "route_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "foresail/base/error.h"
#include "foresail/topologies/routes.h"

namespace foresail::topologies {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// What a table knows of one switch, in one word that is read without a lock.
struct Entry {
  std::uint32_t level = 0;  ///< hops to the nearest switch that holds the NIC, plus 1; 0: unknown
  std::uint32_t count = 0;  ///< of closer links; 0: not looked for yet
  std::uint32_t first = 0;  ///< position among the out-links of the switch, or index of a list
  bool is_list = false;
};

constexpr unsigned kFirstBits = 24;
constexpr unsigned kCountBits = 19;
constexpr unsigned kLevelBits = 20;

constexpr std::uint64_t pack(const Entry& entry) {
  return std::uint64_t{entry.level} | std::uint64_t{entry.count} << kLevelBits |
         std::uint64_t{entry.first} << (kLevelBits + kCountBits) |
         std::uint64_t{entry.is_list} << (kLevelBits + kCountBits + kFirstBits);
}

constexpr std::uint32_t low_bits(std::uint64_t word, unsigned bits) {
  return static_cast<std::uint32_t>(word & ((std::uint64_t{1} << bits) - 1));
}

constexpr Entry unpack(std::uint64_t word) {
  return {low_bits(word, kLevelBits), low_bits(word >> kLevelBits, kCountBits),
          low_bits(word >> (kLevelBits + kCountBits), kFirstBits),
          (word >> (kLevelBits + kCountBits + kFirstBits)) != 0};
}

}  // namespace

struct Cluster::Routes::Table {
  std::vector<std::uint32_t> roots;  // rows of the switches that hold the NIC
  std::mutex mutex;                  // of everything below, but for reading entries
  std::once_flag once;               // opened
  std::unique_ptr<std::atomic<std::uint64_t>[]> entries;  // by row
  std::atomic<std::uint32_t> levels{0};                   // levels that are complete
  std::vector<std::uint32_t> frontier;                    // rows of the last complete level
  bool is_complete = false;                               // nothing further can be reached
};

Cluster::Routes::Routes(const Cluster& cluster, const std::vector<LinkId>& down) {
  const auto size = static_cast<std::uint32_t>(cluster.vertices().size());
  first_switch_ = size;
  while (first_switch_ > 0 &&
         cluster.vertices()[VertexId{first_switch_ - 1}].kind == VertexKind::Switch) {
    --first_switch_;
  }
  switches_ = size - first_switch_;
  if (!down.empty()) down_.assign(cluster.links().size(), false);
  for (const LinkId link : down) {
    FORESAIL_EXPECT(link.value < cluster.links().size());
    down_[link.value] = true;
  }
  index_neighbours(cluster);
  index_tables(cluster);
}

Cluster::Routes::~Routes() = default;

void Cluster::Routes::index_neighbours(const Cluster& cluster) {
  in_offsets_.assign(switches_ + 1, 0);
  std::vector<std::uint32_t> found;
  for (std::uint32_t row = 0; row < switches_; ++row) {
    found.clear();
    for (const LinkId link : cluster.out_links(VertexId{first_switch_ + row})) {
      const VertexId other = cluster.links()[link].to;
      const std::uint32_t to = is_switch(other) ? other.value - first_switch_ : kNone;
      row_of_out_link_.push_back(is_up(link) ? to : kNone);
      if (to != kNone && is_up(reverse(link))) found.push_back(to);
    }
    std::ranges::sort(found);
    const auto repeated = std::ranges::unique(found);
    in_rows_.insert(in_rows_.end(), found.begin(), repeated.begin());
    in_offsets_[row + 1] = static_cast<std::uint32_t>(in_rows_.size());
  }
}

/// Rows of the switches that have a link to `nic`, ascending.
std::vector<std::uint32_t> Cluster::Routes::attachments(const Cluster& cluster,
                                                        VertexId nic) const {
  std::vector<std::uint32_t> rows;
  for (const LinkId port : cluster.nic_ports(nic)) {
    const VertexId to = cluster.links()[port].to;
    if (is_switch(to) && is_up(reverse(port))) rows.push_back(to.value - first_switch_);
  }
  std::ranges::sort(rows);
  const auto repeated = std::ranges::unique(rows);
  rows.erase(repeated.begin(), repeated.end());
  return rows;
}

void Cluster::Routes::index_tables(const Cluster& cluster) {
  table_of_.assign(first_switch_, kNone);
  std::vector<std::uint32_t> of_row(switches_, kNone);  // NICs with one attachment
  std::map<std::vector<std::uint32_t>, std::uint32_t> of_rows;
  for (std::uint32_t v = 0; v < first_switch_; ++v) {
    if (cluster.vertices()[VertexId{v}].kind != VertexKind::Nic) continue;
    std::vector<std::uint32_t> rows = attachments(cluster, VertexId{v});
    const auto next = static_cast<std::uint32_t>(tables_.size());
    std::uint32_t& table =
        rows.size() == 1 ? of_row[rows.front()] : of_rows.try_emplace(rows, kNone).first->second;
    if (table == kNone) {
      table = next;
      tables_.push_back(std::make_unique<Table>());
      tables_.back()->roots = std::move(rows);
    }
    table_of_[v] = table;
  }
}

void Cluster::Routes::open(Table& table) const {
  table.entries = std::make_unique<std::atomic<std::uint64_t>[]>(switches_);
  for (const std::uint32_t row : table.roots) {
    table.entries[row].store(pack({.level = 1}), std::memory_order_relaxed);
  }
  table.frontier = table.roots;
  table.levels.store(1, std::memory_order_release);
}

/// One level further. False if nothing is left. Requires the table's mutex.
bool Cluster::Routes::advance(Table& table) const {
  if (table.is_complete) return false;
  const std::uint32_t level = table.levels.load(std::memory_order_relaxed) + 1;
  FORESAIL_EXPECT(level < (1U << kLevelBits));
  std::vector<std::uint32_t> next;
  for (const std::uint32_t row : table.frontier) {
    for (std::uint32_t i = in_offsets_[row]; i < in_offsets_[row + 1]; ++i) {
      std::atomic<std::uint64_t>& entry = table.entries[in_rows_[i]];
      if (entry.load(std::memory_order_relaxed) != 0) continue;
      entry.store(pack({.level = level}), std::memory_order_relaxed);
      next.push_back(in_rows_[i]);
    }
  }
  table.frontier = std::move(next);
  table.levels.store(level, std::memory_order_release);
  table.is_complete = table.frontier.empty();
  return !table.is_complete;
}

/// Level of a switch once its whole level is known; 0 if it cannot be reached.
std::uint32_t Cluster::Routes::level_of(Table& table, std::uint32_t row) const {
  const auto known = [&] {
    const std::uint32_t done = table.levels.load(std::memory_order_acquire);
    const std::uint32_t level = unpack(table.entries[row].load(std::memory_order_relaxed)).level;
    return level <= done ? level : 0;
  };
  if (const std::uint32_t level = known(); level != 0) return level;
  const std::scoped_lock lock(table.mutex);
  while (known() == 0) {
    if (!advance(table)) break;
  }
  return known();
}

/// Those of `links`, a part of the vertex's out-links, that `is_wanted`: as a part of them if they
/// stand together there, else as a list.
template <class Predicate>
std::span<const LinkId> Cluster::Routes::pick(std::span<const LinkId> links,
                                              const Predicate& is_wanted) {
  std::size_t first = links.size();
  std::size_t last = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (!is_wanted(links[i])) continue;
    first = std::min(first, i);
    last = i;
    ++count;
  }
  if (count == 0) return {};
  if (count == last - first + 1) return links.subspan(first, count);
  std::vector<LinkId> scattered;
  for (const LinkId& link : links) {
    if (is_wanted(link)) scattered.push_back(link);
  }
  const std::unique_lock lock(lists_mutex_);
  const auto next = static_cast<std::uint32_t>(lists_.size());
  const auto [item, is_new] = index_of_list_.try_emplace(std::move(scattered), next);
  if (is_new) lists_.push_back(&item->first);
  return item->first;
}

std::span<const LinkId> Cluster::Routes::next_hops(const Cluster& cluster, VertexId at,
                                                   VertexId nic) {
  FORESAIL_EXPECT(at.value < cluster.vertices_.size());
  FORESAIL_EXPECT(nic.value < cluster.vertices_.size());
  FORESAIL_EXPECT(at != nic);
  const VertexKind kind = cluster.vertices_[at].kind;
  FORESAIL_EXPECT(kind == VertexKind::Nic || kind == VertexKind::Switch);
  FORESAIL_EXPECT(cluster.vertices_[nic].kind == VertexKind::Nic);
  Table& table = *tables_[table_of_[nic.value]];
  std::call_once(table.once, [&] { open(table); });
  if (kind == VertexKind::Nic) return from_nic(cluster, at, nic, table);
  const std::uint32_t row = at.value - first_switch_;
  const Entry entry = unpack(table.entries[row].load(std::memory_order_acquire));
  if (entry.level == 1) return to_attached(cluster, at, nic);
  if (entry.count == 0) return fill(cluster, at, table);
  if (entry.is_list) return list(entry.first);
  return cluster.out_links(at).subspan(entry.first, entry.count);
}

std::span<const LinkId> Cluster::Routes::from_nic(const Cluster& cluster, VertexId at, VertexId nic,
                                                  Table& table) {
  const std::span<const LinkId> ports = cluster.nic_ports(at);
  // A NIC with one port, the usual case, has no choice.
  if (ports.size() == 1 && is_switch(cluster.links_[ports.front()].to)) {
    const std::uint32_t row = cluster.links_[ports.front()].to.value - first_switch_;
    return is_up(ports.front()) && level_of(table, row) != 0 ? ports : std::span<const LinkId>();
  }
  const auto level_over = [&](LinkId port) {
    const VertexId to = cluster.links_[port].to;
    if (!is_up(port)) return kNone;
    if (to == nic) return 0U;
    const std::uint32_t level = is_switch(to) ? level_of(table, to.value - first_switch_) : 0;
    return level == 0 ? kNone : level;
  };
  std::uint32_t best = kNone;
  for (const LinkId port : ports) best = std::min(best, level_over(port));
  if (best == kNone) return {};
  return pick(ports, [&](LinkId port) { return level_over(port) == best; });
}

/// From a switch that holds the NIC: the cables to it.
std::span<const LinkId> Cluster::Routes::to_attached(const Cluster& cluster, VertexId at,
                                                     VertexId nic) {
  const std::span<const LinkId> out = cluster.out_links(at);
  // A cable of a NIC is numbered among those of its node: few of `out` lie between its ports'.
  const std::span<const LinkId> ports = cluster.nic_ports(nic);
  const auto low = std::ranges::lower_bound(out, LinkId{ports.front().value & ~1U});
  const auto high = std::ranges::upper_bound(low, out.end(), LinkId{ports.back().value | 1U});
  return pick(std::span<const LinkId>(low, high),
              [&](LinkId link) { return cluster.links_[link].to == nic && is_up(link); });
}

std::span<const LinkId> Cluster::Routes::fill(const Cluster& cluster, VertexId at, Table& table) {
  const std::uint32_t row = at.value - first_switch_;
  const std::uint32_t level = level_of(table, row);
  if (level == 0) return {};
  const std::span<const LinkId> own = cluster.out_links(at);
  const std::size_t first = cluster.out_offsets_[at.value] - cluster.out_offsets_[first_switch_];
  // All lower levels are complete, so that another thread's search cannot change this.
  const std::span<const LinkId> answer = pick(own, [&](const LinkId& link) {
    const std::uint32_t to = row_of_out_link_[first + static_cast<std::size_t>(&link - own.data())];
    if (to == kNone) return false;
    const std::uint64_t word = table.entries[to].load(std::memory_order_relaxed);
    return unpack(word).level + 1 == level && unpack(word).level != 0;
  });
  FORESAIL_EXPECT(!answer.empty());
  FORESAIL_EXPECT(answer.size() < (1U << kCountBits));
  Entry entry{.level = level, .count = static_cast<std::uint32_t>(answer.size())};
  entry.is_list = answer.data() < own.data() || answer.data() >= own.data() + own.size();
  if (entry.is_list) {
    const std::shared_lock lock(lists_mutex_);
    entry.first = index_of_list_.at(std::vector<LinkId>(answer.begin(), answer.end()));
  } else {
    entry.first = static_cast<std::uint32_t>(answer.data() - own.data());
  }
  FORESAIL_EXPECT(entry.first < (1U << kFirstBits));
  table.entries[row].store(pack(entry), std::memory_order_release);
  return answer;
}

std::span<const LinkId> Cluster::Routes::list(std::uint32_t index) const {
  const std::shared_lock lock(lists_mutex_);
  return *lists_[index];
}

RouteTables::RouteTables(const Cluster& cluster, const std::vector<LinkId>& down)
    : cluster_(cluster), routes_(std::make_unique<Cluster::Routes>(cluster, down)) {}

RouteTables::~RouteTables() = default;

std::span<const LinkId> RouteTables::next_hops(VertexId at, VertexId destination_nic) const {
  return routes_->next_hops(cluster_, at, destination_nic);
}

}  // namespace foresail::topologies
