#include "foresail/scenarios/fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <thread>

#include "foresail/base/error.h"
#include "foresail/scenarios/predict.h"

namespace foresail::scenarios {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kRowSigma = 0.03;  // spread of one configuration between releases
constexpr double kHuber = 2.0;      // residuals beyond this many sigmas count linearly
constexpr double kStep = 0.03;      // of the numeric derivative, in the logarithm
constexpr double kDetermined = 0.7;

// A row made ready: only constants change between evaluations.
struct PreparedRow {
  planner::Plan plan;
  program::Program program;
  std::unique_ptr<topologies::Cluster> cluster;
  std::string stack, group;
  double published_s = 0;
  double weight = 1;
};

std::vector<PreparedRow> prepare(const FitFamily& family, const std::vector<Row>& rows) {
  const std::vector<StackDescription> stacks = load_stacks();
  std::vector<PreparedRow> prepared;
  std::map<std::string, int> group_sizes;
  for (const Row& row : rows) {
    RowPlanResult planned = plan_row(row, stacks);
    if (!planned.made || planned.made->plan.cluster.device.name != family.device) continue;
    // Hybrid sharding is approximated: its error would end up in the device's constants.
    if (planned.made->plan.layout.dp != row.dp) continue;
    PreparedRow made;
    made.plan = std::move(planned.made->plan);
    made.program = lower_verified(made.plan);
    made.cluster = std::make_unique<topologies::Cluster>(made.plan.cluster);
    made.stack = planned.made->stack;
    made.published_s = row.published_s;
    const planner::Layout& layout = made.plan.layout;
    made.group =
        fmt::format("{}/{}/{}/{}/{}-{}-{}", row.source, row.model_name, *row.hidden,
                    to_string(made.plan.training.precision), layout.tp, layout.cp, layout.pp);
    ++group_sizes[made.group];
    prepared.push_back(std::move(made));
  }
  for (PreparedRow& row : prepared) row.weight = 1 / std::sqrt(group_sizes[row.group]);
  return prepared;
}

class Objective {
 public:
  Objective(const FitFamily& family, std::vector<PreparedRow>& rows, int threads)
      : family_(family), rows_(rows), threads_(threads) {}

  // log(predicted / published) of every row with these values of the parameters.
  VectorXd residuals(const VectorXd& logs) const {
    VectorXd result(static_cast<Eigen::Index>(rows_.size()));
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t i = next++; i < rows_.size(); i = next++) {
        result[static_cast<Eigen::Index>(i)] = residual(rows_[i], logs);
      }
    };
    std::vector<std::jthread> helpers;
    for (int t = 1; t < threads_; ++t) helpers.emplace_back(work);
    work();
    return result;
  }

  MatrixXd jacobian(const VectorXd& logs, const VectorXd& at) const {
    MatrixXd derivatives(at.size(), logs.size());
    for (Eigen::Index p = 0; p < logs.size(); ++p) {
      VectorXd moved = logs;
      const double high = std::log(family_.parameters[static_cast<std::size_t>(p)].high);
      const double step = logs[p] + kStep > high ? -kStep : kStep;
      moved[p] += step;
      derivatives.col(p) = (residuals(moved) - at) / step;
    }
    return derivatives;
  }

 private:
  double residual(PreparedRow& row, const VectorXd& logs) const {
    topologies::CostConstants constants = row.plan.cluster.device.constants;
    sim::SimulatorOptions options =
        simulator_options(row.plan, {.fidelity = sim::Fidelity::Analytic});
    for (std::size_t p = 0; p < family_.parameters.size(); ++p) {
      const FitParameter& parameter = family_.parameters[p];
      const double value = std::exp(logs[static_cast<Eigen::Index>(p)]);
      if (parameter.member != nullptr) {
        constants.*parameter.member = value;
      } else if (parameter.stack == row.stack) {
        options.host_per_kernel = duration_from_seconds(value * 1e-6);
      }
    }
    row.cluster->set_constants(constants);
    const sim::Simulator simulator(*row.cluster, options);
    return std::log(to_seconds(simulator.run(row.program, row.plan.placement).iteration) /
                    row.published_s);
  }

  const FitFamily& family_;
  std::vector<PreparedRow>& rows_;
  int threads_;
};

// Weights of the normal equations: shared within a group, smaller for outliers.
VectorXd robust_weights(const std::vector<PreparedRow>& rows, const VectorXd& residuals) {
  VectorXd weights(residuals.size());
  for (Eigen::Index i = 0; i < residuals.size(); ++i) {
    const double z = std::abs(residuals[i]) / kRowSigma;
    const double shared = rows[static_cast<std::size_t>(i)].weight / (kRowSigma * kRowSigma);
    weights[i] = z <= kHuber ? shared : shared * kHuber / z;
  }
  return weights;
}

double cost(const std::vector<PreparedRow>& rows, const VectorXd& residuals, const VectorXd& logs,
            const VectorXd& prior, const VectorXd& precision) {
  double sum = 0;
  for (Eigen::Index i = 0; i < residuals.size(); ++i) {
    const double z = std::abs(residuals[i]) / kRowSigma;
    const double rho = z <= kHuber ? z * z : kHuber * (2 * z - kHuber);
    sum += rows[static_cast<std::size_t>(i)].weight * rho;
  }
  return sum + (logs - prior).cwiseAbs2().dot(precision);
}

