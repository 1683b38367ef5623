#include "fit_objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "foresail/scenarios/predict.h"

namespace foresail::scenarios {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kHuber = 2.0;  // residuals beyond this many sigmas count linearly
constexpr double kStep = 0.03;  // of the numeric derivative, in the logarithm

}  // namespace

std::unique_ptr<PreparedRow> prepare_row(const Row& row,
                                         const std::vector<StackDescription>& stacks) {
  RowPlanResult planned = plan_row(row, stacks);
  if (!planned.made) return nullptr;
  auto made = std::make_unique<PreparedRow>();
  made->plan = std::move(planned.made->plan);
  made->program = lower_verified(made->plan);
  made->cluster = std::make_unique<topologies::Cluster>(made->plan.cluster);
  made->id = row.id;
  made->source = row.source;
  made->stack = planned.made->stack;
  made->published_s = row.published_s;
  const planner::Layout& layout = made->plan.layout;
  made->is_approximated = layout.dp != row.dp;
  made->group =
      fmt::format("{}/{}/{}/{}/{}-{}-{}", row.source, row.model_name, *row.hidden,
                  to_string(made->plan.training.precision), layout.tp, layout.cp, layout.pp);
  return made;
}

void share_weights(PreparedRows& rows) {
  std::map<std::string, int> sizes;
  for (const auto& row : rows) ++sizes[row->group];
  for (const auto& row : rows) row->weight = 1 / std::sqrt(sizes[row->group]);
}

RowConstants with_parameters(const PreparedRow& row, const std::vector<FitParameter>& parameters,
                             const VectorXd& logs) {
  RowConstants made{row.plan.cluster.device.constants, row.plan.stack.host_per_kernel};
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const FitParameter& parameter = parameters[p];
    const double value = std::exp(logs[static_cast<Eigen::Index>(p)]);
    if (parameter.member != nullptr) {
      made.constants.*parameter.member = value;
    } else if (parameter.stack == row.stack) {
      made.host_per_kernel = duration_from_seconds(value * 1e-6);
    }
  }
  return made;
}

double residual(PreparedRow& row, const RowConstants& constants) {
  sim::SimulatorOptions options =
      simulator_options(row.plan, {.fidelity = sim::Fidelity::Analytic});
  options.host_per_kernel = constants.host_per_kernel;
  row.cluster->set_constants(constants.constants);
  const sim::Simulator simulator(*row.cluster, options);
  return row.offset +
         std::log(to_seconds(simulator.run(row.program, row.plan.placement).iteration) /
                  row.published_s);
}

Priors::Priors(const std::vector<FitParameter>& parameters)
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

VectorXd Objective::residuals(const VectorXd& logs) const {
  VectorXd result(static_cast<Eigen::Index>(rows_.size()));
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < rows_.size(); i = next++) {
      result[static_cast<Eigen::Index>(i)] =
          residual(*rows_[i], with_parameters(*rows_[i], parameters_, logs));
    }
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < threads_; ++t) helpers.emplace_back(work);
  work();
  helpers.clear();
  return result;
}

MatrixXd Objective::jacobian(const VectorXd& logs, const VectorXd& at) const {
  MatrixXd derivatives(at.size(), logs.size());
  for (Eigen::Index p = 0; p < logs.size(); ++p) {
    VectorXd moved = logs;
    const double high = std::log(parameters_[static_cast<std::size_t>(p)].high);
    const double step = logs[p] + kStep > high ? -kStep : kStep;
    moved[p] += step;
    derivatives.col(p) = (residuals(moved) - at) / step;
  }
  return derivatives;
}

VectorXd Objective::weights(const VectorXd& residuals) const {
  VectorXd weights(residuals.size());
  for (Eigen::Index i = 0; i < residuals.size(); ++i) {
    const double z = std::abs(residuals[i]) / row_sigma_;
    const double shared = rows_[static_cast<std::size_t>(i)]->weight / (row_sigma_ * row_sigma_);
    weights[i] = z <= kHuber ? shared : shared * kHuber / z;
  }
  return weights;
}

double Objective::cost(const VectorXd& residuals, const VectorXd& logs,
                       const Priors& priors) const {
  double sum = 0;
  for (Eigen::Index i = 0; i < residuals.size(); ++i) {
    const double z = std::abs(residuals[i]) / row_sigma_;
    const double rho = z <= kHuber ? z * z : kHuber * (2 * z - kHuber);
    sum += rows_[static_cast<std::size_t>(i)]->weight * rho;
  }
  return sum + (logs - priors.mean).cwiseAbs2().dot(priors.precision);
}

FitState start_fit(const Objective& objective, const Priors& priors) {
  FitState state;
  state.logs = priors.mean;
  state.residuals = objective.residuals(state.logs);
  state.cost = objective.cost(state.residuals, state.logs, priors);
  return state;
}

double improve_fit(FitState& state, const Objective& objective, const Priors& priors) {
  state.jacobian = objective.jacobian(state.logs, state.residuals);
  const VectorXd weights = objective.weights(state.residuals);
  state.normal = state.jacobian.transpose() * weights.asDiagonal() * state.jacobian;
  state.normal.diagonal() += priors.precision;
  const VectorXd gradient = state.jacobian.transpose() * weights.cwiseProduct(state.residuals) +
                            priors.precision.cwiseProduct(state.logs - priors.mean);
  for (int attempt = 0; attempt < 5; ++attempt) {
    MatrixXd damped = state.normal;
    damped.diagonal() *= 1 + state.damping;
    const VectorXd moved =
        (state.logs - damped.ldlt().solve(gradient)).cwiseMax(priors.low).cwiseMin(priors.high);
    const VectorXd tried = objective.residuals(moved);
    const double value = objective.cost(tried, moved, priors);
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

double mean_abs(const VectorXd& residuals) {
  return (residuals.array().exp() - 1).abs().mean();
}

double median_abs(const VectorXd& residuals) {
  std::vector<double> values;
  for (const double r : residuals) values.push_back(std::abs(std::exp(r) - 1));
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace foresail::scenarios
