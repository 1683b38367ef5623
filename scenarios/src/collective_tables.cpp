#include "foresail/scenarios/collective_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

using topologies::Cluster;

constexpr double kLeastBus = 0.1;  // GB/s
constexpr Bytes kLarge = 1_MiB;
constexpr double kRowDeviation = 0.15, kFactorDeviation = 0.2;  // of logarithms

std::vector<PublishedTable::Row> read_rows_of(const Yaml& table, Operation operation) {
  std::vector<PublishedTable::Row> rows;
  const auto stated = table.find("ranks_implied_by_busbw_factor");
  for (const Yaml& each : table.at("rows").items()) {
    PublishedTable::Row row;
    row.size = Bytes(each.at("size_B").as_integer(1, std::int64_t{1} << 50));
    if (const auto bus = each.find("busbw")) row.bus_bandwidth = bus->as_number();
    if (row.bus_bandwidth < kLeastBus) continue;
    if (stated) {
      const int ranks = static_cast<int>(stated->as_integer(2, 1 << 20));
      row.time_us = static_cast<double>(row.size.count()) * bus_factor(operation, ranks) /
                    (1000 * row.bus_bandwidth);
    } else {
      const auto time = each.find("time_us");
      row.time_us = time ? time->as_number() : each.at("time_us_derived").as_number();
    }
    rows.push_back(row);
  }
  return rows;
}

SweepOptions sweep_options(const PublishedTable& table) {
  SweepOptions options;
  options.operation = table.operation;
  options.network = table.network;
  for (const PublishedTable::Row& row : table.rows) options.sizes.push_back(row.size);
  return options;
}

std::vector<double> times_with(const PublishedTable& table, double launch_us, double factor) {
  Cluster::Options cluster = table.cluster;
  cluster.device.nccl.launch_us = launch_us;
  cluster.device.nccl.latency_factor = factor;
  std::vector<double> times;
  for (const SweepPoint& point : sweep(Cluster(cluster), sweep_options(table)).points) {
    times.push_back(to_seconds(point.time) * 1e6);
  }
  return times;
}

}  // namespace

std::vector<PublishedTable> load_tables(const std::filesystem::path& tables,
                                        const std::filesystem::path& rows) {
  const Yaml setup = Yaml::load(tables);
  setup.allow_only({"tables"});
  const Yaml published = Yaml::load(rows);
  std::map<std::string, Yaml> by_id;
  for (const Yaml& table : published.at("collectives").items()) {
    by_id.emplace(table.at("id").as_string(), table);
  }
  std::vector<PublishedTable> result;
  for (const auto& [id, entry] : setup.at("tables").entries()) {
    entry.allow_only({"fit", "cluster", "network"});
    const auto found = by_id.find(id);
    if (found == by_id.end()) entry.fail("is no table of " + rows.string());
    PublishedTable table;
    table.id = id;
    if (const auto fit = entry.find("fit")) table.is_fitted = fit->as_bool();
    table.cluster = topologies::resolve_cluster(entry.at("cluster"), data_folders().topologies);
    if (const auto network = entry.find("network")) {
      table.network = topologies::read_network(*network);
    }
    table.operation = found->second.at("op").as_choice<Operation>();
    table.rows = read_rows_of(found->second, table.operation);
    result.push_back(std::move(table));
  }
  return result;
}

double mean_magnitude(const std::vector<double>& errors) {
  double sum = 0;
  for (const double error : errors) sum += std::abs(error);
  return errors.empty() ? 0 : sum / static_cast<double>(errors.size());
}

TableErrors predict_table(const PublishedTable& table) {
  TableErrors errors;
  errors.id = table.id;
  errors.is_fitted = table.is_fitted;
  errors.predicted = sweep(Cluster(table.cluster), sweep_options(table));
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const double predicted = to_seconds(errors.predicted.points[i].time) * 1e6;
    std::vector<double>& part = table.rows[i].size >= kLarge ? errors.large : errors.small;
    part.push_back(predicted / table.rows[i].time_us - 1);
  }
  return errors;
}

std::string to_text(const std::vector<TableErrors>& tables) {
  std::string text = fmt::format("{:<26} {:<6} {:>14} {:>16}\n", "mean |error|, %", "",
                                 "from 1 MiB", "below 1 MiB");
  const auto line = [&](const std::string& name, const char* kind, const std::vector<double>& large,
                        const std::vector<double>& small) {
    const auto cell = [](const std::vector<double>& errors) {
      return errors.empty()
                 ? std::string("-")
                 : fmt::format("{:.1f} ({})", 100 * mean_magnitude(errors), errors.size());
    };
    text += fmt::format("{:<26} {:<6} {:>14} {:>16}\n", name, kind, cell(large), cell(small));
  };
  for (const bool is_fitted : {true, false}) {
    std::vector<double> large;
    std::vector<double> small;
    const char* const kind = is_fitted ? "fit" : "blind";
    for (const TableErrors& table : tables) {
      if (table.is_fitted != is_fitted) continue;
      line(table.id, kind, table.large, table.small);
      large.insert(large.end(), table.large.begin(), table.large.end());
      small.insert(small.end(), table.small.begin(), table.small.end());
    }
    line("all rows", kind, large, small);
  }
  return text;
}

NcclFit fit_table(const PublishedTable& table) {
  const std::vector<double> once = times_with(table, 0, 1);
  const std::vector<double> twice = times_with(table, 0, 2);
  NcclFit best;
  double least = -1;
  for (int f = 30; f <= 300; ++f) {
    const double factor = f / 100.0;
    const double prior = std::log(factor) / kFactorDeviation;
    for (int l = 0; l <= 600; ++l) {
      const double launch = l / 10.0;
      double sum = prior * prior;
      double magnitude = 0;
      for (std::size_t i = 0; i < once.size(); ++i) {
        const double latency = twice[i] - once[i];
        const double ratio = (launch + once[i] + (factor - 1) * latency) / table.rows[i].time_us;
        const double off = std::log(ratio) / kRowDeviation;
        sum += off * off;
        magnitude += std::abs(ratio - 1);
      }
      if (least >= 0 && sum >= least) continue;
      least = sum;
      best.launch_us = launch;
      best.latency_factor = factor;
      best.mean_error = magnitude / static_cast<double>(once.size());
    }
  }
  best.device = table.cluster.device.name;
  best.generation = table.cluster.device.nccl.generation;
  best.table = table.id;
  best.rows = once.size();
  return best;
}

void write_nccl(const NcclFit& fit, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& path : files) {
    const topologies::DeviceSpec device = topologies::read_device(Yaml::load(path));
    if (device.kind != topologies::DeviceKind::Gpu) continue;
    if (device.nccl.generation != fit.generation) continue;
    std::istringstream text(read_file(path));
    std::string result;
    bool is_inside = false;
    for (std::string line; std::getline(text, line);) {
      if (is_inside && line.starts_with("  ")) continue;
      is_inside = line == "nccl:";
      result += line + "\n";
      if (!is_inside) continue;
      result += fmt::format(
          "  generation: {}\n  launch_us: {:g}\n  latency_factor: {:g}\n  provenance: >-\n"
          "    scripts/fit_collectives on {} rows of {} ({}): mean error {:.1f} %.\n",
          to_string(fit.generation), fit.launch_us, fit.latency_factor, fit.rows, fit.table,
          fit.device, 100 * fit.mean_error);
    }
    write_file(path, result);
  }
}

}  // namespace foresail::scenarios
