#include "foresail/topologies/cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "clos.h"
#include "foresail/base/error.h"
#include "routes.h"

namespace foresail::topologies {
namespace {

/// One hop of NVLink through a switch (SimAI's figure); software is in the device's constants.
constexpr Duration kNvlinkLatency = std::chrono::nanoseconds(500);
/// PCIe and NIC of one end. With 450 ns per hop an InfiniBand message within a leaf takes 2.8 us
/// and one across leaves 3.7 us, as tabled in "Insights into DeepSeek-V3" (ISCA 2025).
constexpr Duration kNicLatency = std::chrono::nanoseconds(950);

const char* tier_name(int tier) {
  return tier == 1 ? "leaf" : tier == 2 ? "spine" : "core";
}

int to_int(std::int64_t value) {
  return static_cast<int>(value);
}

/// Lays down vertices and cables in the documented order.
class Builder {
 public:
  Builder(const Cluster::Options& options, const ClosShape& shape)
      : options_(options), shape_(shape) {
    vertices.reserve(static_cast<std::size_t>(vertex_count(options, shape)));
    links.reserve(static_cast<std::size_t>(link_count(options, shape)));
  }

  void add_vertices();
  void add_links();

  IdVector<VertexId, Vertex> vertices;
  IdVector<LinkId, Link> links;

 private:
  void add_switches(std::int64_t count, int tier) {
    for (int i = 0; i < count; ++i) vertices.push_back({VertexKind::Switch, -1, i, tier});
  }
  /// Both directions, `from` -> `to` first.
  void connect(std::int64_t from, std::int64_t to, const Link& cable) {
    const VertexId a{static_cast<std::uint32_t>(from)};
    const VertexId b{static_cast<std::uint32_t>(to)};
    links.push_back({a, b, cable.bandwidth, cable.latency});
    links.push_back({b, a, cable.bandwidth, cable.latency});
  }
  void connect_node(std::int64_t node);
  void connect_leaves();
  void connect_spines();

