#include "background.h"

#include <algorithm>
#include <utility>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::sim {
namespace {

using Pairs = std::vector<std::pair<DeviceId, DeviceId>>;

// Everyone to the next of a random order: nobody to itself.
Pairs permutation(std::vector<DeviceId> devices, std::uint64_t seed, std::uint16_t source) {
  RandomStream random = Rng(seed).stream("traffic", source);
  for (std::size_t i = devices.size(); i > 1; --i)
    std::swap(devices[i - 1], devices[random.below(i)]);
  Pairs pairs;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    pairs.emplace_back(devices[i], devices[(i + 1) % devices.size()]);
  }
  return pairs;
}

Pairs pairs_of(const Traffic& traffic, std::uint64_t seed, std::uint16_t source) {
  const std::vector<DeviceId>& devices = traffic.devices;
  Pairs pairs;
  switch (traffic.pattern) {
    case TrafficPattern::Permutation:
      return permutation(devices, seed, source);
    case TrafficPattern::Ring:
      for (std::size_t i = 0; i < devices.size(); ++i) {
        pairs.emplace_back(devices[i], devices[(i + 1) % devices.size()]);
      }
      return pairs;
    case TrafficPattern::AllToAll:
      for (const DeviceId from : devices) {
        for (const DeviceId to : devices) {
          if (from != to) pairs.emplace_back(from, to);
        }
      }
      return pairs;
    case TrafficPattern::Incast:
      for (std::size_t i = 1; i < devices.size(); ++i) pairs.emplace_back(devices[i], devices[0]);
      return pairs;
  }
  return pairs;
}

}  // namespace

Background::Background(const Traffic& traffic, std::uint16_t source, std::uint64_t seed,
                       Network& network)
    : network_(network), source_(source), gap_(traffic.gap) {
  FORESAIL_EXPECT(traffic.devices.size() >= 2);
  for (const auto& [from, to] : pairs_of(traffic, seed, source)) {
    plans_.push_back(network.message(from, to, traffic.bytes));
    latency_ = std::max(latency_, plans_.back().latency);
  }
}

void Background::start(SimTime now) {
  flows_left_ = 0;
  for (const TransferPlan& plan : plans_) {
    flows_left_ += plan.routes.size();
    network_.fluid().start_together(plan.routes, plan.amount, flow_tag(source_, 0), now);
  }
}

}  // namespace foresail::sim
