#include "foresail/scenarios/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "fit_objective.h"
#include "foresail/base/error.h"
#include "foresail/scenarios/spread.h"
#include "foresail/scenarios/yardstick.h"

namespace foresail::scenarios {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kRowSigma = 0.03;  // spread of one configuration between releases
constexpr double kDetermined = 0.7;
constexpr int kLeftOutRounds = 2;  // Gauss-Newton from the full fit's answer

PreparedRows family_rows(const FitFamily& family, const std::vector<Row>& all) {
  const std::vector<StackDescription> stacks = load_stacks();
  PreparedRows rows;
  for (const Row& row : all) {
    auto made = prepare_row(row, stacks);
    if (!made || made->plan.cluster.device.name != family.device) continue;
    // Hybrid sharding is approximated: its error would end up in the device's constants.
    if (made->is_approximated) continue;
    rows.push_back(std::move(made));
  }
  if (rows.empty()) {
    throw Error(ErrorCode::InvalidInput, fmt::format("no rows on {} to fit", family.device));
  }
  share_weights(rows);
  return rows;
}

// The fit without the rows of one part, by Gauss-Newton on the full fit's linearisation.
VectorXd without(const std::vector<bool>& left_out, const FitState& full,
                 const Objective& objective, const Priors& priors) {
  VectorXd weights = objective.weights(full.residuals);
  for (std::size_t i = 0; i < left_out.size(); ++i) {
    if (left_out[i]) weights[static_cast<Eigen::Index>(i)] = 0;
  }
  MatrixXd normal = full.jacobian.transpose() * weights.asDiagonal() * full.jacobian;
  normal.diagonal() += priors.precision;
  VectorXd logs = full.logs;
  VectorXd residuals = full.residuals;
  for (int round = 0; round < kLeftOutRounds; ++round) {
    const VectorXd gradient = full.jacobian.transpose() * weights.cwiseProduct(residuals) +
                              priors.precision.cwiseProduct(logs - priors.mean);
    const VectorXd moved =
        (logs - normal.ldlt().solve(gradient)).cwiseMax(priors.low).cwiseMin(priors.high);
    residuals += full.jacobian * (moved - logs);
    logs = moved;
  }
  return logs;
}

// Residuals of every row by the fit without its part (`key` names the part).
template <class Key>
std::vector<LeftOut> leave_out(PreparedRows& rows, const FitFamily& family, const FitState& full,
                               const Objective& objective, const Priors& priors, Key key) {
  std::map<std::string, int> sizes;
  for (const auto& row : rows) ++sizes[key(*row)];
  std::vector<LeftOut> result;
  for (const auto& [part, size] : sizes) {
    std::vector<bool> is_out;
    for (const auto& row : rows) is_out.push_back(key(*row) == part);
    const VectorXd logs = without(is_out, full, objective, priors);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!is_out[i]) continue;
      const double value = residual(*rows[i], with_parameters(*rows[i], family.parameters, logs));
      result.push_back({rows[i]->id, part, rows[i]->group, rows[i]->source, rows[i]->stack,
                        rows[i]->plan.cluster.name, value});
    }
  }
  return result;
}

}  // namespace

FitSummary fit_family(const FitFamily& family, const std::vector<Row>& all,
                      const FitOptions& options) {
  PreparedRows rows = family_rows(family, all);
  const Priors priors(family.parameters);
  const Objective objective(family.parameters, rows, options.threads, kRowSigma);
  FitState state = start_fit(objective, priors);
  FitSummary summary;
  summary.device = family.device;
  summary.rows = rows.size();
  summary.mean_abs_error_before = mean_abs(state.residuals);
  double gain = 1;
  while (gain > 1e-3 && summary.iterations < options.iterations_max) {
    gain = improve_fit(state, objective, priors);
    ++summary.iterations;
    if (options.progress) {
      options.progress(fmt::format("{} round {}: cost {:.1f}, mean error {:.2f} %", family.device,
                                   summary.iterations, state.cost,
                                   100 * mean_abs(state.residuals)));
    }
  }
  const MatrixXd covariance = state.normal.inverse();
  std::set<std::string> groups;
  for (const auto& row : rows) groups.insert(row->group);
  summary.groups = groups.size();
  summary.mean_abs_error = mean_abs(state.residuals);
  summary.median_abs_error = median_abs(state.residuals);
  for (std::size_t p = 0; p < family.parameters.size(); ++p) {
    const FitParameter& parameter = family.parameters[p];
    const auto at = static_cast<Eigen::Index>(p);
    summary.parameters.push_back(
        {parameter, std::exp(state.logs[at]), std::sqrt(covariance(at, at)) / parameter.sigma});
  }
  const auto group_of = [](const PreparedRow& row) { return row.group; };
  const auto source_of = [](const PreparedRow& row) { return row.source; };
  summary.by_group = leave_out(rows, family, state, objective, priors, group_of);
  summary.by_source = leave_out(rows, family, state, objective, priors, source_of);
  return summary;
}

