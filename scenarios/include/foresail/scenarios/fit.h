/// \file
/// Fits a device's cost constants on published steps: weighted least squares of log(predicted /
/// published) with log-normal priors, robust against outliers (Huber), by Gauss-Newton with
/// Levenberg's damping. Predictions at `analytic` fidelity.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "foresail/base/yaml.h"
#include "foresail/scenarios/rows.h"
#include "foresail/topologies/device.h"

namespace foresail::scenarios {

/// One constant to determine: of the device, or (stack given) the host time per kernel of a stack.
struct FitParameter {
  std::string name;
  double topologies::CostConstants::*member = nullptr;
  std::string stack;
  double prior = 1;  ///< in the unit of the constant; host time in microseconds
  double sigma = 1;  ///< of the logarithm
  double low = 0, high = 1;
};

struct FitFamily {
  std::string device;
  std::vector<std::string> carried_to;  ///< devices without rows that take the same constants
  std::vector<std::string> rows;        ///< file names within the data folder
  int csv_every = 1;                    ///< use every n-th row of CSV files
  std::vector<FitParameter> parameters;
};

/// scenarios/catalogue/fit.yaml. Throws Error{InvalidInput}; refuses files whose name contains
/// "check".
std::vector<FitFamily> load_fit_families(const Yaml& root);
/// One entry of `anchor` there (sigma, low, high), or its host_per_kernel.
FitParameter read_anchor_parameter(const std::string& name, const Yaml& node);

struct FittedParameter {
  FitParameter parameter;
  double value = 0;
  /// Posterior over prior width of the logarithm: near 1, the data say nothing about it.
  double width_ratio = 1;
};

/// A row predicted by constants that were fitted without its part of the rows.
struct LeftOut {
  std::string id;
  std::string part;   ///< what was left out: a configuration, or a source
  std::string group;  ///< configuration
  std::string source, stack, cluster;
  double residual = 0;  ///< log(predicted / published)
};

struct FitSummary {
  std::string device;
  std::vector<FittedParameter> parameters;
  std::size_t rows = 0, groups = 0;
  double mean_abs_error_before = 0, mean_abs_error = 0, median_abs_error = 0;
  int iterations = 0;
  /// Errors that a blind row would see: of a configuration that the fit does not know, and of a
  /// source (its software, fabric and way to measure) that it does not know.
  std::vector<LeftOut> by_group, by_source;
  /// Table for people: value, prior, width ratio, "determined by data" or "stays at its prior".
  std::string to_text() const;
};

struct FitOptions {
  int threads = 1;
  int iterations_max = 8;
  std::function<void(const std::string&)> progress;  ///< may be empty
};

/// Fits one family on the rows of its device.
FitSummary fit_family(const FitFamily& family, const std::vector<Row>& rows,
                      const FitOptions& options);

/// Rows of `family` predicted by constants of another device, as those of a device without rows.
std::vector<LeftOut> carried_over(const FitFamily& family, const std::vector<Row>& rows,
                                  const FitSummary& other);

/// Writes spread.yaml and yardstick.yaml: what all families' fits left over, and the naive rates of
/// the same rows. `summaries` and `rows` are by family.
void write_spread(const std::vector<FitFamily>& families, const std::vector<FitSummary>& summaries,
                  const std::vector<std::vector<Row>>& rows, const std::filesystem::path& folder);

/// Rewrites the `constants` lines and the provenance of the family's device files in `folder`, and
/// host_per_kernel of the stacks; nothing else of the files changes.
void write_constants(const FitFamily& family, const FitSummary& summary,
                     const std::filesystem::path& folder, const std::filesystem::path& stacks_file);

}  // namespace foresail::scenarios