double mean_abs(const VectorXd& residuals) {
  return (residuals.array().exp() - 1).abs().mean();
}

double median_abs(const VectorXd& residuals) {
  std::vector<double> values;
  for (const double r : residuals) values.push_back(std::abs(std::exp(r) - 1));
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

namespace {

// The parameters' logarithms: where they start, how far they may go.
struct Priors {
  explicit Priors(const std::vector<FitParameter>& parameters)
      : mean(static_cast<Eigen::Index>(parameters.size())),
        precision(mean.size()),
        low(mean.size()),
        high(mean.size()) {
    for (Eigen::Index p = 0; p < mean.size(); ++p) {
      const FitParameter& parameter = parameters[static_cast<std::size_t>(p)];
      mean[p] = std::log(parameter.prior);
      precision[p] = 1 / (parameter.sigma * parameter.sigma);
      low[p] = std::log(parameter.low);
      high[p] = std::log(parameter.high);
    }
  }
  VectorXd mean, precision, low, high;
};

// Where the search stands.
struct State {
  VectorXd logs, residuals;
  double cost = 0;
  double damping = 1e-3;
  MatrixXd normal;
};

// One round of Gauss-Newton; the relative gain, 0 if no step was better.
double improve(State& state, const std::vector<PreparedRow>& rows, const Objective& objective,
               const Priors& priors) {
  const MatrixXd jacobian = objective.jacobian(state.logs, state.residuals);
  const VectorXd weights = robust_weights(rows, state.residuals);
  state.normal = jacobian.transpose() * weights.asDiagonal() * jacobian;
  state.normal.diagonal() += priors.precision;
  const VectorXd gradient = jacobian.transpose() * weights.cwiseProduct(state.residuals) +
                            priors.precision.cwiseProduct(state.logs - priors.mean);
  for (int attempt = 0; attempt < 5; ++attempt) {
    MatrixXd damped = state.normal;
    damped.diagonal() *= 1 + state.damping;
    const VectorXd moved =
        (state.logs - damped.ldlt().solve(gradient)).cwiseMax(priors.low).cwiseMin(priors.high);
    const VectorXd tried = objective.residuals(moved);
    const double value = cost(rows, tried, moved, priors.mean, priors.precision);
    if (value < state.cost) {
      const double gain = (state.cost - value) / state.cost;
      state.cost = value;
      state.logs = moved;
      state.residuals = tried;
      state.damping *= 0.3;
      return gain;
    }
    state.damping *= 10;
  }
  return 0;
}

}  // namespace

FitSummary fit_family(const FitFamily& family, const std::vector<Row>& all,
                      const FitOptions& options) {
  std::vector<PreparedRow> rows = prepare(family, all);
  if (rows.empty()) {
    throw Error(ErrorCode::InvalidInput, fmt::format("no rows on {} to fit", family.device));
  }
  const Priors priors(family.parameters);
  const Objective objective(family, rows, options.threads);
  State state;
  state.logs = priors.mean;
  state.residuals = objective.residuals(state.logs);
  state.cost = cost(rows, state.residuals, state.logs, priors.mean, priors.precision);
  FitSummary summary;
  summary.device = family.device;
  summary.rows = rows.size();
  summary.mean_abs_error_before = mean_abs(state.residuals);
  double gain = 1;
  while (gain > 1e-3 && summary.iterations < options.iterations_max) {
    gain = improve(state, rows, objective, priors);
    ++summary.iterations;
    if (options.progress) {
      options.progress(fmt::format("{} round {}: cost {:.1f}, mean error {:.2f} %", family.device,
                                   summary.iterations, state.cost,
                                   100 * mean_abs(state.residuals)));
    }
  }
  const MatrixXd covariance = state.normal.inverse();
  std::map<std::string, int> groups;
  for (const PreparedRow& row : rows) ++groups[row.group];
  summary.groups = groups.size();
  summary.mean_abs_error = mean_abs(state.residuals);
  summary.median_abs_error = median_abs(state.residuals);
  for (std::size_t p = 0; p < family.parameters.size(); ++p) {
    const FitParameter& parameter = family.parameters[p];
    const auto at = static_cast<Eigen::Index>(p);
    summary.parameters.push_back(
        {parameter, std::exp(state.logs[at]), std::sqrt(covariance(at, at)) / parameter.sigma});
  }
  return summary;
}

std::string FitSummary::to_text() const {
  std::string text = fmt::format(
      "{}: {} rows in {} groups; mean error {:.1f} % at the priors, {:.1f} % fitted "
      "(median {:.1f} %), {} rounds\n",
      device, rows, groups, 100 * mean_abs_error_before, 100 * mean_abs_error,
      100 * median_abs_error, iterations);
  for (const FittedParameter& fitted : parameters) {
    text += fmt::format(
        "  {:<36} {:>10.4g}  prior {:>8.4g}  width {:.2f}  {}\n", fitted.parameter.name,
        fitted.value, fitted.parameter.prior, fitted.width_ratio,
        fitted.width_ratio < kDetermined ? "determined by data" : "stays near its prior");
  }
  return text;
}

}  // namespace foresail::scenarios
