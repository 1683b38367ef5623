/// \file
/// What is wired wrongly: told from the cables alone, by what the neighbours have, and by the plan
/// where the cluster has one. What each finding means, and who votes: docs/reference/
/// topology_files.md.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

enum class FindingKind {
  Unreachable,       ///< two NICs of one rail that no way joins
  MissingPort,       ///< a NIC with fewer cables than the others, or none
  RailSwap,          ///< a NIC on another leaf than the same NIC of the nodes beside it
  MissingLink,       ///< fewer cables between two switches than their siblings have
  ExtraLink,         ///< more of them
  SlowLink,          ///< a cable slower than most between these tiers
  AsymmetricPlane,   ///< a plane of switches with less capacity than the others
  Oversubscription,  ///< a switch with more below it per uplink than most of its tier
  NotAsPlanned       ///< a cable that differs from the plan, which nothing above explains
};

/// Warning: the votes are even, or no bandwidth is lost.
enum class Severity { Error, Warning };

struct Finding {
  FindingKind kind = FindingKind::MissingLink;
  Severity severity = Severity::Error;
  std::vector<std::string> vertices;  ///< the culprits, lower ones first
  std::string cable;                  ///< "leaf0->spine1"; empty if there is not one
  /// Share of the first vertex's bandwidth into the fabric (RailSwap: of its node's; planes: of the
  /// plane's) that is lost, or leaves its rail.
  double bandwidth_lost = 0;
  std::string message;
};

/// All findings, by kind in the order above, then by vertex. A fault that explains another
/// (a missing uplink raises the oversubscription of its leaf) is told once. O(links) when little is
/// wrong.
std::vector<Finding> check_wiring(const Cluster& cluster);

/// One line per finding; of a kind at most 20, the rest counted.
std::string findings_text(const Cluster& cluster, const std::vector<Finding>& findings);
/// `{name, clean, findings: [{kind, severity, vertices, cable, bandwidth_lost, message}]}`.
Document findings_document(const Cluster& cluster, const std::vector<Finding>& findings);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::FindingKind> =
    std::to_array<Named<topologies::FindingKind>>(
        {{topologies::FindingKind::Unreachable, "unreachable"},
         {topologies::FindingKind::MissingPort, "missing_port"},
         {topologies::FindingKind::RailSwap, "rail_swap"},
         {topologies::FindingKind::MissingLink, "missing_link"},
         {topologies::FindingKind::ExtraLink, "extra_link"},
         {topologies::FindingKind::SlowLink, "slow_link"},
         {topologies::FindingKind::AsymmetricPlane, "asymmetric_plane"},
         {topologies::FindingKind::Oversubscription, "oversubscription"},
         {topologies::FindingKind::NotAsPlanned, "not_as_planned"}});
template <>
inline constexpr auto kNames<topologies::Severity> = std::to_array<Named<topologies::Severity>>(
    {{topologies::Severity::Error, "error"}, {topologies::Severity::Warning, "warning"}});
}  // namespace foresail
