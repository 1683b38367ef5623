#include "fault_targets.h"

#include <fmt/format.h>

#include "foresail/base/error.h"
#include "foresail/sim/disturbance.h"

namespace foresail::sim {
namespace {

using topologies::Cluster;
using topologies::VertexKind;

[[noreturn]] void refuse(const Cluster& cluster, const std::string& name, const char* wanted) {
  throw Error(ErrorCode::InvalidInput, fmt::format("fault target \"{}\": cluster {} has no such {}",
                                                   name, cluster.name(), wanted));
}

}  // namespace

DeviceId device_named(const Cluster& cluster, const std::string& name) {
  const auto vertex = cluster.find_vertex(name);
  if (!vertex || cluster.vertices()[*vertex].kind != VertexKind::Device) {
    refuse(cluster, name, "GPU (\"node3.gpu1\")");
  }
  const topologies::Vertex& found = cluster.vertices()[*vertex];
  return DeviceId{static_cast<std::uint32_t>(found.node * cluster.node().devices + found.index)};
}

std::vector<LinkId> links_named(const Cluster& cluster, const std::string& name) {
  std::vector<LinkId> links;
  const auto add = [&](LinkId link) {
    links.push_back(link);
    links.push_back(Cluster::reverse(link));
  };
  if (const auto link = cluster.find_link(name)) add(*link);
  const auto vertex = cluster.find_vertex(name);
  if (vertex && cluster.vertices()[*vertex].kind == VertexKind::Nic) {
    for (const LinkId port : cluster.nic_ports(*vertex)) add(port);
  }
  if (links.empty()) refuse(cluster, name, "cable (\"leaf0->spine1\") or NIC (\"node3.nic0\")");
  return links;
}

void check_fault(const Cluster& cluster, const Fault& fault) {
  if (fault.kind == FaultKind::GpuSlow) {
    device_named(cluster, fault.target);
  } else if (const auto nic = cluster.find_vertex(fault.target);
             fault.kind == FaultKind::NicSlow &&
             (!nic || cluster.vertices()[*nic].kind != VertexKind::Nic)) {
    refuse(cluster, fault.target, "NIC (\"node3.nic0\")");
  } else {
    links_named(cluster, fault.target);
  }
}

}  // namespace foresail::sim
