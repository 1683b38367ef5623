#include "link_balance.h"

#include <algorithm>
#include <vector>

namespace foresail::scenarios {
namespace {

using topologies::Cluster;
using topologies::VertexKind;

struct Tally {
  double ratios = 0, lows = 0, worst = 1;
  int places = 0;

  void add(const std::vector<double>& loads) {
    if (loads.size() < 2) return;
    double sum = 0;
    double most = 0;
    double least = loads.front();
    for (const double load : loads) {
      sum += load;
      most = std::max(most, load);
      least = std::min(least, load);
    }
    if (sum <= 0) return;
    const double ratio = most * static_cast<double>(loads.size()) / sum;
    ratios += ratio;
    lows += least * static_cast<double>(loads.size()) / sum;
    worst = std::max(worst, ratio);
    ++places;
  }
  double mean() const { return places == 0 ? 1 : ratios / places; }
  double low() const { return places == 0 ? 1 : lows / places; }
};

}  // namespace

LinkBalance balance_of(const Cluster& cluster, const std::map<LinkId, double>& bytes) {
  Tally up;
  Tally in;
  std::map<VertexId, std::vector<double>> into;  // by NIC
  const auto load_of = [&](LinkId link) {
    const auto found = bytes.find(link);
    return found == bytes.end() ? 0.0 : found->second;
  };
  for (std::uint32_t v = 0; v < cluster.vertices().size(); ++v) {
    const topologies::Vertex& vertex = cluster.vertices()[VertexId{v}];
    if (vertex.kind != VertexKind::Switch) continue;
    std::vector<double> upward;
    for (const LinkId link : cluster.out_links(VertexId{v})) {
      const VertexId to = cluster.links()[link].to;
      const topologies::Vertex& far = cluster.vertices()[to];
      if (far.kind == VertexKind::Nic) into[to].push_back(load_of(link));
      if (far.kind == VertexKind::Switch && far.tier > vertex.tier) upward.push_back(load_of(link));
    }
    up.add(upward);
  }
  for (const auto& [nic, loads] : into) in.add(loads);
  return {up.mean(), up.worst, up.low(), in.mean(), in.worst};
}

}  // namespace foresail::scenarios
