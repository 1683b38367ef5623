#include "fault_targets.h"

#include <fmt/format.h>

#include <optional>

#include "foresail/base/error.h"
#include "foresail/sim/disturbance.h"

namespace foresail::sim {
namespace {

using topologies::Cluster;
using topologies::VertexKind;

std::optional<VertexId> vertex_named(const Cluster& cluster, const std::string& name) {
  std::uint32_t id = 0;
  for (const topologies::Vertex& vertex : cluster.vertices()) {
    if (vertex.name() == name) return VertexId{id};
    ++id;
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const Cluster& cluster, const std::string& name, const char* wanted) {
  throw Error(ErrorCode::InvalidInput, fmt::format("fault target \"{}\": cluster {} has no such {}",
                                                   name, cluster.name(), wanted));
}

// The other direction of a cable: parallel links keep their order in both directions.
LinkId reverse(const Cluster& cluster, LinkId link) {
  const topologies::Link& cable = cluster.links()[link];
  int parallel = 0;
  for (const LinkId other : cluster.out_links(cable.from)) {
    if (other < link && cluster.links()[other].to == cable.to) ++parallel;
  }
  for (const LinkId other : cluster.out_links(cable.to)) {
    if (cluster.links()[other].to == cable.from && parallel-- == 0) return other;
  }
  FORESAIL_EXPECT(false);
  return link;
}

}  // namespace

DeviceId device_named(const Cluster& cluster, const std::string& name) {
  const auto vertex = vertex_named(cluster, name);
  if (!vertex || cluster.vertices()[*vertex].kind != VertexKind::Device) {
    refuse(cluster, name, "GPU (\"node3.gpu1\")");
  }
  const topologies::Vertex& found = cluster.vertices()[*vertex];
  return DeviceId{static_cast<std::uint32_t>(found.node * cluster.node().devices + found.index)};
}

std::vector<LinkId> links_named(const Cluster& cluster, const std::string& name) {
  const std::size_t arrow = name.find("->");
  std::vector<LinkId> links;
  const auto from = vertex_named(cluster, name.substr(0, arrow));
  if (from) {
    for (const LinkId link : cluster.out_links(*from)) {
      const VertexKind other = cluster.vertices()[cluster.links()[link].to].kind;
      const bool is_wanted =
          arrow == std::string::npos
              ? cluster.vertices()[*from].kind == VertexKind::Nic && other == VertexKind::Switch
              : cluster.link_name(link) == name;
      if (!is_wanted) continue;
      links.push_back(link);
      links.push_back(reverse(cluster, link));
    }
  }
  if (links.empty()) refuse(cluster, name, "cable (\"leaf0->spine1\" or \"node3.nic0\")");
  return links;
}

void check_fault(const Cluster& cluster, const Fault& fault) {
  if (fault.kind == FaultKind::GpuSlow) {
    device_named(cluster, fault.target);
  } else {
    links_named(cluster, fault.target);
  }
}

}  // namespace foresail::sim
