/// \file
/// A k-ary three-level fat tree as links of a FlowSet, with random or deterministic routes: the
/// fabric of the packet-level and SimGrid results that tests compare with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "foresail/base/rng.h"
#include "foresail/sim/flow_set.h"

namespace foresail::sim::test {

/// k^3 / 4 hosts, k / 2 per ToR, k / 2 ToRs and as many aggregation switches per pod, k pods, full
/// bisection: host h is on ToR h / (k/2) of pod h / (k/2)^2.
class FatTree {
 public:
  FatTree(int k, Bandwidth bandwidth, Duration latency)
      : half_(static_cast<std::uint32_t>(k) / 2), hosts_(2 * half_ * half_ * half_) {
    links_.assign(6 * std::size_t{hosts_}, {bandwidth, latency});
  }

  std::uint32_t hosts() const { return hosts_; }
  const std::vector<FlowLink>& links() const { return links_; }

  /// Over up-port `first` of the ToR and `second` of the aggregation switch, where needed. Links
  /// are numbered host up, host down, ToR up, ToR down, aggregation up, aggregation down.
  std::vector<std::uint32_t> path(std::uint32_t from, std::uint32_t to, std::uint32_t first,
                                  std::uint32_t second) const {
    const std::uint32_t tor = from / half_;
    const std::uint32_t far_tor = to / half_;
    if (tor == far_tor) return {from, hosts_ + to};
    const std::uint32_t pod = tor / half_;
    const std::uint32_t far_pod = far_tor / half_;
    const std::uint32_t up = 2 * hosts_ + tor * half_ + first;
    const std::uint32_t down = 3 * hosts_ + far_tor * half_ + first;
    if (pod == far_pod) return {from, up, down, hosts_ + to};
    const std::uint32_t high = 4 * hosts_ + (pod * half_ + first) * half_ + second;
    const std::uint32_t low = 5 * hosts_ + (far_pod * half_ + first) * half_ + second;
    return {from, up, high, low, down, hosts_ + to};
  }
  std::vector<std::uint32_t> random_path(std::uint32_t from, std::uint32_t to,
                                         RandomStream& random) const {
    const auto first = static_cast<std::uint32_t>(random.below(half_));
    const auto second = static_cast<std::uint32_t>(random.below(half_));
    return path(from, to, first, second);
  }
  /// D-mod-k as in SimGrid: up-port dst mod k/2 at the ToR, dst / (k/2) mod k/2 above.
  std::vector<std::uint32_t> dmodk_path(std::uint32_t from, std::uint32_t to) const {
    return path(from, to, to % half_, to / half_ % half_);
  }

 private:
  std::uint32_t half_;
  std::uint32_t hosts_;
  std::vector<FlowLink> links_;
};

/// A random permutation without fixed points.
inline std::vector<std::uint32_t> derangement(std::uint32_t n, RandomStream& random) {
  std::vector<std::uint32_t> to(n);
  for (std::uint32_t i = 0; i < n; ++i) to[i] = i;
  const auto has_fixed_point = [&] {
    for (std::uint32_t i = 0; i < n; ++i) {
      if (to[i] == i) return true;
    }
    return false;
  };
  while (has_fixed_point()) {
    for (std::uint32_t i = n - 1; i > 0; --i) std::swap(to[i], to[random.below(i + 1)]);
  }
  return to;
}

/// Flow i from host i to `to[i]`, each on a random path.
inline FlowSet permutation(const FatTree& tree, const std::vector<std::uint32_t>& to, Bytes bytes,
                           RandomStream& random) {
  FlowSet set{tree.links(), {}};
  for (std::uint32_t i = 0; i < to.size(); ++i) {
    set.flows.push_back({tree.random_path(i, to[i], random), bytes});
  }
  return set;
}

}  // namespace foresail::sim::test
