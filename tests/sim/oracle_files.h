/// \file
/// Reads the completion times that other simulators wrote.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace foresail::sim::test {

struct OracleFlow {
  std::uint32_t from = 0, to = 0;
  std::int64_t bytes = 0;  ///< 0 if the file has no such column
  double start_us = 0, completion_us = 0;
};

/// The rows of tests/data/oracles/`name`, columns found by their names.
inline std::vector<OracleFlow> read_oracle(const std::string& name) {
  const std::string path = std::string(FORESAIL_SOURCE_DIR) + "/tests/data/oracles/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::string line;
  std::getline(file, line);
  std::map<std::string, std::size_t> column;
  std::istringstream header(line);
  for (std::string cell; std::getline(header, cell, ',');) column.emplace(cell, column.size());
  std::vector<OracleFlow> flows;
  while (std::getline(file, line)) {
    std::istringstream row(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    OracleFlow flow;
    flow.from = static_cast<std::uint32_t>(std::stoul(cells.at(column.at("src"))));
    flow.to = static_cast<std::uint32_t>(std::stoul(cells.at(column.at("dst"))));
    if (column.contains("bytes")) flow.bytes = std::stoll(cells.at(column.at("bytes")));
    if (column.contains("start_us")) flow.start_us = std::stod(cells.at(column.at("start_us")));
    flow.completion_us = std::stod(cells.at(column.at("fct_us")));
    flows.push_back(flow);
  }
  return flows;
}

/// How many draws of random paths a comparison averages: `usual`, or what FORESAIL_DRAWS says.
inline int draw_count(int usual) {
  const char* asked = std::getenv("FORESAIL_DRAWS");
  return asked == nullptr ? usual : std::max(1, std::atoi(asked));
}

/// Mean, median, 99th percentile and maximum.
struct Spread {
  double mean = 0, p50 = 0, p99 = 0, max = 0;
};

inline Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  Spread made;
  for (const double value : values) made.mean += value / static_cast<double>(values.size());
  const auto rank = [&](std::size_t percent) { return (values.size() * percent + 99) / 100 - 1; };
  made.p50 = values[rank(50)];
  made.p99 = values[rank(99)];
  made.max = values.back();
  return made;
}

}  // namespace foresail::sim::test