std::vector<LeftOut> carried_over(const FitFamily& family, const std::vector<Row>& all,
                                  const FitSummary& other) {
  PreparedRows rows = family_rows(family, all);
  std::vector<LeftOut> result;
  for (const auto& row : rows) {
    RowConstants constants{row->plan.cluster.device.constants, row->plan.stack.host_per_kernel};
    for (const FittedParameter& each : other.parameters) {
      if (each.parameter.member == nullptr) continue;
      constants.constants.*each.parameter.member = each.value;
    }
    result.push_back({row->id, family.device, row->group, row->source, row->stack,
                      row->plan.cluster.name, residual(*row, constants)});
  }
  return result;
}

void write_spread(const std::vector<FitFamily>& families, const std::vector<FitSummary>& summaries,
                  const std::vector<std::vector<Row>>& rows, const std::filesystem::path& folder) {
  std::vector<LeftOut> by_group, by_source, by_device;
  std::set<std::string> devices, stacks, clusters;
  const auto append = [](std::vector<LeftOut>& list, const std::vector<LeftOut>& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  std::vector<NaiveSample> samples;
  std::vector<PreparedRows> kept;
  for (std::size_t f = 0; f < families.size(); ++f) {
    append(by_group, summaries[f].by_group);
    append(by_source, summaries[f].by_source);
    devices.insert(families[f].device);
    for (const LeftOut& row : summaries[f].by_group) {
      stacks.insert(families[f].device + " " + row.stack);
      clusters.insert(row.cluster);
    }
    for (std::size_t other = 0; other < families.size(); ++other) {
      if (other == f) continue;
      append(by_device, carried_over(families[f], rows[f], summaries[other]));
    }
    kept.push_back(family_rows(families[f], rows[f]));
    for (const auto& row : kept.back()) {
      // Tables of small runs on one node (CSV) would make the yardstick useless for jobs.
      const auto& files = families[f].rows;
      if (std::ranges::find(files, row->source + ".csv") != files.end()) continue;
      samples.push_back({&row->plan, row->published_s, row->weight * row->weight});
    }
  }
  Spread spread{spread_level(by_group),         spread_level(by_source),
                spread_level(by_device),        {devices.begin(), devices.end()},
                {stacks.begin(), stacks.end()}, {clusters.begin(), clusters.end()}};
  const SpreadParts parts = spread_parts(by_source);
  constexpr const char* kOrigin = "# Written by scripts/fit_devices from the fit set alone.\n";
  write_file(
      folder / "spread.yaml",
      fmt::format("{}# Quantiles of |log(predicted / published)| of rows that their fit had not "
                  "seen, every source\n# and, within, every configuration counted once: its "
                  "configuration, its source, or its device left\n# out. Errors of unseen sources: "
                  "{:.3f} common to a source, {:.3f} of each configuration's own.\n{}",
                  kOrigin, parts.between_sources, parts.within_source,
                  to_yaml(to_document(spread))));
  write_file(folder / "yardstick.yaml",
             fmt::format("{}# TFLOP/s of one device (Korthikanti 2022, and 4/3 of it under full "
                         "recomputation) by device\n# and precision, ideal bubble.\n{}",
                         kOrigin, to_yaml(to_document(fit_yardstick(samples)))));
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
  for (const auto& [what, rows_out] :
       {std::pair{"configuration", &by_group}, std::pair{"source", &by_source}}) {
    VectorXd values(static_cast<Eigen::Index>(rows_out->size()));
    for (std::size_t i = 0; i < rows_out->size(); ++i) {
      values[static_cast<Eigen::Index>(i)] = (*rows_out)[i].residual;
    }
    text += fmt::format("  each {} left out of its own fit: mean error {:.1f} %, median {:.1f} %\n",
                        what, 100 * mean_abs(values), 100 * median_abs(values));
  }
  return text;
}

}  // namespace foresail::scenarios
