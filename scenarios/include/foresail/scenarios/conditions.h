/// \file
/// What surrounds a plan in a scenario: jitter, faults, other jobs and traffic. No part of the
/// Plan, which says what runs.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/yaml.h"
#include "foresail/planner/plan.h"
#include "foresail/sim/disturbance.h"

namespace foresail::scenarios {

/// Another job on the same cluster.
struct OtherJob {
  std::string name;  ///< its scenario file
  planner::Plan plan;
  Duration at{};
  bool repeats = true;
};

struct Conditions {
  sim::Jitter jitter;
  std::vector<sim::Fault> faults;
  std::vector<sim::Traffic> traffic;
  std::vector<OtherJob> jobs;
};

/// One sentence for each fault, source of traffic and job that a step which ends at `end` is over
/// too soon to meet.
std::vector<std::string> unmet(const Conditions& conditions, Duration end);

/// `none` or `{sigma: 0.01}`.
sim::Jitter read_jitter(const Yaml& node);
/// `[{at: 1 s, for: 2 s, kind: link_down, target: "leaf0->spine1", factor: 0.5, period: 1 s}, …]`.
/// Targets are checked against `cluster`.
std::vector<sim::Fault> read_faults(const Yaml& node, const topologies::Cluster::Options& cluster);
/// `[{pattern: permutation, devices: "0-63,128", bytes: 64 MiB, at: 0 s, gap: 0 s}, …]`.
std::vector<sim::Traffic> read_traffic(const Yaml& node,
                                       const topologies::Cluster::Options& cluster);
/// All of these throw Error{InvalidInput} with file, line and key.

/// `packed` (rank r on device r), `random` (nodes shuffled by the seed), or `{first_device: 64}`
/// or `{nodes: "0-3,8,5"}`: the nodes in this order, as many devices as the layout has ranks.
program::Placement read_placement(const Yaml& node, const topologies::Cluster::Options& cluster,
                                  int ranks, std::uint64_t seed);

/// "0-3,8": numbers and ranges below `end`, in the order given. Throws at `node`.
std::vector<int> read_numbers(const Yaml& node, int end);

}  // namespace foresail::scenarios
