#include "foresail/topologies/cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "build.h"
#include "foresail/base/error.h"
#include "laws.h"
#include "names.h"
#include "route_cache.h"

namespace foresail::topologies {
namespace {

int to_int(std::int64_t value) {
  return static_cast<int>(value);
}

}  // namespace

Cluster::Cluster(const Options& options) : options_(options) {
  if (const auto law = broken_law(options)) {
    throw Error(ErrorCode::InvalidInput, fmt::format("cluster {}: {}", options.name, *law));
  }
  const auto shape = std::make_shared<const NodeShape>(options_.node, options_.device.nvlink);
  GraphParts parts = build_graph(options_, *shape);
  shape_ = shape;
  vertices_ = std::move(parts.vertices);
  links_ = std::move(parts.links);
  parallels_ = std::move(parts.parallels);

  // Out-links by counting: those of one vertex stand together in link order.
  out_offsets_.assign(vertices_.size() + 1, 0);
  for (const Link& link : links_) ++out_offsets_[link.from.value + 1];
  for (std::size_t i = 1; i < out_offsets_.size(); ++i) out_offsets_[i] += out_offsets_[i - 1];
  out_links_.resize(links_.size());
  std::vector<std::uint32_t> next(out_offsets_.begin(), out_offsets_.end() - 1);
  std::uint32_t id = 0;
  for (const Link& link : links_) out_links_[next[link.from.value]++] = LinkId{id++};
  routes_ = std::make_shared<Routes>(*this, std::vector<LinkId>{});
}

int Cluster::node_of(DeviceId device) const {
  FORESAIL_EXPECT(device.value < static_cast<std::uint32_t>(device_count()));
  return to_int(device.value) / options_.node.devices;
}

int Cluster::parallel_of(LinkId link) const {
  if (!parallels_.empty()) return parallels_[link.value];
  int parallel = 0;
  for (const LinkId other : out_links(links_[link].from)) {
    if (other < link && links_[other].to == links_[link].to) ++parallel;
  }
  return parallel;
}

std::string Cluster::link_name(LinkId link) const {
  FORESAIL_EXPECT(link.value < links_.size());
  std::string name = vertices_[links_[link].from].name() + "->" + vertices_[links_[link].to].name();
  if (const int parallel = parallel_of(link); parallel > 0) name += fmt::format("#{}", parallel);
  return name;
}

std::span<const LinkId> Cluster::out_links(VertexId vertex) const {
  FORESAIL_EXPECT(vertex.value < vertices_.size());
  const std::uint32_t first = out_offsets_[vertex.value];
  return {out_links_.data() + first, out_offsets_[vertex.value + 1] - first};
}

std::span<const LinkId> Cluster::nic_ports(VertexId nic) const {
  FORESAIL_EXPECT(nic.value < vertices_.size());
  FORESAIL_EXPECT(vertices_[nic].kind == VertexKind::Nic);
  // Cables within the node come before those of the fabric.
  const std::span<const LinkId> all = out_links(nic);
  std::size_t ports = 0;
  while (ports < all.size()) {
    const VertexKind to = vertices_[links_[all[all.size() - ports - 1]].to].kind;
    if (to != VertexKind::Nic && to != VertexKind::Switch) break;
    ++ports;
  }
  return all.last(ports);
}

std::optional<VertexId> Cluster::find_vertex(std::string_view name) const {
  const NodeRange range{static_cast<std::uint32_t>(options_.nodes),
                        static_cast<std::uint32_t>(shape_->size)};
  return topologies::find_vertex(vertices_, range, name);
}

std::optional<LinkId> Cluster::find_link(std::string_view name) const {
  const NodeRange range{static_cast<std::uint32_t>(options_.nodes),
                        static_cast<std::uint32_t>(shape_->size)};
  const auto parsed = parse_link_name(vertices_, range, name);
  if (!parsed) return std::nullopt;
  int before = 0;
  for (const LinkId link : out_links(parsed->from)) {
    if (links_[link].to != parsed->to) continue;
    const int parallel = parallels_.empty() ? before++ : parallels_[link.value];
    if (parallel == parsed->parallel) return link;
  }
  return std::nullopt;
}

VertexId Cluster::in_node(int node, int offset) const {
  return VertexId{static_cast<std::uint32_t>(node * shape_->size + offset)};
}

std::optional<LinkId> Cluster::link_between(VertexId from, VertexId to) const {
  for (const LinkId link : out_links(from)) {
    if (links_[link].to == to) return link;
  }
  return std::nullopt;
}

std::vector<LinkId> Cluster::links_along(int node, std::initializer_list<int> offsets) const {
  std::vector<LinkId> path;
  for (auto at = offsets.begin(); at + 1 != offsets.end(); ++at) {
    const auto link = link_between(in_node(node, at[0]), in_node(node, at[1]));
    FORESAIL_EXPECT(link.has_value());
    path.push_back(*link);
  }
  return path;
}

VertexId Cluster::device_vertex(DeviceId device) const {
  return in_node(node_of(device), to_int(device.value) % options_.node.devices);
}

VertexId Cluster::nic_vertex(DeviceId device) const {
  FORESAIL_EXPECT(options_.node.nics > 0);
  const std::size_t within = device.value % static_cast<std::uint32_t>(options_.node.devices);
  return in_node(node_of(device), shape_->first_nic + shape_->nic_of_device[within]);
}

std::vector<LinkId> Cluster::intra_node_path(DeviceId from, DeviceId to) const {
  FORESAIL_EXPECT(node_of(from) == node_of(to));
  FORESAIL_EXPECT(from != to);
  if (shape_->has_pcie && !shape_->has_nvlink) {
    const int node = node_of(from);
    const int a = to_int(from.value) % options_.node.devices;
    const int b = to_int(to.value) % options_.node.devices;
    const int pcie_a = shape_->first_pcie + shape_->pcie_of_device[static_cast<std::size_t>(a)];
    const int pcie_b = shape_->first_pcie + shape_->pcie_of_device[static_cast<std::size_t>(b)];
    if (pcie_a == pcie_b) return links_along(node, {a, pcie_a, b});
    return links_along(node, {a, pcie_a, shape_->host, pcie_b, b});
  }
  // The first cable of a device is the one to the centre of its node: up first, then down.
  const LinkId up = out_links(device_vertex(from)).front();
  const LinkId down = reverse(out_links(device_vertex(to)).front());
  return {up, down};
}

LinkId Cluster::to_nic(DeviceId device) const {
  FORESAIL_EXPECT(options_.node.nics > 0);
  if (!shape_->has_pcie) return out_links(device_vertex(device))[1];
  // The cable of a NIC to its PCIe switch is its first.
  return reverse(out_links(nic_vertex(device)).front());
}

LinkId Cluster::from_nic(DeviceId device) const {
  return reverse(to_nic(device));
}

std::vector<LinkId> Cluster::path_to_nic(DeviceId device, GpuDirect direct) const {
  const LinkId last = to_nic(device);
  if (!shape_->has_pcie) {
    return direct == GpuDirect::On ? std::vector<LinkId>{last} : std::vector<LinkId>{last, last};
  }
  const auto within = static_cast<std::size_t>(to_int(device.value) % options_.node.devices);
  const int nic = shape_->nic_of_device[within];
  const int here = shape_->first_pcie + shape_->pcie_of_device[within];
  const int there = shape_->first_pcie + shape_->pcie_of_nic[static_cast<std::size_t>(nic)];
  const int first = static_cast<int>(within);
  const int last_offset = shape_->first_nic + nic;
  if (direct == GpuDirect::On && here == there) {
    return links_along(node_of(device), {first, here, last_offset});
  }
  return links_along(node_of(device), {first, here, shape_->host, there, last_offset});
}

std::vector<LinkId> Cluster::path_from_nic(DeviceId device, GpuDirect direct) const {
  std::vector<LinkId> path = path_to_nic(device, direct);
  std::ranges::reverse(path);
  for (LinkId& link : path) link = reverse(link);
  return path;
}

std::span<const LinkId> Cluster::next_hops(VertexId at, VertexId destination_nic) const {
  return routes_->next_hops(*this, at, destination_nic);
}

}  // namespace foresail::topologies
