// foresail-fit: what scripts/fit_devices and scripts/fit_collectives run. Fits device constants on
// published steps of the fit set and rewrites the catalogue of the source tree.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/collective_tables.h"
#include "foresail/scenarios/fit.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string data, tree, device;
  int threads = 1;
  bool is_dry = false;
  bool is_collectives = false;
};

std::vector<scenarios::Row> rows_of(const scenarios::FitFamily& family, const Options& options) {
  std::vector<scenarios::Row> rows;
  for (const std::string& name : family.rows) {
    const scenarios::RowFile file = scenarios::read_rows(fs::path(options.data) / name);
    const bool is_csv = name.ends_with(".csv");
    for (std::size_t i = 0; i < file.rows.size(); ++i) {
      if (is_csv && i % static_cast<std::size_t>(family.csv_every) != 0) continue;
      rows.push_back(file.rows[i]);
    }
  }
  return rows;
}

int run_collectives(const Options& options) {
  const fs::path setup = fs::path(options.tree) / "scenarios" / "catalogue" / "collectives.yaml";
  const fs::path rows = fs::path(options.data) / "collectives.yaml";
  for (const scenarios::PublishedTable& table : scenarios::load_tables(setup, rows)) {
    if (!table.is_fitted) continue;
    const scenarios::NcclFit fit = scenarios::fit_table(table);
    fmt::print("{}: launch {:.1f} us, latency factor {:.2f}, on {} rows of {}\n",
               to_string(fit.generation), fit.launch_us, fit.latency_factor, fit.rows, fit.table);
    if (options.is_dry) continue;
    scenarios::write_nccl(fit, fs::path(options.tree) / "topologies" / "catalogue" / "devices");
  }
  std::vector<scenarios::TableErrors> errors;
  for (const scenarios::PublishedTable& table : scenarios::load_tables(setup, rows)) {
    errors.push_back(scenarios::predict_table(table));
  }
  fmt::print("\n{}", scenarios::to_text(errors));
  return 0;
}

int run(const Options& options) {
  if (options.is_collectives) return run_collectives(options);
  const fs::path tree = options.tree;
  const Yaml settings = Yaml::load(tree / "scenarios" / "catalogue" / "fit.yaml");
  const std::vector<scenarios::FitFamily> families = scenarios::load_fit_families(settings);
  std::vector<scenarios::FitSummary> summaries;
  std::vector<std::vector<scenarios::Row>> rows;
  for (const scenarios::FitFamily& family : families) {
    if (!options.device.empty() && family.device != options.device) continue;
    scenarios::FitOptions fit;
    fit.threads = options.threads;
    fit.progress = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
    rows.push_back(rows_of(family, options));
    summaries.push_back(scenarios::fit_family(family, rows.back(), fit));
    const scenarios::FitSummary& summary = summaries.back();
    fmt::print("{}\n", summary.to_text());
    std::fflush(stdout);
    if (options.is_dry) continue;
    scenarios::write_constants(family, summary, tree / "topologies" / "catalogue" / "devices",
                               tree / "scenarios" / "catalogue" / "stacks.yaml");
  }
  if (summaries.size() == families.size() && !options.is_dry) {
    scenarios::write_spread(families, summaries, rows, tree / "scenarios" / "catalogue");
  }
  return 0;
}

}  // namespace
}  // namespace foresail::cli

int main(int count, char** values) {
  CLI::App app("Fits device constants on published training steps.", "foresail-fit");
  foresail::cli::Options options;
  app.add_option("--data", options.data, "folder with the rows of the fit set")->required();
  app.add_option("--tree", options.tree, "source tree whose catalogue is rewritten")->required();
  app.add_option("--device", options.device, "fit this device alone");
  app.add_option("--threads", options.threads)->check(foresail::cli::whole_number(1, 256));
  app.add_flag("--collectives", options.is_collectives,
               "fit NCCL's launch overhead and latency factor instead, on nccl-tests tables");
  app.add_flag("--dry-run", options.is_dry, "print, write nothing");
  try {
    app.parse(count, values);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  try {
    return foresail::cli::run(options);
  } catch (const foresail::Error& problem) {
    fmt::print(stderr, "foresail-fit: {}\n", problem.what());
    return 2;
  }
}
