#include "unit_speed.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "fault_targets.h"
#include "foresail/base/rng.h"

namespace foresail::sim {

double jitter_factor(const Jitter& jitter, std::uint64_t seed, int node, std::uint64_t pass) {
  const auto at = static_cast<std::uint64_t>(node);
  const double z = Rng(seed).stream("jitter", mix64(at) ^ pass).normal();
  return std::exp(jitter.sigma * z - jitter.sigma * jitter.sigma / 2);
}

UnitSpeed::UnitSpeed(const Units& units, const program::Placement& placement,
                     const topologies::Cluster& cluster, const SimulatorOptions& options)
    : jitter_(options.jitter), seed_(options.seed), changes_(units.units.size()) {
  if (jitter_.sigma > 0) {
    for (const Unit& unit : units.units) {
      std::set<int> nodes;
      for (const RankId rank : unit.ranks) nodes.insert(cluster.node_of(placement.device_of[rank]));
      nodes_.emplace_back(nodes.begin(), nodes.end());
    }
  }
  struct Slow {
    DeviceId device;
    SimTime from, to;
    double speed;
  };
  std::vector<Slow> slow;
  for (const Fault& fault : options.faults) {
    if (fault.kind != FaultKind::GpuSlow) continue;
    const SimTime from = SimTime{} + fault.at;
    const SimTime to = fault.lasts.count() > 0 ? from + fault.lasts : SimTime::max();
    slow.push_back({device_named(cluster, fault.target), from, to, fault.factor});
  }
  if (slow.empty()) return;
  for (std::size_t u = 0; u < units.units.size(); ++u) {
    std::vector<Slow> mine;
    std::set<SimTime> times;
    for (const RankId rank : units.units[u].ranks) {
      for (const Slow& each : slow) {
        if (each.device != placement.device_of[rank]) continue;
        mine.push_back(each);
        times.insert(each.from);
        times.insert(each.to);
      }
    }
    for (const SimTime at : times) {
      double speed = 1;
      for (const Slow& each : mine) {
        if (each.from <= at && at < each.to) speed = std::min(speed, each.speed);
      }
      changes_[u].push_back({at, speed});
    }
  }
}

SimTime UnitSpeed::end_of(std::uint32_t unit, SimTime start, Duration work) const {
  if (changes_[unit].empty()) return start + work;
  SimTime now = start;
  double speed = 1;
  auto left = static_cast<double>(work.count());
  for (const Change& change : changes_[unit]) {
    if (change.at > now) {
      const double possible = static_cast<double>((change.at - now).count()) * speed;
      if (possible >= left) break;
      left -= possible;
      now = change.at;
    }
    speed = change.speed;
  }
  return now + Duration(static_cast<std::int64_t>(std::llround(left / speed)));
}

Duration UnitSpeed::jittered(std::uint32_t unit, std::uint64_t pass, Duration span) const {
  if (nodes_.empty()) return span;
  double slowest = 0;
  for (const int node : nodes_[unit]) {
    slowest = std::max(slowest, jitter_factor(jitter_, seed_, node, pass));
  }
  return Duration(
      static_cast<std::int64_t>(std::llround(static_cast<double>(span.count()) * slowest)));
}

}  // namespace foresail::sim
