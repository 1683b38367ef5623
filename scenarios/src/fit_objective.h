/// \file
/// What fits share: published rows made ready, residuals as a function of constants, and damped
/// Gauss-Newton under log-normal priors.
#pragma once

#include <Eigen/Dense>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foresail/program/program.h"
#include "foresail/scenarios/fit.h"
#include "foresail/scenarios/rows.h"
#include "foresail/topologies/cluster.h"

namespace foresail::scenarios {

/// A row whose Plan is lowered: only constants change between evaluations.
struct PreparedRow {
  planner::Plan plan;
  program::Program program;
  std::unique_ptr<topologies::Cluster> cluster;
  std::string id, source, stack;
  std::string group;  ///< rows of one configuration: they repeat the same measurement
  double published_s = 0;
  double weight = 1;  ///< of its residual
  /// Added to log(predicted / published): what a finer prediction differs by from the `analytic`
  /// one.
  double offset = 0;
  bool is_approximated = false;  ///< hybrid sharding: dp of the Plan is not that of the row
};

/// Lowers the row's Plan; nothing if it has none.
std::unique_ptr<PreparedRow> prepare_row(const Row& row,
                                         const std::vector<StackDescription>& stacks);
using PreparedRows = std::vector<std::unique_ptr<PreparedRow>>;
/// Rows of one group count as the square root of their number.
void share_weights(PreparedRows& rows);

/// The values of `parameters` (by index, logarithms) put into a row's constants.
struct RowConstants {
  topologies::CostConstants constants;
  Duration host_per_kernel{};
};
RowConstants with_parameters(const PreparedRow& row, const std::vector<FitParameter>& parameters,
                             const Eigen::VectorXd& logs);

/// log(predicted / published), `analytic` fidelity, plus the row's offset.
double residual(PreparedRow& row, const RowConstants& constants);

struct Priors {
  explicit Priors(const std::vector<FitParameter>& parameters);
  Eigen::VectorXd mean, precision, low, high;  ///< of the logarithms
};

/// Weighted least squares with a Huber loss and log-normal priors.
class Objective {
 public:
  /// All must outlive it.
  Objective(const std::vector<FitParameter>& parameters, PreparedRows& rows, int threads,
            double row_sigma)
      : parameters_(parameters), rows_(rows), threads_(threads), row_sigma_(row_sigma) {}

  Eigen::VectorXd residuals(const Eigen::VectorXd& logs) const;
  /// Numeric derivatives of the residuals, which are `at` for `logs`.
  Eigen::MatrixXd jacobian(const Eigen::VectorXd& logs, const Eigen::VectorXd& at) const;
  /// Weights of the normal equations: shared within a group, smaller for outliers.
  Eigen::VectorXd weights(const Eigen::VectorXd& residuals) const;
  double cost(const Eigen::VectorXd& residuals, const Eigen::VectorXd& logs,
              const Priors& priors) const;

 private:
  const std::vector<FitParameter>& parameters_;
  PreparedRows& rows_;
  int threads_;
  double row_sigma_;  // spread of a row's logarithm
};

/// Where a fit stands.
struct FitState {
  Eigen::VectorXd logs, residuals;
  double cost = 0;
  double damping = 1e-3;
  Eigen::MatrixXd jacobian, normal;  ///< at the last round's start
};
FitState start_fit(const Objective& objective, const Priors& priors);
/// One round of Gauss-Newton with Levenberg's damping; the relative gain, 0 if no step was better.
double improve_fit(FitState& state, const Objective& objective, const Priors& priors);

/// Mean and median of |predicted / published - 1| from logarithms.
double mean_abs(const Eigen::VectorXd& residuals);
double median_abs(const Eigen::VectorXd& residuals);

}  // namespace foresail::scenarios
