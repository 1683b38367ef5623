/// \file
/// A measured nccl-tests log over the prediction: where they differ, and what would explain it.
#pragma once

#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/scenarios/collective_log.h"
#include "foresail/scenarios/collective_sweep.h"
#include "foresail/topologies/cluster.h"

namespace foresail::scenarios {

/// One change of the same cluster, simulated over the log's sizes.
struct Hypothesis {
  std::string name;         ///< "slow_rail"
  std::string description;  ///< "NIC 0 of every node at half rate"
  /// Mean of |ln(predicted / measured)| over the sizes: near the mean relative error while small,
  /// and alike for twice and half; above 1 it is printed as a factor, e to its power.
  double error = 0;
  bool is_effective = true;  ///< false: predicts what the cluster as described does
  std::vector<double> time_us;
};

/// Where measured and predicted differ, by the part of the prediction that dominates a size.
struct Difference {
  std::string part;  ///< "latency" (links take up to a third of the time), "middle", "bandwidth"
  std::size_t sizes = 0;
  double ratio = 1;  ///< measured over predicted time, geometric mean
};

struct Comparison {
  CollectiveLog log;
  Sweep predicted;   ///< the cluster as described, at the log's sizes
  double error = 0;  ///< of the cluster as described, as Hypothesis::error
  std::vector<Difference> differences;
  /// Size at which the measured time leaves the predicted one by a factor of 1.3 or more from one
  /// row to the next, and stays off; 0: none.
  Bytes cliff;
  double cliff_ratio = 1;
  /// What a reader must know before the verdict: skipped lines, wrong data, an operation other than
  /// the log's, bandwidth beyond the cluster's links.
  std::vector<std::string> remarks;
  std::vector<Hypothesis> hypotheses;  ///< best first
  /// The best explains the log: mean error at most kFits, and better than the cluster as described
  /// by a third or more.
  bool has_explanation() const;
  /// The cluster as described explains it: mean error at most kFits.
  bool is_as_expected() const;
};
inline constexpr double kFits = 0.12;

/// Most bus bandwidth that links allow, GB/s, at the line rate of all NICs of a node (one node:
/// NVLink of a GPU; sendrecv: of one NIC). An all_reduce may need half of a ring's bytes there (two
/// nodes; reduction in switches); gathering and all-to-all n/(n-1) for n nodes. 0: not known.
double bus_bandwidth_max(const topologies::Cluster& cluster, Operation operation);

/// `options` say how the cluster is thought to be; its sizes are ignored, and its operation counts
/// where the log names another (with a remark). Throws Error{InvalidInput} if the log's ranks are
/// not the cluster's.
Comparison compare_log(const CollectiveLog& log, const topologies::Cluster& cluster,
                       const SweepOptions& options);

std::string to_text(const Comparison& comparison);
Document to_document(const Comparison& comparison);

}  // namespace foresail::scenarios
