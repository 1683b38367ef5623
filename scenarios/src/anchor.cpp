#include "foresail/scenarios/anchor.h"

#include <algorithm>
#include <cmath>

#include "fit_objective.h"
#include "foresail/base/error.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

using Eigen::VectorXd;

constexpr int kRounds = 6;
constexpr double kEnough = 1e-3;  // relative gain of a round

PreparedRows prepare(const std::vector<AnchorRow>& rows,
                     const std::vector<StackDescription>& stacks) {
  PreparedRows prepared;
  for (const AnchorRow& each : rows) {
    auto made = prepare_row(*each.row, stacks);
    FORESAIL_EXPECT(made != nullptr);
    // What the wanted fidelity adds to the analytic one is taken as it is.
    const RowConstants own{made->plan.cluster.device.constants, made->plan.stack.host_per_kernel};
    made->offset = std::log(each.predicted_s / made->published_s) - residual(*made, own);
    prepared.push_back(std::move(made));
  }
  share_weights(prepared);
  return prepared;
}

// The settings' widths about this device's and stack's own values; what is zero cannot move.
std::vector<FitParameter> around(const PreparedRow& row, const AnchorSettings& settings) {
  std::vector<FitParameter> parameters;
  for (FitParameter parameter : settings.parameters) {
    if (parameter.member == nullptr) {
      parameter.stack = row.stack;
      parameter.prior = to_seconds(row.plan.stack.host_per_kernel) * 1e6;
    } else {
      parameter.prior = row.plan.cluster.device.constants.*parameter.member;
    }
    if (!(parameter.prior > 0)) continue;
    parameter.low = std::min(parameter.low, parameter.prior);
    parameter.high = std::max(parameter.high, parameter.prior);
    parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace

Anchored fit_anchor(const std::vector<AnchorRow>& rows, const std::vector<StackDescription>& stacks,
                    const AnchorSettings& settings, int threads) {
  FORESAIL_EXPECT(!rows.empty());
  PreparedRows prepared = prepare(rows, stacks);
  const std::vector<FitParameter> parameters = around(*prepared.front(), settings);
  const Priors priors(parameters);
  const Objective objective(parameters, prepared, threads, settings.row_sigma);
  FitState state = start_fit(objective, priors);
  for (int round = 0; round < kRounds; ++round) {
    if (improve_fit(state, objective, priors) < kEnough) break;
  }
  const RowConstants found = with_parameters(*prepared.front(), parameters, state.logs);
  Anchored anchored{found.constants, found.host_per_kernel, {}};
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    anchored.moved.push_back(
        {parameters[p], std::exp(state.logs[static_cast<Eigen::Index>(p)]), 1});
  }
  return anchored;
}

AnchorSettings load_anchor_settings() {
  const Yaml node = load_catalogue("fit.yaml").at("anchor");
  node.allow_only({"row_sigma", "parameters", "host_per_kernel"});
  AnchorSettings settings;
  settings.row_sigma = node.at("row_sigma").as_number();
  if (!(settings.row_sigma > 0)) node.at("row_sigma").fail("must be positive");
  for (const auto& [name, value] : node.at("parameters").entries()) {
    settings.parameters.push_back(read_anchor_parameter(name, value));
  }
  const Yaml host = node.at("host_per_kernel");
  settings.parameters.push_back(read_anchor_parameter("host_per_kernel", host));
  return settings;
}

}  // namespace foresail::scenarios