  const Cluster::Options& options_;
  const ClosShape& shape_;
  std::int64_t first_leaf_ = 0;
  std::int64_t first_spine_ = 0;
  std::int64_t first_core_ = 0;
};

void Builder::add_vertices() {
  const NodeSpec& node = options_.node;
  const VertexKind centre =
      options_.device.nvlink > Bandwidth() ? VertexKind::NvSwitch : VertexKind::Host;
  for (int n = 0; n < options_.nodes; ++n) {
    for (int d = 0; d < node.devices; ++d) vertices.push_back({VertexKind::Device, n, d, 0});
    vertices.push_back({centre, n, 0, 0});
    for (int i = 0; i < node.nics; ++i) vertices.push_back({VertexKind::Nic, n, i, 0});
  }
  first_leaf_ = static_cast<std::int64_t>(vertices.size());
  first_spine_ = first_leaf_ + shape_.leaves;
  first_core_ = first_spine_ + shape_.spines();
  add_switches(shape_.leaves, 1);
  add_switches(shape_.spines(), 2);
  add_switches(shape_.cores(), 3);
}

void Builder::connect_node(std::int64_t n) {
  const NodeSpec& node = options_.node;
  const std::int64_t first = n * (node.devices + 1 + node.nics);
  const std::int64_t centre = first + node.devices;
  const Bandwidth inside = options_.device.nvlink > Bandwidth() ? options_.device.nvlink
                                                                : options_.device.memory_bandwidth;
  for (int d = 0; d < node.devices; ++d) {
    connect(first + d, centre, {{}, {}, inside, kNvlinkLatency});
  }
  if (node.nics == 0) return;
  for (int d = 0; d < node.devices; ++d) {
    const int nic = d * node.nics / node.devices;
    connect(first + d, centre + 1 + nic, {{}, {}, node.nic_bandwidth, kNicLatency});
  }
}

void Builder::connect_leaves() {
  const NodeSpec& node = options_.node;
  const FabricSpec& fabric = options_.fabric;
  for (std::int64_t n = 0; n < options_.nodes; ++n) {
    const std::int64_t first_nic = n * (node.devices + 1 + node.nics) + node.devices + 1;
    const std::int64_t group = n / fabric.nodes_per_leaf;
    for (int i = 0; i < node.nics; ++i) {
      const std::int64_t rail = i * fabric.rails / node.nics;
      connect(first_nic + i, first_leaf_ + group * fabric.rails + rail,
              {{}, {}, node.nic_bandwidth, fabric.link_latency});
    }
  }
}

void Builder::connect_spines() {
  const FabricSpec& fabric = options_.fabric;
  const Link cable{{}, {}, fabric.uplink_bandwidth, fabric.link_latency};
  for (std::int64_t leaf = 0; leaf < shape_.leaves; ++leaf) {
    const std::int64_t pod = pod_of(leaf, fabric, shape_);
    for (std::int64_t uplink = 0; uplink < shape_.spines_per_pod * shape_.leaf_parallel; ++uplink) {
      const std::int64_t plane = uplink / shape_.leaf_parallel;
      connect(first_leaf_ + leaf, first_spine_ + pod * shape_.spines_per_pod + plane, cable);
    }
  }
  for (std::int64_t spine = 0; spine < shape_.spines(); ++spine) {
    const std::int64_t plane = spine % shape_.spines_per_pod;
    const std::int64_t uplinks = shape_.cores_per_plane * shape_.spine_parallel;
    for (std::int64_t uplink = 0; uplink < uplinks; ++uplink) {
      const std::int64_t core = plane * shape_.cores_per_plane + uplink / shape_.spine_parallel;
      connect(first_spine_ + spine, first_core_ + core, cable);
    }
  }
}

void Builder::add_links() {
  for (std::int64_t node = 0; node < options_.nodes; ++node) connect_node(node);
  if (options_.node.nics == 0) return;
  connect_leaves();
  connect_spines();
}

}  // namespace

std::string Vertex::name() const {
  switch (kind) {
    case VertexKind::Device:
      return fmt::format("node{}.gpu{}", node, index);
    case VertexKind::NvSwitch:
      return fmt::format("node{}.nvswitch", node);
    case VertexKind::Host:
      return fmt::format("node{}.host", node);
    case VertexKind::Pcie:
      return fmt::format("node{}.pcie{}", node, index);
    case VertexKind::Nic:
      return fmt::format("node{}.nic{}", node, index);
    case VertexKind::Switch:
      return fmt::format("{}{}", tier_name(tier), index);
  }
  return "?";
}

Cluster::Cluster(const Options& options) : options_(options) {
  if (const auto law = broken_law(options)) {
    throw Error(ErrorCode::InvalidInput, fmt::format("cluster {}: {}", options.name, *law));
  }
  const ClosShape shape = clos_shape(options);
  Builder builder(options_, shape);
  builder.add_vertices();
  builder.add_links();
  vertices_ = std::move(builder.vertices);
  links_ = std::move(builder.links);

  // Out-links by counting: those of one vertex stand together in link order.
  out_offsets_.assign(vertices_.size() + 1, 0);
  for (const Link& link : links_) ++out_offsets_[link.from.value + 1];
  for (std::size_t i = 1; i < out_offsets_.size(); ++i) out_offsets_[i] += out_offsets_[i - 1];
  out_links_.resize(links_.size());
  std::vector<std::uint32_t> next(out_offsets_.begin(), out_offsets_.end() - 1);
  std::uint32_t id = 0;
  for (const Link& link : links_) out_links_[next[link.from.value]++] = LinkId{id++};
  routes_ = std::make_shared<Routes>(*this);
}

int Cluster::node_of(DeviceId device) const {
  FORESAIL_EXPECT(device.value < static_cast<std::uint32_t>(device_count()));
  return to_int(device.value) / options_.node.devices;
}

std::string Cluster::link_name(LinkId link) const {
  FORESAIL_EXPECT(link.value < links_.size());
  const auto [from, to, bandwidth, latency] = links_[link];
  int parallel = 0;
  for (const LinkId other : out_links(from)) {
    if (other < link && links_[other].to == to) ++parallel;
  }
  std::string name = vertices_[from].name() + "->" + vertices_[to].name();
  if (parallel > 0) name += fmt::format("#{}", parallel);
  return name;
}

std::span<const LinkId> Cluster::out_links(VertexId vertex) const {
  FORESAIL_EXPECT(vertex.value < vertices_.size());
  const std::uint32_t first = out_offsets_[vertex.value];
  return {out_links_.data() + first, out_offsets_[vertex.value + 1] - first};
}

VertexId Cluster::device_vertex(DeviceId device) const {
  const NodeSpec& node = options_.node;
  const int of_node = node.devices + 1 + node.nics;
  const int first = node_of(device) * of_node;
  return VertexId{static_cast<std::uint32_t>(first + to_int(device.value) % node.devices)};
}

VertexId Cluster::nic_vertex(DeviceId device) const {
  return links_[to_nic(device)].to;
}

std::vector<LinkId> Cluster::intra_node_path(DeviceId from, DeviceId to) const {
  FORESAIL_EXPECT(node_of(from) == node_of(to));
  FORESAIL_EXPECT(from != to);
  // The first cable of a device is the one to the centre of its node: up first, then down.
  const LinkId up = out_links(device_vertex(from)).front();
  const LinkId down{out_links(device_vertex(to)).front().value + 1};
  return {up, down};
}

LinkId Cluster::to_nic(DeviceId device) const {
  FORESAIL_EXPECT(options_.node.nics > 0);
  return out_links(device_vertex(device))[1];
}

LinkId Cluster::from_nic(DeviceId device) const {
  return LinkId{to_nic(device).value + 1};
}

std::span<const LinkId> Cluster::next_hops(VertexId at, VertexId destination_nic) const {
  FORESAIL_EXPECT(at.value < vertices_.size());
  FORESAIL_EXPECT(destination_nic.value < vertices_.size());
  FORESAIL_EXPECT(at != destination_nic);
  const Vertex& here = vertices_[at];
  FORESAIL_EXPECT(here.kind == VertexKind::Nic || here.kind == VertexKind::Switch);
  FORESAIL_EXPECT(vertices_[destination_nic].kind == VertexKind::Nic);
  // The fabric link of a NIC is its last; those to its devices come before.
  if (here.kind == VertexKind::Nic) return out_links(at).last(1);
  const LinkId uplink = out_links(destination_nic).back();
  const VertexId leaf = links_[uplink].to;
  if (at != leaf) {
    const HopRange range = routes_->next_hops(*this, at, leaf);
    return {out_links_.data() + range.first, range.count};
  }
  // NIC links come first at a leaf, in the order of the NICs' links, each one after its uplink.
  const std::span<const LinkId> down = out_links(leaf);
  const auto link = std::ranges::lower_bound(down, LinkId{uplink.value + 1});
  FORESAIL_EXPECT(link != down.end() && *link == LinkId{uplink.value + 1});
  return down.subspan(static_cast<std::size_t>(link - down.begin()), 1);
}

}  // namespace foresail::topologies
